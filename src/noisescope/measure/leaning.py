"""Whether errors that are each small enough lean one way together: a drift of less than a last bit shows only so.

Rounding to nearest errs up as often as down. Where the values themselves round one way, as those of a gelu that is
nearly its input, the nearest values are a second measure: only what leans from every measure counts. It does not judge
single values; `rounding` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

LEANS = "each value is within rounding, but together they lean one way"
# Standard deviations of a sum of independent roundings: 1e-9 by chance.
_SIGMAS = 6.0
_FEWEST = 64


def leaning(seen: Tensor, measures: Iterable[Tensor], room: float, step: Tensor, *, by_rows: bool) -> float:
    """The sum of all errors, or of all along the value's sign, in units of what chance allows.

    `measures` are exact values and their roundings, taken one after another while all of them see a lean; `step` the
    largest rounding of each value, `room` the sum of the errors before it. Equal values, or with `by_rows` the values
    of equal rows and of one row, may err as one.
    """
    if seen.numel() < _FEWEST:
        return 0.0
    rest = iter(measures)
    exact = next(rest)
    sign, limit = exact.sign().flatten(), room + _SIGMAS * math.sqrt(float(_dot(step, step)) / 3)
    found = [_sums(seen - exact, sign)]
    while any(_is_above(found, way, limit) for way in (0, 1)):
        measure = next(rest, None)
        if measure is None:
            sums = max(_least([both[way] for both in found]) for way in (0, 1))
            return sums / (room + _SIGMAS * math.sqrt(_variance(exact, step, by_rows=by_rows)))
        found.append(_sums(seen - measure, sign))
    return 0.0


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return torch.dot(one.flatten(), other.flatten())


def _sums(errors: Tensor, sign: Tensor) -> tuple[float, float]:
    """The sum of errors, and of errors along the sign of the value."""
    return float(errors.sum()), float(_dot(errors, sign))


def _is_above(found: Sequence[tuple[float, float]], way: int, limit: float) -> bool:
    sums = _least([both[way] for both in found])
    return math.isfinite(sums) and sums > limit


def _least(values: Sequence[float]) -> float:
    """The smallest of sums of one sign; 0 where their signs differ."""
    same = all(v > 0 for v in values) or all(v < 0 for v in values)
    return min(abs(v) for v in values) if same else 0.0


def _variance(exact: Tensor, step: Tensor, *, by_rows: bool) -> float:
    if by_rows:
        width = exact.shape[-1]
        _, group = torch.unique(exact.reshape(-1, width), dim=0, return_inverse=True)
        step = step.reshape(-1, width).sum(-1)
    else:
        _, group = torch.unique(exact, return_inverse=True)
    whole = torch.zeros(int(group.max()) + 1, dtype=step.dtype).index_add_(0, group.reshape(-1), step.reshape(-1))
    return float(whole.square().sum()) / 3
