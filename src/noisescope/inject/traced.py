"""Injection inside `torch.compile`: the same taps as in eager mode, with everything that varies left to run time.

While a model is traced, the modules that run are followed as in eager mode and each operator call gets the number of
its site. The graph then holds that number alone: seed, strength and selection are looked up when the graph runs, so
changing them recompiles nothing. Attention is always taken apart here, so that selecting its softmax recompiles
nothing either. Checkpointing inside a compiled model is refused: its recomputation cannot be told from a new call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from noisescope.core.errors import CannotCompileError
from noisescope.inject.active import Charge
from noisescope.inject.apply import Moment, apply
from noisescope.inject.attention import unfused_attention
from noisescope.inject.ops import is_product, map_operands
from noisescope.inject.tap import ends_attention
from noisescope.inject.watch import Watch, by_name
from noisescope.inject.where import Pass, Place

Function = Callable[..., Any]


@dataclass(frozen=True)
class Spot:
    """What a number in a graph stands for: one operator call of one place."""

    watch: str
    place: Place
    operator: str
    ordinal: int


_SPOTS: list[Spot] = []
_NUMBER_OF: dict[tuple[str, int, str, int], int] = {}
NOWHERE = -1


def _place(mark: str) -> tuple[Watch, Place]:
    name, index = mark.split(":")
    watch = by_name(name)
    if watch is None:
        raise CannotCompileError("the model carries the mark of an injection that is gone; call torch.compile anew.")
    return watch, watch.places[int(index)]


@torch.compiler.assume_constant_result
def enter(mark: str) -> int:
    """While tracing: a module begins to run."""
    watch, place = _place(mark)
    here = watch.here
    if here.epoch != watch.epoch:
        here.restart(watch.epoch)
    if place in here.places:
        # Tracing was restarted: what was entered before belongs to the attempt that was given up.
        del here.places[here.places.index(place) :]
        _forget_ordinals(here.current, place)
    if not here.places:
        here.current = Pass(0, place.index)
    here.places.append(place)
    return 0


def _forget_ordinals(now: Pass | None, place: Place) -> None:
    if now is not None:
        now.ordinals = {key: n for key, n in now.ordinals.items() if key[0] < place.index}


@torch.compiler.assume_constant_result
def leave(mark: str) -> int:
    """While tracing: a module has run. Returns the number of the operator that it writes out, if it does."""
    watch, place = _place(mark)
    number = _number(watch, place, place.written_out) if place.written_out else NOWHERE
    watch.leave(place)
    return number


@torch.compiler.assume_constant_result
def begin(name: str, operator: str) -> int:
    """While tracing: the number of an operator call at the place where the trace is now."""
    watch = by_name(name)
    place = None if watch is None else watch.place_now()
    if watch is None or place is None or place.passed_over:
        return NOWHERE
    return _number(watch, place, "linear" if place.linear and operator == "matmul" else operator)


@torch.compiler.assume_constant_result
def finish(name: str, number: int) -> int:
    """While tracing: the number of the attention that this operator call completes, if it does."""
    watch, spot = by_name(name), _SPOTS[number]
    if watch is None or not ends_attention(watch, spot.place, spot.operator):
        return NOWHERE
    return _number(watch, spot.place, "attention")


def _number(watch: Watch, place: Place, operator: str) -> int:
    ordinal = watch.here.ordinal(place, operator)
    key = (watch.name, place.index, operator, ordinal)
    if key not in _NUMBER_OF:
        _NUMBER_OF[key] = len(_SPOTS)
        _SPOTS.append(Spot(watch.name, place, operator, ordinal))
    return _NUMBER_OF[key]


def tap(name: str, operator: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """While tracing: one operator call with its outlets and the change of its output."""
    if not is_product(function, args):
        return function(*args, **kwargs)
    number = begin(name, operator)
    if number == NOWHERE:
        return function(*args, **kwargs)
    if operator == "attention":
        return land(unfused_attention(_inner(name), args, kwargs), number)
    if torch.is_grad_enabled():
        args, kwargs = map_operands(operator, function, (args, kwargs), Outlets(number))
    out = land(function(*args, **kwargs), number)
    whole = finish(name, number)
    return out if whole == NOWHERE else land(out, whole)


def _inner(name: str) -> Function:
    def inner(operator: str, function: Function, *args: Any, **kwargs: Any) -> Any:
        number = begin(name, operator)
        if torch.is_grad_enabled():
            args, kwargs = map_operands(operator, function, (args, kwargs), Outlets(number))
        return land(function(*args, **kwargs), number)

    return inner


def close(mark: str, out: Any) -> Any:
    """While tracing: a module has run; the change of its output if it writes an operator out."""
    number = leave(mark)
    return None if number == NOWHERE else land(out, number)


def land(out: Any, number: int) -> Any:
    """The output of a call after whatever will be injected when the graph runs."""
    if not isinstance(out, Tensor):
        return out
    if torch.is_grad_enabled():
        return torch.ops.noisescope.corrupt(out, number)
    torch.ops.noisescope.corrupt_(out, number)
    return out


class Outlets:
    """Puts an outlet on each operand of one call that needs a gradient; the first one counts the call."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.operand = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        out: Tensor = TracedOutlet.apply(tensor, self.number, self.operand)
        self.operand += 1
        return out


