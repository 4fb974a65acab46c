"""Operators that a module writes out by hand: injected at the module's border instead of at a torch function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from noisescope.inject.tap import Outlets, land
from noisescope.inject.watch import Watch
from noisescope.inject.where import Place

Call = tuple[tuple[Any, ...], dict[str, Any]]
_ADDITIONS = frozenset({torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__})


def open_written_out(watch: Watch, place: Place, operator: str, call: Call) -> Call | None:
    """The call of the module with outlets on its inputs; None leaves it as it is."""
    plan, now = watch.plan(place, operator), watch.here.current
    if plan is None or now is None or not watch.awake():
        return None
    outlets = Outlets(watch, place, operator, plan)
    if not outlets.needed:
        return None
    now.outlets[place.index] = outlets
    args = tuple([outlets(a) if isinstance(a, Tensor) else a for a in call[0]])
    return args, {name: outlets(a) if isinstance(a, Tensor) else a for name, a in call[1].items()}


def adds_a_bias(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call adds two tensors. The gradient of a bias is no product of the operator's own backward."""
    return function in _ADDITIONS and all(isinstance(argument, Tensor) for argument in args[:2])


def with_weight_outlets(watch: Watch, function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call inside the module, with outlets on the weights among them."""
    if adds_a_bias(function, args):
        return args
    now, place = watch.here.current, watch.place_now()
    outlets = now.outlets.get(place.index) if now is not None and place is not None else None
    if outlets is None:
        return args
    return tuple(outlets(a) if isinstance(a, nn.Parameter) else a for a in args)


def close_written_out(watch: Watch, place: Place, operator: str, out: Any) -> Any:
    """The output of the module after the injections."""
    plan = watch.plan(place, operator)
    if watch.here.current is not None:
        watch.here.current.outlets.pop(place.index, None)
    if plan is None or not watch.awake() or not plan.forward or not isinstance(out, Tensor):
        return out
    return land(watch, place, operator, plan, out)
