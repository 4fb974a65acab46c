"""Tests that may look at the data after every batch: whether a mean, or a degradation, is above or below a limit.

Samples have to come in an order that knows nothing of their values, such as a shuffled one. An estimate made where
such a test has stopped is not corrected for the stopping.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from noisescope.core.errors import BadInputError
from noisescope.measure.significance import degradation_differences
from noisescope.measure.statistics import FloatArray, finite, paired
from noisescope.measure.verdicts import UNDECIDED, Limits, Verdict

Side = Literal["undecided", "above", "below"]
# The share of the largest bet that cannot lose all: 1 would be ruined by a single value at the edge.
_BOLDNESS = 0.75
# Where the sub-gaussian limits are narrowest, in samples.
_TUNED_TO = 50


@dataclass(frozen=True)
class Decision:
    """Which side of the limit the mean is on, and after how many samples that was decided, or how many were seen."""

    side: Side
    samples: int


@dataclass(frozen=True)
class MetricRange:
    """The values that a metric can have; infinity is allowed.

    Without an upper limit of a loss, noisy values can show that a degradation is above a limit, never that it is below.
    """

    higher_is_better: bool = True
    clean: tuple[float, float] = (0.0, 1.0)
    noisy: tuple[float, float] = (0.0, 1.0)

    def support(self, limit: float) -> tuple[float, float]:
        """The range of the differences whose mean is above 0 where the degradation is above the limit."""
        if self.higher_is_better:
            kept = sorted((1.0 - limit) * c for c in self.clean)
            return kept[0] - self.noisy[1], kept[1] - self.noisy[0]
        kept = sorted((1.0 + limit) * c for c in self.clean)
        return self.noisy[0] - kept[1], self.noisy[1] - kept[0]


ACCURACY = MetricRange()


def evidence(values: npt.ArrayLike, limit: float, support: tuple[float, float]) -> tuple[FloatArray, FloatArray]:
    """Log evidence after each sample that the mean is above the limit, and that it is below.

    Samples run along the last axis. Each is the capital of a gambler who starts with 1 and bets on that side by what
    was seen before (Waudby-Smith and Ramdas 2024, JRSS B 86, aGRAPA bets). If the mean is not on that side, the
    capital ever reaches 1 / alpha with probability <= alpha.
    """
    x = np.asarray(values, dtype=np.float64)
    low, high = support
    if not np.isfinite(x).all() or (x < low).any() or (x > high).any():
        raise BadInputError(f"values from {x.min():g} to {x.max():g}: expected all of them in [{low:g}, {high:g}].")
    if not low < limit < high:
        raise BadInputError(f"limit {limit:g}: expected one inside ({low:g}, {high:g}), else there is nothing to test.")
    return _capital(x - limit, limit - low, high - limit), _capital(limit - x, high - limit, limit - low)


def _capital(gains: FloatArray, loss: float, win: float) -> FloatArray:
    """Log capital of bets on a positive mean of values in [-loss, win]."""
    if np.isinf(loss):
        return np.zeros_like(gains)
    seen = np.arange(1, gains.shape[-1] + 1)
    # One imagined sample at the limit, as far off as the nearer edge, keeps the first bets small.
    means = np.cumsum(gains, axis=-1) / (seen + 1)
    squares = (np.cumsum(gains**2, axis=-1) + min(loss, win) ** 2) / (seen + 1)
    bets = np.clip(means / squares, 0.0, _BOLDNESS / loss)
    before = np.concatenate([np.zeros_like(bets[..., :1]), bets[..., :-1]], axis=-1)
    return np.asarray(np.cumsum(np.log1p(before * gains), axis=-1))


def decide(values: npt.ArrayLike, limit: float, support: tuple[float, float], *, alpha: float = 0.05) -> Decision:
    """Where the mean of bounded values lies, from all samples so far in the order in which they came.

    Calling it again with more samples never changes a decision. It is wrong with probability <= alpha, however often
    it is called and whenever one stops; each side has half of alpha.
    """
    x = finite(values, "values", (1,))
    if limit >= support[1]:
        return Decision("below", 0)
    if limit <= support[0]:
        return Decision("above", 0)
    above, below = evidence(x, limit, support)
    bar = np.log(2.0 / _checked(alpha))
    return _first(above >= bar, below >= bar)


def decide_subgaussian(values: npt.ArrayLike, limit: float, spread: float, *, alpha: float = 0.05) -> Decision:
    """As `decide`, for values without bounds whose tails are no heavier than a Gaussian's of a known spread."""
    x = finite(values, "values", (1,))
    low, high = subgaussian_sequence(x, spread, alpha=alpha)
    return _first(low > limit, high < limit)


