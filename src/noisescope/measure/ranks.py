"""Ranks of units by their mean over shared samples, with intervals and ties in place of a bare order.

It judges no unit against a limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from noisescope.core.errors import BadInputError
from noisescope.measure.statistics import DEFAULT, FloatArray, Resampling, finite, resample_weights

# Cells of one block of resampled differences between units.
_BLOCK_CELLS = 1_000_000


@dataclass(frozen=True)
class UnitRank:
    """One unit: its score, its rank by estimate, and the ranks that it may have. Rank 1 has the largest score."""

    unit: int
    score: float
    rank: int
    low: int
    high: int


@dataclass(frozen=True)
class Ranking:
    """Units from the largest score down, and the runs of them whose order is not decided.

    All intervals and all decided orders hold at once, at the confidence. Groups are the longest runs in which no pair
    is decided; they overlap where a unit is tied with others on both sides.
    """

    units: tuple[UnitRank, ...]
    groups: tuple[tuple[int, ...], ...]
    confidence: float
    samples: int

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(unit.unit for unit in self.units)

    @property
    def maybe_first(self) -> tuple[int, ...]:
        """The units that may have rank 1."""
        return tuple(unit.unit for unit in self.units if unit.low == 1)


def rank_units(scores: npt.ArrayLike, *, plan: Resampling = DEFAULT) -> Ranking:
    """The ranking of units from scores [units, samples] or [units, samples, seeds], the same samples for all units.

    Every pair is compared by the difference of means over its standard error, against the largest such difference
    over all pairs in one shared resample of the samples (max-T; Mogstad, Romano, Shaikh and Wilhelm 2024, Review of
    Economic Studies 91). For degradations of one clean run, rank the harm per sample: the clean mean divides all alike.
    """
    values = finite(scores, "scores", (2, 3))
    values = values if values.ndim == 2 else values.mean(axis=2)
    units, samples = values.shape
    if units < 2 or samples < 2:
        raise BadInputError(f"scores of {units} units and {samples} samples: expected at least 2 of each.")
    ahead = decided_pairs(values, plan)
    means = values.mean(axis=1)
    order = np.argsort(-means, kind="stable")
    low, high = 1 + ahead.sum(axis=0), units - ahead.sum(axis=1)
    ranked = tuple(
        UnitRank(int(u), float(means[u]), place, int(low[u]), int(high[u])) for place, u in enumerate(order, start=1)
    )
    undecided = ~(ahead | ahead.T)[np.ix_(order, order)]
    groups = tuple(tuple(int(u) for u in order[start:stop]) for start, stop in _runs(undecided))
    return Ranking(ranked, groups, plan.confidence, samples)


def decided_pairs(values: FloatArray, plan: Resampling) -> npt.NDArray[np.bool_]:
    """[units, units]: whether the first unit's mean is decided to be above the second's, for all pairs at once."""
    units = len(values)
    i, j = np.triu_indices(units, k=1)
    centred = values - values.mean(axis=1, keepdims=True)
    errors, apart = _pair_errors(centred, i, j), values.mean(axis=1)[i] - values.mean(axis=1)[j]
    # A pair that differs by the same in every sample has no error, and is decided by any difference at all.
    spread = errors > 0.0
    limit = _critical(centred, (i[spread], j[spread], errors[spread]), plan) if spread.any() else 0.0
    decided = np.where(spread, np.abs(apart) > limit * errors, np.abs(apart) > 1e-12 * np.abs(values).max())
    ahead = np.zeros((units, units), dtype=bool)
    ahead[i, j] = decided & (apart > 0)
    ahead[j, i] = decided & (apart < 0)
    return ahead


def _pair_errors(centred: FloatArray, i: npt.NDArray[np.intp], j: npt.NDArray[np.intp]) -> FloatArray:
    """Standard errors of the paired differences of means; what rounding alone would leave counts as none."""
    samples = centred.shape[1]
    covariance = centred @ centred.T / (samples * (samples - 1))
    own = np.diag(covariance)
    variance = own[i] + own[j] - 2.0 * covariance[i, j]
    return np.sqrt(np.where(variance > 1e-12 * (own[i] + own[j]), variance, 0.0))


def _critical(
    centred: FloatArray, pairs: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], FloatArray], plan: Resampling
) -> float:
    """The quantile of the largest |difference| / error over all pairs, over the shared resamples."""
    i, j, errors = pairs
    rows = max(1, _BLOCK_CELLS // len(i))
    largest = []
    for weights in resample_weights(centred.shape[1], plan):
        shifts = weights @ centred.T / centred.shape[1]
        for start in range(0, len(shifts), rows):
            block = shifts[start : start + rows]
            largest.append((np.abs(block[:, i] - block[:, j]) / errors).max(axis=1))
    return float(np.quantile(np.concatenate(largest), plan.confidence))


def _runs(undecided: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The longest runs [start, stop) in which every pair is undecided, none inside another."""
    runs: list[tuple[int, int]] = []
    stop, units = 0, len(undecided)
    for start in range(units):
        reached = max(stop, start + 1)
        while reached < units and undecided[start:reached, reached].all():
            reached += 1
        if reached > stop:
            runs.append((start, reached))
        stop = reached
    return runs