class TracedOutlet(torch.autograd.Function):
    """Identity whose gradient is changed when the graph runs."""

    @staticmethod
    def forward(ctx: Any, operand: Tensor, number: int, index: int) -> Tensor:
        """The operand itself."""
        ctx.number, ctx.index = number, index
        return operand.view_as(operand)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The changed gradient."""
        return torch.ops.noisescope.corrupt_gradient(grads[0], ctx.number, ctx.index), None, None


def _run(tensor: Tensor, number: int, phase: str, operand: int = 0) -> None:
    spot = _SPOTS[number]
    watch = by_name(spot.watch)
    if watch is None:
        return
    watch.called = True
    plan = watch.plan(spot.place, spot.operator)
    charges = () if plan is None else plan.forward if phase == "forward" else plan.backward
    for charge in charges:
        moment = Moment(phase, (_count_run(charge, number, operand),), spot.ordinal, operand, int(operand == 0))
        apply(tensor, (charge,), moment)


def _count_run(charge: Charge, number: int, operand: int) -> int:
    runs, key = charge.active.runs, (number, operand, charge.key)
    run = runs.get(key, 0)
    runs[key] = run + 1
    return run


def _corrupt_(out: Tensor, number: int) -> None:
    watch = by_name(_SPOTS[number].watch)
    # This variant stands in graphs that were traced without gradients.
    if watch is not None and not watch.training_only:
        _run(out, number, "forward")


def _corrupt(out: Tensor, number: int) -> Tensor:
    after = out.clone()
    _run(after, number, "forward")
    return after


def _corrupt_gradient(grad: Tensor, number: int, operand: int) -> Tensor:
    after = grad.clone()
    _run(after, number, "backward", operand)
    return after


_LIBRARY = torch.library.Library("noisescope", "DEF")
_LIBRARY.define("corrupt_(Tensor(a!) out, int number) -> ()")
_LIBRARY.define("corrupt(Tensor out, int number) -> Tensor")
_LIBRARY.define("corrupt_gradient(Tensor grad, int number, int operand) -> Tensor")
_LIBRARY.impl("corrupt_", _corrupt_, "CompositeExplicitAutograd")
_LIBRARY.impl("corrupt", _corrupt, "CompositeExplicitAutograd")
_LIBRARY.impl("corrupt_gradient", _corrupt_gradient, "CompositeExplicitAutograd")
torch.library.register_fake("noisescope::corrupt_", lambda out, number: None, lib=_LIBRARY)
torch.library.register_fake("noisescope::corrupt", lambda out, number: torch.empty_like(out), lib=_LIBRARY)
torch.library.register_fake(
    "noisescope::corrupt_gradient", lambda grad, number, operand: torch.empty_like(grad), lib=_LIBRARY
)
torch.library.register_autograd("noisescope::corrupt", lambda ctx, grad: (grad, None), lib=_LIBRARY)