def decide_degradation(
    clean: npt.ArrayLike,
    noisy: npt.ArrayLike,
    limit: float,
    metric: MetricRange = ACCURACY,
    *,
    alpha: float = 0.05,
) -> Decision:
    """As `decide`, for a degradation: clean [samples], noisy [samples] or [seeds, samples], so far."""
    c, n = paired(clean, noisy)
    differences = degradation_differences(c, n, limit, higher_is_better=metric.higher_is_better)
    return decide(differences, 0.0, metric.support(limit), alpha=alpha)


def decide_band(
    clean: npt.ArrayLike,
    noisy: npt.ArrayLike,
    limits: Limits,
    metric: MetricRange = ACCURACY,
    *,
    alpha: float = 0.05,
) -> Verdict:
    """The band of a degradation once every limit is decided and they agree; wrong with probability <= alpha in all.

    Naming a wrong band takes a wrong decision on the limit next to the truth, on one side or the other, so that more
    limits do not add to the error.
    """
    sides = [decide_degradation(clean, noisy, limit, metric, alpha=alpha).side for limit in limits.values]
    low = next((i for i, side in enumerate(sides) if side != "above"), len(sides))
    high = len(sides) - next((i for i, side in enumerate(reversed(sides)) if side != "below"), len(sides))
    if low == high:
        return Verdict(limits.names[low], (limits.names[low],))
    return Verdict(UNDECIDED, limits.names[low : high + 1], None)


def confidence_sequence(
    values: npt.ArrayLike, support: tuple[float, float], *, alpha: float = 0.05
) -> tuple[FloatArray, FloatArray]:
    """Low and high limits after each sample that hold the mean of bounded values at all times at once.

    Predictable plug-in empirical Bernstein (Waudby-Smith and Ramdas 2024, theorem 2). Samples run along the last axis.
    """
    low, high = support
    x = (np.asarray(values, dtype=np.float64) - low) / (high - low)
    if not np.isfinite(x).all() or x.min() < 0.0 or x.max() > 1.0:
        raise BadInputError(f"values outside [{low:g}, {high:g}]: expected finite bounds and every value inside.")
    seen, bar = np.arange(1, x.shape[-1] + 1), np.log(2.0 / _checked(alpha))
    means = (0.5 + np.cumsum(x, axis=-1)) / (seen + 1)
    variances = (0.25 + np.cumsum((x - means) ** 2, axis=-1)) / (seen + 1)
    rates = np.minimum(np.sqrt(2.0 * bar / (_before(variances, 0.25) * seen * np.log1p(seen))), 0.5)
    costs = (x - _before(means, 0.5)) ** 2 * (-np.log1p(-rates) - rates)
    total = np.cumsum(rates, axis=-1)
    centre, half = np.cumsum(rates * x, axis=-1) / total, (bar + np.cumsum(costs, axis=-1)) / total
    lows = np.maximum.accumulate(np.maximum(centre - half, 0.0), axis=-1)
    highs = np.minimum.accumulate(np.minimum(centre + half, 1.0), axis=-1)
    return low + (high - low) * lows, low + (high - low) * highs


def subgaussian_sequence(values: npt.ArrayLike, spread: float, *, alpha: float = 0.05) -> tuple[FloatArray, FloatArray]:
    """As `confidence_sequence`, for values whose tails are no heavier than a Gaussian's of a known spread.

    Robbins' normal mixture: |S_t - t mean| <= sqrt((v + r) log((v + r) / (r alpha^2))), v = t spread^2.
    """
    if not 0.0 < spread < np.inf:
        raise BadInputError(f"spread {spread!r}: expected a finite standard deviation above 0.")
    x = np.asarray(values, dtype=np.float64)
    seen, bar = np.arange(1, x.shape[-1] + 1), -2.0 * np.log(_checked(alpha))
    tuning = _TUNED_TO * spread**2 / (bar + np.log1p(bar))
    reach = seen * spread**2 + tuning
    half = np.sqrt(reach * (np.log(reach / tuning) + bar)) / seen
    means = np.cumsum(x, axis=-1) / seen
    return np.maximum.accumulate(means - half, axis=-1), np.minimum.accumulate(means + half, axis=-1)


def _before(running: FloatArray, first: float) -> FloatArray:
    return np.concatenate([np.full_like(running[..., :1], first), running[..., :-1]], axis=-1)


def _checked(alpha: float) -> float:
    if not 0.0 < alpha < 1.0:
        raise BadInputError(f"alpha {alpha!r}: expected a probability between 0 and 1, such as 0.05.")
    return alpha


def _first(above: npt.NDArray[np.bool_], below: npt.NDArray[np.bool_]) -> Decision:
    crossed = np.flatnonzero(above | below)
    if not len(crossed):
        return Decision("undecided", len(above))
    return Decision("above" if above[crossed[0]] else "below", int(crossed[0]) + 1)
