"""Means over samples and training seeds at once, with intervals that hold for other samples and for other seeds.

Every training seed answers every sample, so both are drawn at random and crossed. No level is chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from noisescope.core.errors import BadInputError
from noisescope.measure.statistics import FloatArray, Interval, finite


@dataclass(frozen=True)
class Crossed:
    """A mean of [seeds, samples] with its standard error and the degrees of freedom behind that."""

    estimate: float
    error: float
    freedom: float
    samples: int

    def interval(self, confidence: float = 0.95) -> Interval:
        """The limits by Student's t."""
        half = float(stats.t.ppf((1.0 + confidence) / 2.0, self.freedom)) * self.error
        return Interval(self.estimate, self.estimate - half, self.estimate + half, confidence, self.samples)

    def p_above(self, limit: float = 0.0) -> float:
        """One-sided p-value that the mean is above the limit."""
        return float(stats.t.sf((self.estimate - limit) / self.error, self.freedom))

    def p_below(self, limit: float = 0.0) -> float:
        """One-sided p-value that the mean is below the limit."""
        return float(stats.t.cdf((self.estimate - limit) / self.error, self.freedom))


def crossed_mean(values: npt.ArrayLike) -> Crossed:
    """The mean of [seeds, samples] as a two-way layout of random effects without replication.

    The variance of the mean is (MS_seeds + MS_samples - MS_rest) / (seeds * samples), with degrees of freedom by
    Satterthwaite 1946 (Biometrics Bulletin 2): with 3 seeds, 95 % intervals hold in 93 to 97 % of simulations. It is
    never taken to be less than the larger of the first two gives, nor the error less than that of one sample in one
    seed.
    """
    x = finite(values, "values", (2,))
    seeds, samples = x.shape
    if seeds < 2 or samples < 2:
        raise BadInputError(f"values of shape {x.shape}: expected at least 2 seeds and 2 samples.")
    by_seed, by_sample, rest = _mean_squares(x)
    whole = by_seed + by_sample - rest
    terms = (by_seed**2 / (seeds - 1), by_sample**2 / (samples - 1), rest**2 / ((seeds - 1) * (samples - 1)))
    least = max(by_seed, by_sample)
    freedom = whole**2 / sum(terms) if whole > 0 and sum(terms) > 0 else float(seeds - 1)
    if whole < least:
        whole, freedom = least, float(seeds - 1 if by_seed >= by_sample else samples - 1)
    error = max(float(np.sqrt(whole / x.size)), 1.0 / x.size)
    return Crossed(float(x.mean()), error, max(freedom, float(min(seeds, samples) - 1)), samples)


def _mean_squares(x: FloatArray) -> tuple[float, float, float]:
    """Of seeds, samples and what neither explains."""
    seeds, samples = x.shape
    grand = x.mean()
    rows, columns = x.mean(axis=1, keepdims=True) - grand, x.mean(axis=0, keepdims=True) - grand
    rest = x - grand - rows - columns
    return (
        float(samples * (rows**2).sum() / (seeds - 1)),
        float(seeds * (columns**2).sum() / (samples - 1)),
        float((rest**2).sum() / ((seeds - 1) * (samples - 1))),
    )


def retained(clean: npt.ArrayLike, noisy: npt.ArrayLike, *, higher_is_better: bool = True) -> FloatArray:
    """Values [seeds, samples] whose mean is the retention: noisy over clean, or clean over noisy if less is better.

    To first order a sample moves the ratio of two means by (above - ratio * below) / mean(below).
    """
    c, n = finite(clean, "clean", (2,)), finite(noisy, "noisy", (2,))
    if c.shape != n.shape:
        raise BadInputError(f"clean {c.shape} and noisy {n.shape}: expected the same seeds and samples.")
    above, below = (n, c) if higher_is_better else (c, n)
    if below.mean() <= 0.0:
        raise BadInputError(f"a mean score of {below.mean():g}: nothing can be a share of it; expected one above 0.")
    ratio = above.mean() / below.mean()
    return np.asarray(ratio + (above - ratio * below) / below.mean(), dtype=np.float64)
