"""Computes on the host, in float64, what a module must have made of its inputs and of what its children gave.

The class's own code runs on a shell of the module: parameters in float64, children that answer with what they gave in
the run. So the arithmetic between the children is checked as well: residual sums, gates, rotations, reshapes. It runs
twice, once exact and once with every result rounded to the dtype that it had in the run; the distance between the two
is what rounding does to this code. Nothing of the module that ran is called, and no hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from noisescope.measure.leaning import leaning
from noisescope.measure.rounding import half_spacing, host, is_short, rounded, sum_unit

# What the last bit of every input does, times this, covers the roundings inside of one operator.
_DITHERS = 16.0
# Code asks for float32 inside whatever the dtype of the model, so its last bit is taken also for float64.
_LAST_BIT = sum_unit(torch.float32)
# The squares of a row of larger values may add up to more than float32 holds, and then anything comes out.
_SQUARED = 1e17
Change = Callable[[Tensor], Tensor]
OperatorOf = Callable[[Any], str | None]
Row = tuple[str, Tensor, Tensor]
_CASTS = {
    Tensor.float: torch.float32,
    Tensor.half: torch.float16,
    Tensor.bfloat16: torch.bfloat16,
    Tensor.double: torch.float64,
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")
_MORE_HOOKS = ("_forward_hooks_always_called", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Operation:
    """One call of an operator in a module's own code as the run had it."""

    operator: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any


@dataclass(frozen=True)
class Call:
    """One call of a module as the run had it, with what it called: modules, and operators that were checked apart."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    children: list[Call] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


class CannotReplayError(Exception):
    """A module cannot be computed again from what was seen of it."""


@contextmanager
def aside() -> Iterator[None]:
    """Neither modes of anybody nor automatic casting see what the host computes."""
    modes = []
    while torch._C._len_torch_function_stack():
        modes.append(_pop_mode())
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)


class Wide(TorchFunctionMode):
    """Keeps every floating tensor in float64, whatever the code asks for; remembers the dtype it would have had.

    With `rounding` the values are rounded to that dtype after every call. Operators that `told` knows are answered
    from the run.
    """

    def __init__(self, told: Told, *, rounding: bool) -> None:
        super().__init__()
        self.told, self.rounding = told, rounding

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one torch call in float64."""
        kwargs = kwargs or {}
        if getattr(func, "__self__", None) is Tensor.dtype:
            return nominal(args[0])
        answer = self.told.answer(func, args, kwargs)
        if answer is not None:
            return answer
        asked = _CASTS.get(func) or _asked(args, kwargs)
        if func in _CASTS:
            out: Any = args[0].double()
        else:
            wide_args = tuple(widened(a) for a in args)
            out = func(*wide_args, **{name: widened(value) for name, value in kwargs.items()})
        given = [x for x in _tensors([args, kwargs]) if x.is_floating_point()]
        dtype = asked or _promoted(given)
        return mapped(out, lambda x: self._named(x, dtype, given))

    def _named(self, x: Tensor, dtype: torch.dtype | None, given: list[Tensor]) -> Tensor:
        if not x.is_floating_point():
            return x
        dtype = dtype or x.dtype
        x = x if x.dtype is torch.float64 else x.double()
        if self.rounding and dtype is not torch.float64 and not _is_rounded(x, dtype, given):
            x = rounded(x, dtype)
        return _with_dtype(x, dtype)


