"""Injection inside `torch.compile`: the same taps as in eager mode, with everything that varies left to run time.

While a model is traced, its modules write where they are into the mode's `anchors`, and each operator call gets the
number of its site. The graph holds that number alone: seed, strength and selection are looked up when it runs, so
changing them recompiles nothing. Since anchors are read from the mode, a graph is guarded by the module it was traced
for. Attention is always taken apart here, so that selecting its softmax recompiles nothing either. Checkpointing
inside a compiled model is refused: its recomputation cannot be told from a new call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._guards import CompileContext

from noisescope.core.errors import CannotCompileError
from noisescope.core.vocabulary import KINDS
from noisescope.inject.active import Charge
from noisescope.inject.apply import Moment, apply
from noisescope.inject.attention import unfused_attention
from noisescope.inject.ops import is_product, map_operands
from noisescope.inject.watch import Watch, by_name
from noisescope.inject.where import Place, in_backward

Function = Callable[..., Any]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Spot:
    """What a number in a graph stands for: one operator call of one place."""

    watch: str
    place: Place
    operator: str
    ordinal: int


_SPOTS: list[Spot] = []
_NUMBER_OF: dict[tuple[str, str, int], int] = {}
NOWHERE = -1


def while_tracing(function: F) -> F:
    """Run a function when a graph is traced, and put its result in the graph as a constant."""
    return cast(F, torch.compiler.assume_constant_result(function))


@dataclass
class _Trace:
    """What is counted while one graph is traced; a new attempt counts anew."""

    attempt: object = None
    ordinals: dict[tuple[str, str], int] = field(default_factory=dict)
    softmax_at: str = ""
    operands: dict[int, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)


class _Thread(threading.local):
    trace = _Trace()


_HERE = _Thread()


def _trace() -> _Trace:
    attempt = CompileContext.current_trace_id()
    if attempt != _HERE.trace.attempt:
        _HERE.trace = _Trace(attempt)
    return _HERE.trace


def _place(mark: str) -> tuple[Watch, Place]:
    name, _, index = mark.partition(":")
    watch = by_name(name)
    if watch is None:
        raise CannotCompileError("the model carries the mark of an injection that is gone; call torch.compile anew.")
    watch.traced = True
    return watch, watch.places[int(index)]


@while_tracing
def refuse(name: str) -> int:
    """While tracing: stop at a function that hides the operators inside it from the trace."""
    raise CannotCompileError(
        f"{name} hides its operators from the trace, so a compiled model would run without the noise that was asked "
        "for. Run this model uncompiled, or without activation checkpointing."
    )


@while_tracing
def begin(mark: str, operator: str) -> int:
    """While tracing: the number of an operator call in the module of that mark."""
    if not mark:
        return NOWHERE
    _, place = _place(mark)
    if place.passed_over:
        return NOWHERE
    return _number(mark, "linear" if place.linear and operator == "matmul" else operator)


@while_tracing
def finish(mark: str, number: int) -> int:
    """While tracing: the number of the attention that this operator call completes, if it does."""
    trace, operator = _trace(), _SPOTS[number].operator
    if operator == "softmax":
        trace.softmax_at = mark
    if operator not in ("matmul", "bmm") or trace.softmax_at != mark:
        return NOWHERE
    trace.softmax_at = ""
    return _number(mark, "attention")


@while_tracing
def opened(mark: str) -> int:
    """While tracing: a module begins; the number of the operator that it writes out, if it does."""
    _, place = _place(mark)
    if not place.written_out:
        return NOWHERE
    number = _trace().written[mark] = _number(mark, place.written_out)
    return number


@while_tracing
def inside(mark: str) -> int:
    """While tracing: the number of the operator that the running module writes out, if it does."""
    return _trace().written.get(mark, NOWHERE)


@while_tracing
def next_operand(number: int) -> int:
    """While tracing: counts the operands of one operator call."""
    operands = _trace().operands
    operands[number] = operands.get(number, -1) + 1
    return operands[number]


def _number(mark: str, operator: str) -> int:
    watch, place = _place(mark)
    ordinals = _trace().ordinals
    ordinal = ordinals[mark, operator] = ordinals.get((mark, operator), -1) + 1
    key = (mark, operator, ordinal)
    if key not in _NUMBER_OF:
        _NUMBER_OF[key] = len(_SPOTS)
        _SPOTS.append(Spot(watch.name, place, operator, ordinal))
    return _NUMBER_OF[key]


def tap(mark: str, operator: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """While tracing: one operator call with its outlets and the change of its output."""
    if not is_product(function, args):
        return function(*args, **kwargs)
    number = begin(mark, operator)
    if number == NOWHERE:
        return function(*args, **kwargs)
    if operator == "attention":
        return land(unfused_attention(_inner(mark), args, kwargs), number)
    if torch.is_grad_enabled():
        args, kwargs = map_operands(operator, function, (args, kwargs), outlets_of(number))
    out = land(function(*args, **kwargs), number)
    whole = finish(mark, number)
    return out if whole == NOWHERE else land(out, whole)


def _inner(mark: str) -> Function:
    def inner(operator: str, function: Function, *args: Any, **kwargs: Any) -> Any:
        number = begin(mark, operator)
        if torch.is_grad_enabled():
            args, kwargs = map_operands(operator, function, (args, kwargs), outlets_of(number))
        return land(function(*args, **kwargs), number)

    return inner


def outlets_of(number: int) -> Callable[[Any], Any]:
    """Puts an outlet on each operand of one call that needs a gradient; the first one counts the call."""

    def outlet(operand: Any) -> Any:
        if not isinstance(operand, Tensor) or not operand.requires_grad:
            return operand
        return cast(Any, TracedOutlet).apply(operand, number, next_operand(number))

    return outlet


def open_written_out(
    mark: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """While tracing: the call of a module that writes its operator out, with outlets; None leaves it."""
    number = opened(mark)
    if number == NOWHERE or not torch.is_grad_enabled():
        return None
    outlet = outlets_of(number)
    return tuple([outlet(a) for a in args]), {name: outlet(a) for name, a in kwargs.items()}


def with_weight_outlets(mark: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """While tracing: the arguments of a call inside such a module, with outlets on its parameters."""
    number = inside(mark)
    if number == NOWHERE:
        return args
    outlet = outlets_of(number)
    return tuple([outlet(a) if isinstance(a, nn.Parameter) else a for a in args])


def close_written_out(mark: str, out: Any) -> Any:
    """While tracing: the output of such a module; None leaves it."""
    number = inside(mark)
    return None if number == NOWHERE else land(out, number)


def land(out: Any, number: int) -> Any:
    """The output of a call after whatever will be injected when the graph runs."""
    if not isinstance(out, Tensor):
        return out
    if torch.is_grad_enabled():
        return torch.ops.noisescope.corrupt(out, number)
    torch.ops.noisescope.corrupt_(out, number)
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
    if phase == "forward" and in_backward():
        raise CannotCompileError(
            "a compiled graph recomputes its forward inside backward: injected noise would differ between the two. "
            "Switch activation checkpointing off, or train this model uncompiled."
        )
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise CannotCompileError(
            "a CUDA graph would replay the noise of the run that it records. Compile without mode='reduce-overhead' "
            "and without triton.cudagraphs."
        )
    for active in watch.actives:
        active.called = True
    plan = watch.plan(spot.place, spot.operator)
    charges = () if plan is None else plan.forward if phase == "forward" else plan.backward
    for charge in charges:
        if KINDS[charge.active.injection.corruption.kind].needs_operands:
            raise CannotCompileError(
                f"{charge.active.injection.corruption.kind} computes a product anew, and a compiled graph no longer "
                "has its operands: run this model uncompiled."
            )
        moment = Moment(phase, (_count_run(charge, number, operand),), spot.ordinal, operand, int(operand == 0))
        apply(tensor, (charge,), moment)


def _count_run(charge: Charge, number: int, operand: int) -> int:
    key = (number, operand, charge.key)
    run = charge.active.runs.get(key, 0)
    charge.active.runs[key] = run + 1
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
# A CUDA graph would replay the noise of the run that it recorded; with the tag the compiler leaves these calls outside.
_TAGS = tuple(getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name))
_LIBRARY.define("corrupt_(Tensor(a!) out, int number) -> ()", tags=_TAGS)
_LIBRARY.define("corrupt(Tensor out, int number) -> Tensor", tags=_TAGS)
_LIBRARY.define("corrupt_gradient(Tensor grad, int number, int operand) -> Tensor", tags=_TAGS)
_LIBRARY.impl("corrupt_", _corrupt_, "CompositeExplicitAutograd")
_LIBRARY.impl("corrupt", _corrupt, "CompositeExplicitAutograd")
_LIBRARY.impl("corrupt_gradient", _corrupt_gradient, "CompositeExplicitAutograd")
torch.library.register_fake("noisescope::corrupt_", lambda out, number: None, lib=_LIBRARY)
torch.library.register_fake("noisescope::corrupt", lambda out, number: torch.empty_like(out), lib=_LIBRARY)
torch.library.register_fake(
    "noisescope::corrupt_gradient", lambda grad, number, operand: torch.empty_like(grad), lib=_LIBRARY
)
torch.library.register_autograd("noisescope::corrupt", lambda ctx, grad: (grad, None), lib=_LIBRARY)
