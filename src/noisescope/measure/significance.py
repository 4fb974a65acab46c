"""P-values for paired samples: a degradation against a limit, sign flips, McNemar, seeds, and Holm over many.

It gives p-values only; no level is chosen here.
"""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.measure.statistics import (
    DEFAULT,
    FloatArray,
    Resampling,
    are_hits,
    check_clean_mean,
    finite,
    hit_ratio_error,
    over_seeds,
    paired,
    resampled_means,
)

Alternative = Literal["greater", "less", "two-sided"]
_ONE_SIDED = ("greater", "less")
# 2^12 sign patterns are fewer than the resamples that would approximate them.
_ENUMERABLE = 12


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """Step-down adjusted p-values in the order given; those <= alpha are wrong together with probability <= alpha."""
    p = finite(p_values, "p-values", (1,))
    if (p < 0).any() or (p > 1).any():
        raise BadInputError(f"p-values from {p.min():g} to {p.max():g}: expected values between 0 and 1.")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def degradation_p(
    clean: npt.ArrayLike,
    noisy: npt.ArrayLike,
    limit: float = 0.0,
    *,
    higher_is_better: bool = True,
    alternative: Alternative = "greater",
    plan: Resampling = DEFAULT,
) -> float:
    """One-sided p-value of a degradation that is greater (or less) than the limit.

    A degradation is above a limit where the mean of its differences is above 0. Hits and misses are judged with part
    of an observation added in each cell, all others by the studentised bootstrap, as their intervals are.
    """
    if alternative not in _ONE_SIDED:
        raise unknown_name("alternative", alternative, _ONE_SIDED)
    c, n = paired(clean, noisy)
    check_clean_mean(c)
    sign = 1.0 if alternative == "greater" else -1.0
    if are_hits(clean, noisy):
        direction = -1.0 if higher_is_better else 1.0
        growth, error = hit_ratio_error(c, n, direction * limit)
        return float(stats.t.sf(sign * direction * (growth - direction * limit) / error, len(c) - 1))
    return _bootstrap_p(sign * degradation_differences(c, n, limit, higher_is_better=higher_is_better), plan)


def degradation_differences(
    clean: FloatArray, noisy: FloatArray, limit: float, *, higher_is_better: bool = True
) -> FloatArray:
    """Per-sample values whose mean is above 0 exactly where the degradation is above the limit."""
    return (1.0 - limit) * clean - noisy if higher_is_better else noisy - (1.0 + limit) * clean


def _bootstrap_p(differences: FloatArray, plan: Resampling) -> float:
    """Share of resampled t-statistics about the sample's own mean that reach the one seen against 0."""
    mean = float(differences.mean())
    centred = differences - mean
    spread = float(np.sqrt((centred**2).mean()))
    if spread <= 1e-12 * abs(mean):
        return 1.0 / (plan.resamples + 1) if mean > 0 else 1.0
    means, squares = resampled_means(np.stack([centred, centred**2], axis=1) / [spread, spread**2], plan).T
    spreads = np.sqrt(np.maximum(squares - means**2, 0.0))
    reaching = means >= mean / spread * spreads
    return float((1 + reaching.sum()) / (plan.resamples + 1))


def sign_flip_p(
    differences: npt.ArrayLike, *, alternative: Alternative = "greater", plan: Resampling = DEFAULT
) -> float:
    """Permutation p-value of a mean that is greater than, less than or other than 0, by flipping samples' signs.

    [samples] or [seeds, samples]; a sample keeps one sign under all its seeds. Exact up to 12 samples that are not 0.
    """
    x = over_seeds(differences, "differences")
    x = x[x != 0.0]
    if not len(x):
        return 1.0
    if len(x) <= _ENUMERABLE:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(x))))
        return float(_reaching(signs @ x, x, alternative).mean())
    signs = 1.0 - 2.0 * plan.generator().integers(0, 2, size=(plan.resamples, len(x)), dtype=np.int8)
    return float((1 + _reaching(signs @ x, x, alternative).sum()) / (plan.resamples + 1))


def _reaching(sums: FloatArray, x: FloatArray, alternative: Alternative) -> npt.NDArray[np.bool_]:
    """Which sums reach the one seen; equal ones do, whatever the order in which they were added."""
    seen, slack = float(x.sum()), 1e-12 * float(np.abs(x).sum())
    if alternative == "greater":
        return np.asarray(sums >= seen - slack)
    if alternative == "less":
        return np.asarray(sums <= seen + slack)
    if alternative == "two-sided":
        return np.asarray(np.abs(sums) >= abs(seen) - slack)
    raise unknown_name("alternative", alternative, (*_ONE_SIDED, "two-sided"))


def mcnemar_p(clean: npt.ArrayLike, noisy: npt.ArrayLike, *, alternative: Alternative = "two-sided") -> float:
    """Exact p-value that hits were lost more often than won (greater), less often, or otherwise than as often."""
    c, n = finite(clean, "clean", (1,)), finite(noisy, "noisy", (1,))
    if c.shape != n.shape or not are_hits(c, n):
        raise BadInputError(
            f"clean {c.shape} and noisy {n.shape}: expected 0 or 1 for the same samples under one seed; "
            "sign_flip_p takes several seeds."
        )
    lost, won = int(((c == 1) & (n == 0)).sum()), int(((c == 0) & (n == 1)).sum())
    if lost + won == 0:
        return 1.0
    return float(stats.binomtest(lost, lost + won, 0.5, alternative=alternative).pvalue)


def seed_effect_p(noisy: npt.ArrayLike) -> float:
    """P-value that the seeds of [seeds, samples] differ in their means by more than their samples explain.

    Two-way analysis of variance without replication. Where it is small, intervals that hold the seeds fixed are too
    narrow for other seeds.
    """
    x = finite(noisy, "noisy", (2,))
    seeds, samples = x.shape
    if seeds < 2 or samples < 2:
        raise BadInputError(f"noisy of shape {x.shape}: expected at least 2 seeds and 2 samples.")
    by_seed = x.mean(axis=1, keepdims=True) - x.mean()
    residual = x - x.mean(axis=0, keepdims=True) - by_seed
    between = samples * float((by_seed**2).sum()) / (seeds - 1)
    within = float((residual**2).sum()) / ((seeds - 1) * (samples - 1))
    if within <= 1e-24 * float((x**2).mean()):
        return 1.0 if between <= 1e-24 * float((x**2).mean()) else 0.0
    return float(stats.f.sf(between / within, seeds - 1, (seeds - 1) * (samples - 1)))
