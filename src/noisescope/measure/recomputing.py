"""Puts what the host computes in the place of what a run had: the outputs of a module, or of one torch call.

Nothing is judged here; what it takes to compute a module's code on the host is in `replay`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from noisescope.measure.replay import (
    Call,
    CannotReplayError,
    OperatorOf,
    as_it_is,
    aside,
    computed,
    mapped,
    on_host,
    tensors_of,
    widened,
)


def recomputed(call: Call, operator_of: OperatorOf) -> Any:
    """The output of a module as its code makes it of its inputs, in the form and the dtypes of the run."""
    with aside():
        _, out = computed(call, operator_of, rounding=True, change=as_it_is)
        seen, right = tensors_of([call.out]), tensors_of([out])
        if not seen or [x.shape for x in seen] != [x.shape for x in right]:
            raise CannotReplayError(f"an output of type {type(call.out).__name__} is not that of its code")
        values = iter(right)
        return mapped(call.out, lambda x: next(values).to(x) if x.is_floating_point() else x)


def overwrite(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
    """Write into the output of a torch call what its inputs give in float64."""
    with aside():
        if any(x.data_ptr() == out.data_ptr() for x in tensors_of([args, kwargs]) if x.numel()):
            raise CannotReplayError("it works in place, so its input is gone")
        given, named = mapped(on_host(args), widened), mapped(on_host(kwargs), widened)
        try:
            wide = _grouped if "grouped_mm" in getattr(function, "__name__", str(function)) else function
            out.copy_(wide(*given, **{name: widened(value) for name, value in named.items()}))
        except (RuntimeError, TypeError) as problem:
            raise CannotReplayError(f"{type(problem).__name__}: {problem}") from problem


def _grouped(x: Tensor, weight: Tensor, offs: Tensor | None = None, **_: Any) -> Tensor:
    """The product of each group of rows with its own matrix, of which torch has none in float64."""
    if offs is None or x.dim() != 2 or weight.dim() != 3:
        raise TypeError("a grouped product of an unusual form")
    ends = offs.tolist()
    groups = zip([0, *ends[:-1]], ends, weight, strict=True)
    found = torch.cat([x[start:end] @ matrix for start, end, matrix in groups])
    return torch.nn.functional.pad(found, (0, 0, 0, len(x) - len(found)))
