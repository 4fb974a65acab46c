"""Whether errors that are each small enough lean one way together: a drift of less than a last bit shows only so.

Rounding to nearest errs up as often as down. Where the values themselves round one way, as those of a gelu that is
nearly its input, the nearest values are a second measure: only what leans from every measure counts. It does not judge
single values; `rounding` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

LEANS = "each value is within rounding, but together they lean one way"
# Standard deviations of a sum of independent roundings: 1e-9 by chance.
_SIGMAS = 6.0
_FEWEST = 64


def leaning(seen: Tensor, measures: Sequence[Tensor], room: float, step: Tensor, *, by_rows: bool) -> float:
    """The sum of all errors, or of all along the value's sign, in units of what chance allows.

    `measures` are exact values and their roundings, `step` the largest rounding of each value, `room` the sum of the
    errors before it. Equal values, or with `by_rows` the values of equal rows and of one row, may err as one.
    """
    if seen.numel() < _FEWEST:
        return 0.0
    exact = measures[0]
    errors = [seen - measure for measure in measures]
    sums = max(_least([e.sum() for e in errors]), _least([(e * exact.sign()).sum() for e in errors]))
    if not math.isfinite(sums) or sums <= room + _SIGMAS * math.sqrt(float(step.square().sum()) / 3):
        return 0.0
    return sums / (room + _SIGMAS * math.sqrt(_variance(exact, step, by_rows=by_rows)))


def _least(sums: Sequence[Tensor]) -> float:
    """The smallest of sums of one sign; 0 where their signs differ."""
    values = [float(s) for s in sums]
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
