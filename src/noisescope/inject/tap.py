"""What happens around one operator call in eager mode: outlets on its operands, the call, the change of its output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from noisescope.inject.active import Plan
from noisescope.inject.apply import Moment, apply
from noisescope.inject.attention import attention_operands, unfused_attention
from noisescope.inject.kinds import Product
from noisescope.inject.ops import KEEPS_OUTPUT, is_product, map_operands, product_of
from noisescope.inject.outlet import StraightThrough, outlet
from noisescope.inject.watch import Watch
from noisescope.inject.where import Place

Function = Callable[..., Any]
UNFUSED_FOR = ("matmul", "softmax")


def tap(watch: Watch, operator: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one operator call as the injections want it."""
    place = watch.place_now()
    if place is None or place.passed_over or not watch.awake() or not is_product(function, args):
        return function(*args, **kwargs)
    if operator == "attention":
        return _attention(watch, place, function, (args, kwargs))
    operator = "linear" if place.linear and operator == "matmul" else operator
    out = _call(watch, place, operator, function, (args, kwargs))
    if ends_attention(watch, place, operator):
        plan = watch.plan(place, "attention")
        if plan is not None:
            out = land(watch, place, "attention", plan, out)
            testify(plan, function, (args, kwargs), out)
    return out


def ends_attention(watch: Watch, place: Place, operator: str) -> bool:
    """Whether this call is the product that follows a softmax in the same module: the end of unfused attention."""
    now = watch.here.current
    if now is None:
        return False
    if operator == "softmax":
        now.softmax_at = place
        return False
    ends = operator in ("matmul", "bmm") and now.softmax_at is place
    now.softmax_at = None if ends else now.softmax_at
    return ends


def _attention(watch: Watch, place: Place, fused: Function, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    def inner_tap(operator: str, function: Function, *args: Any, **kwargs: Any) -> Any:
        return _call(watch, place, operator, function, (args, kwargs))

    def unfused(*args: Any, **kwargs: Any) -> Any:
        return unfused_attention(inner_tap, args, kwargs)

    # Asked for both, and not with any(): every operator inside is met, whether or not it is injected into.
    plans = [plan for plan in [watch.plan(place, inner) for inner in UNFUSED_FOR] if plan is not None]
    idle = all(charge.idle for plan in plans for charge in (*plan.forward, *plan.backward))
    if plans and idle:
        _count_idle(watch, place, call)
    return _call(watch, place, "attention", fused if idle else unfused, call)


def _count_idle(watch: Watch, place: Place, call: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """Strength 0 changes no bit, so the fused kernel runs; the operators inside it were reached all the same."""
    query, key, value = attention_operands(*call)
    rows = query[..., 0].numel()
    scores = rows * key.size(-2)
    for operator, sizes in (("matmul", (scores, rows * value.size(-1))), ("softmax", (scores,))):
        plan = watch.plan(place, operator)
        for size in sizes if plan is not None else ():
            watch.here.ordinal(place, operator)
            for charge in plan.forward if plan is not None else ():
                charge.active.stats.count(charge.site, "forward", 1, size)


def _call(
    watch: Watch, place: Place, operator: str, function: Function, call: tuple[tuple[Any, ...], dict[str, Any]]
) -> Any:
    plan = watch.plan(place, operator)
    if plan is None:
        return function(*call[0], **call[1])
    outlets = Outlets(watch, place, operator, plan)
    args, kwargs = map_operands(operator, function, call, outlets) if outlets.needed else call
    out = function(*args, **kwargs)
    if not plan.forward or not isinstance(out, Tensor):
        return out
    out = land(watch, place, operator, plan, out, lambda: product_of(operator, function, (args, kwargs)))
    testify(plan, function, (args, kwargs), out)
    return out


def testify(plan: Plan, function: Function, call: tuple[tuple[Any, ...], dict[str, Any]], out: Tensor) -> None:
    """Tell whoever watches calls of this one, as it was after all injections."""
    for charge in plan.forward:
        if charge.active.witness is not None:
            charge.active.witness(charge.site, function, *call, out)


class Outlets:
    """Puts an outlet on each operand of one call that needs a gradient; the first gradient counts the call."""

    def __init__(self, watch: Watch, place: Place, operator: str, plan: Plan) -> None:
        self.charges = plan.backward
        # At strength 0 not even a view is put in: it could change the order in which gradients are added up.
        self.needed = any(charge.strength for charge in plan.backward) and torch.is_grad_enabled()
        if self.needed:
            self.numbers = watch.numbers(plan.backward)
            self.ordinal = watch.here.ordinal(place, operator + " backward")
            self.operand = 0
            self.counted = False

    def __call__(self, tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        operand, self.operand = self.operand, self.operand + 1
        return outlet(tensor, lambda grad: self._change(grad, operand))

    def _change(self, grad: Tensor, operand: int) -> Tensor:
        moment = Moment("backward", self.numbers, self.ordinal, operand, counts=int(not self.counted))
        self.counted = True
        return apply(grad, self.charges, moment)


def land(
    watch: Watch,
    place: Place,
    operator: str,
    plan: Plan,
    out: Tensor,
    product: Callable[[], Product | None] | None = None,
) -> Tensor:
    """The output of a call after the injections of its plan."""
    ordinal = watch.here.ordinal(place, operator)
    now = watch.here.current
    counts = 0 if now is not None and now.recomputing else 1
    moment = Moment("forward", watch.numbers(plan.forward), ordinal, 0, counts, product)
    if out.requires_grad and operator in KEEPS_OUTPUT:
        out = cast(Any, StraightThrough).apply(out, lambda y: apply(y, plan.forward, moment))
    else:
        out = apply(out, plan.forward, moment)
    for charge in plan.forward:
        if charge.active.sensor is not None:
            charge.active.sensor(charge.site, out)
    return out
