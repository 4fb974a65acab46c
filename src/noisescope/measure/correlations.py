"""Pearson, log-Pearson and Spearman correlation of two figures per unit, with p-value and bootstrap interval.

It expects nothing of a correlation; what is found is reported.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.measure.statistics import DEFAULT, FloatArray, Interval, Resampling, finite, resample_weights

Method = Literal["spearman", "pearson", "log_pearson"]
METHODS = ("spearman", "pearson", "log_pearson")
# Up to 8! = 40320 orders are counted out; beyond, Student's approximation of the p-value is good.
_ENUMERABLE = 8


@dataclass(frozen=True)
class Correlation:
    """A coefficient with its interval over units and the two-sided p-value of no relation."""

    method: str
    interval: Interval
    p_value: float


def correlate(
    first: npt.ArrayLike, second: npt.ArrayLike, *, method: Method = "spearman", plan: Resampling = DEFAULT
) -> Correlation:
    """The correlation of two arrays [units]; `log_pearson` is Pearson's of the logarithms."""
    if method not in METHODS:
        raise unknown_name("correlation method", method, METHODS)
    x, y = _checked(first, "first", method), _checked(second, "second", method)
    if x.shape != y.shape or len(x) < 4:
        raise BadInputError(f"{len(x)} and {len(y)} units: expected as many in both, and at least 4.")
    ranked = method == "spearman"
    seen = _pearson(np.ones((1, len(x))), _rank(x) if ranked else x, _rank(y) if ranked else y)[0]
    draws = np.concatenate([_resampled(w, x, y, ranked=ranked) for w in resample_weights(len(x), plan)])
    low, high = _fisher_interval(float(seen), draws, plan, swaps_of=len(x) if ranked else None)
    return Correlation(method, Interval(float(seen), low, high, plan.confidence, len(x)), _p_value(x, y, ranked=ranked))


def _checked(values: npt.ArrayLike, what: str, method: str) -> FloatArray:
    x = finite(values, what, (1,))
    if method == "log_pearson":
        if x.min() <= 0.0:
            raise BadInputError(f"{what}: smallest value {x.min():g}; logarithms need values above 0, Spearman none.")
        x = np.log(x)
    if np.ptp(x) <= 1e-12 * np.abs(x).max():
        raise BadInputError(f"{what}: all {len(x)} values are {x[0]:g}; a constant correlates with nothing.")
    return x


def _rank(x: FloatArray) -> FloatArray:
    return np.asarray(stats.rankdata(x), dtype=np.float64)


def _resampled(weights: FloatArray, x: FloatArray, y: FloatArray, *, ranked: bool) -> FloatArray:
    if not ranked:
        return _pearson(weights, x, y)
    return _pearson(weights, weighted_ranks(weights, x), weighted_ranks(weights, y))


def weighted_ranks(weights: FloatArray, x: FloatArray) -> FloatArray:
    """Mid-ranks [resamples, units] of the values in each resample, with ties, from how often each unit was drawn."""
    _, group = np.unique(x, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max() + 1))
    drawn = np.add.reduceat(weights[:, order], starts, axis=1)
    middle = np.cumsum(drawn, axis=1) - drawn / 2.0 + 0.5
    return np.asarray(middle[:, group])


def _pearson(weights: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Weighted Pearson coefficients, one per row of weights; not a number where a row has no spread."""
    total = weights.sum(axis=1, keepdims=True)
    dx = x - (weights * x).sum(axis=1, keepdims=True) / total
    dy = y - (weights * y).sum(axis=1, keepdims=True) / total
    sxy, sxx, syy = ((weights * a * b).sum(axis=1) for a, b in ((dx, dy), (dx, dx), (dy, dy)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.clip(sxy / np.sqrt(sxx * syy), -1.0, 1.0))


def _fisher_interval(seen: float, draws: FloatArray, plan: Resampling, swaps_of: int | None) -> tuple[float, float]:
    """Limits on Fisher's scale artanh(r), where the spread of the draws depends least on r.

    Ranks in perfect agreement are perfect in every resample too, which says nothing of other units. So ranks stop half
    a swap of neighbours, 6 / (n (n^2 - 1)), short of 1, and spread at least as Fisher's 1 / sqrt(n - 3).
    """
    edge, floor = 1.0 - 1e-12, 0.0
    if swaps_of is not None:
        edge, floor = 1.0 - 6.0 / (swaps_of * (swaps_of**2 - 1)), 1.0 / math.sqrt(swaps_of - 3)
    z = np.arctanh(np.clip(draws[np.isfinite(draws)], -edge, edge))
    centre = float(np.arctanh(np.clip(seen, -edge, edge)))
    half = float(stats.norm.ppf(plan.tails[1])) * max(float(z.std()), floor)
    return float(min(np.tanh(centre - half), seen)), float(max(np.tanh(centre + half), seen))


def _p_value(x: FloatArray, y: FloatArray, *, ranked: bool) -> float:
    if len(x) > _ENUMERABLE:
        found = stats.spearmanr(x, y) if ranked else stats.pearsonr(x, y)
        return float(found.pvalue)
    a, b = (_rank(x), _rank(y)) if ranked else (x, y)
    orders = np.array(list(itertools.permutations(range(len(a)))))
    products = b[orders] @ (a - a.mean())
    slack = 1e-9 * np.abs(products).max()
    return float((np.abs(products) >= abs(b @ (a - a.mean())) - slack).mean())