class Told:
    """Answers in place of the children and operators of a module with what they gave; keeps what they were asked."""

    def __init__(self, call: Call, operator_of: OperatorOf, change: Change) -> None:
        self.operator_of, self.change = operator_of, change
        self.asked: list[tuple[str, Any, Any]] = []
        self._operations: dict[str, list[Operation]] = {}
        for operation in reversed(call.operations):
            self._operations.setdefault(operation.operator, []).append(operation)

    def answer(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What the run's call of an operator gave; None where it had none."""
        waiting = self._operations.get(self.operator_of(function) or "")
        if not waiting:
            return None
        operation = waiting.pop()
        return self.said(operation.operator, (operation.args, operation.kwargs), (args, kwargs), operation.out)

    def said(self, name: str, seen: Any, given: Any, out: Any) -> Any:
        """Keep a question with the one of the run; the run's answer."""
        self.asked.append((name, list(seen), list(given)))
        return mapped(on_host(out), self.change)


def nominal(x: Tensor) -> torch.dtype:
    """The dtype that a tensor of a replay had in the run."""
    found: torch.dtype = getattr(x, "_nominal", None) or x.dtype
    return found


def _with_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    # A tensor object of its own: code that casts to the dtype at hand gets the very object back.
    marked: Any = x.detach()
    marked._nominal = dtype
    found: Tensor = marked
    return found


def _asked(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    for value in (*kwargs.values(), *args):
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return value
    # x.to(other), x.type_as(other): the tensors decide below.
    return None


def widened(value: Any) -> Any:
    """An argument in float64, also where it asks for a dtype."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() and value.dtype is not torch.float64 else value
    if isinstance(value, tuple | list) and any(isinstance(v, Tensor) for v in value):
        return type(value)(widened(v) for v in value)
    return value


def _promoted(given: list[Tensor]) -> torch.dtype | None:
    found: torch.dtype | None = None
    for x in given:
        if x.dim() or found is None:
            found = nominal(x) if found is None else torch.promote_types(found, nominal(x))
    return found


def _is_rounded(x: Tensor, dtype: torch.dtype, given: list[Tensor]) -> bool:
    """Whether a result is a view of what went in, in the same dtype: no value is new. What works in place is none."""
    if any(x is one for one in given):
        return False
    memory = x.untyped_storage().data_ptr()
    return any(nominal(one) is dtype and one.untyped_storage().data_ptr() == memory for one in given)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A structure with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        parts = [mapped(item, change) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict) and type(value) is dict:
        return {name: mapped(item, change) for name, item in value.items()}
    return value


def on_host(value: Any) -> Any:
    """A structure of tensors in float64 on the host, each with the dtype that it had."""
    return mapped(value, _moved)


def _moved(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x.detach().cpu()
    moved: Any = _with_dtype(host(x), x.dtype)
    # What code hands on as it is need not be compared.
    moved._source = x
    found: Tensor = moved
    return found


def tensors_of(value: Any) -> list[Tensor]:
    """The floating tensors in what a module was given or gave."""
    values = list(value.values()) if isinstance(value, Mapping) else value
    return [x for x in _tensors(values) if x.is_floating_point()]


class _Stub:
    """Stands for a child of a shell."""

    def __init__(self, name: str, module: nn.Module, calls: list[Call], told: Told) -> None:
        self._name, self._module, self._calls, self._told = name, module, iter(calls), told

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = next(self._calls, None)
        if call is None:
            raise CannotReplayError(f"{type(self._module).__name__} was not seen to be called there")
        return self._told.said(self._name, (call.args, call.kwargs), (args, kwargs), call.out)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __getitem__(self, index: Any) -> Any:
        raise CannotReplayError(f"{type(self._module).__name__} is indexed")


@dataclass(frozen=True)
class Replayed:
    """One tensor of the run, its exact value, its value with roundings, and its answer to a dither of the inputs.

    `name` says what it was given to; it is empty for what the module gave itself. Without the dither less is allowed.
    """

    name: str
    seen: Tensor
    exact: Tensor
    rough: Tensor
    dithered: Tensor | None

    @property
    def allowed(self) -> Tensor:
        """The error that rounding allows: twice what it does here, plus the answer to the last bit of the sums.

        Twice, for a value may be rounded the other way in the run than on the host.
        """
        return (self.rough - self.exact).abs_().mul_(2).add_(self.answer)

    @cached_property
    def answer(self) -> Tensor:
        """The part of it for the last bit of the sums, which is the same along a row."""
        largest = self.exact.abs().amax(-1, keepdim=True).mul_(_LAST_BIT)
        if self.dithered is not None:
            largest = largest.maximum((self.dithered - self.exact).abs_().amax(-1, keepdim=True))
        return largest.mul_(_DITHERS + self.seen.shape[-1] ** 0.5)

    @property
    def lean(self) -> float:
        """How far all values together lean one way, in units of what chance allows."""
        if not is_short(self.seen.dtype):
            return 0.0
        step = half_spacing(self.exact.abs(), self.seen.dtype).mul_(2).add_((self.rough - self.exact).abs_())
        room = float(self.answer.sum()) * self.seen.shape[-1]
        return leaning(host(self.seen), self._measures(), room, step, by_rows=True)

    def _measures(self) -> Iterator[Tensor]:
        yield self.exact
        yield rounded(self.exact, self.seen.dtype)
        yield self.rough


def replay(call: Call, operator_of: OperatorOf, *, dithering: bool = True) -> tuple[int, list[Replayed]]:
    """What a module gave, and what it gave to its children and operators, computed on the host.

    Returns how many values are the same to the last bit and the tensors that are not. Raises CannotReplayError where
    that cannot be done.
    """
    with aside():
        rough = _run(call, operator_of, rounding=True)
        same = [_is_same(row[1], row[2]) for row in rough]
        equal = sum(row[1].numel() for row, is_same in zip(rough, same, strict=True) if is_same)
        if all(same):
            return equal, []
        exact = _run(call, operator_of, rounding=False)
        dithered = _run(call, operator_of, rounding=False, change=_Dither()) if dithering else [None] * len(same)
    runs = [row for row in zip(rough, exact, dithered, same, strict=True) if not row[3]]
    return equal, [Replayed(r[0], r[1], e[2], r[2], None if d is None else d[2]) for r, e, d, _ in runs]


def _is_same(seen: Tensor, rough: Tensor) -> bool:
    if getattr(rough, "_source", None) is seen:
        return True
    return torch.equal(rough.to(seen.dtype), seen.detach().cpu())


def _run(call: Call, operator_of: OperatorOf, *, rounding: bool, change: Change | None = None) -> list[Row]:
    told, out = computed(call, operator_of, rounding=rounding, change=change or as_it_is)
    rows = []
    for name, seen, given in [*told.asked, ("", [call.out], [out])]:
        rows += _matched(name, _floats(seen), _floats(given))
    return rows


def computed(call: Call, operator_of: OperatorOf, *, rounding: bool, change: Change) -> tuple[Told, Any]:
    """What a module's code gives on a shell of it, and what that asked its children and operators."""
    told = Told(call, operator_of, change)
    body = _shell(call.module, call, told, "")
    args, kwargs = mapped(on_host(call.args), change), mapped(on_host(call.kwargs), change)
    try:
        with Wide(told, rounding=rounding):
            return told, type(call.module).forward(body, *args, **kwargs)
    except CannotReplayError:
        raise
    except Exception as problem:
        raise CannotReplayError(f"{type(problem).__name__}: {problem}") from problem


def _floats(value: Any) -> list[Tensor]:
    return [x for x in _tensors(value) if x.is_floating_point() and x.dim()]


def _matched(name: str, seen: list[Tensor], given: list[Tensor]) -> list[Row]:
    shapes = [x.shape for x in seen], [x.shape for x in given]
    if shapes[0] != shapes[1]:
        raise CannotReplayError(f"tensors of shapes {shapes[0]} in the run, {shapes[1]} on the host")
    return [(name, *pair) for pair in zip(seen, given, strict=True)]


def as_it_is(x: Tensor) -> Tensor:
    """No change."""
    return x


class _Dither:
    """Moves every value by the last bit of the sums, up or down by chance; to infinity where its square may be so."""

    def __init__(self) -> None:
        self.signs = torch.Generator().manual_seed(0)

    def __call__(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        dtype = nominal(x)
        signs = torch.randint(0, 2, x.shape, dtype=torch.int8, generator=self.signs) * 2 - 1
        moved = x * (1 + _LAST_BIT * signs)
        return _with_dtype(moved if dtype is torch.float64 else moved.where(x.abs() < _SQUARED, torch.inf), dtype)


def _shell(module: nn.Module, call: Call, told: Told, path: str) -> Any:
    body = object.__new__(type(module))
    kept = {n: v for n, v in module.__dict__.items() if n not in ("forward", *_HOOKS, *_MORE_HOOKS)}
    body.__dict__.update(kept)
    body.__dict__.update({name: {} for name in (*_HOOKS, *_MORE_HOOKS)})
    body.__dict__["_parameters"] = {n: None if p is None else on_host(p) for n, p in module._parameters.items()}
    body.__dict__["_buffers"] = {n: None if b is None else on_host(b) for n, b in module._buffers.items()}
    parts = body.__dict__["_modules"] = {}
    for name, child in module.named_children():
        calls = [c for c in call.children if c.module is child]
        inner = f"{path}.{name}" if path else name
        if not calls and any(True for _ in child.children()):
            # A list of modules is never called itself; its members are.
            parts[name] = _shell(child, call, told, inner)
        else:
            parts[name] = _Stub(inner, child, calls, told)
    return body
