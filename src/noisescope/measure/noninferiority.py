"""Whether noise costs one model more than a factor times what it costs another, from the same samples and seeds.

A test for each side and an interval of the difference; no level is chosen here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from noisescope.core.errors import BadInputError
from noisescope.measure.statistics import DEFAULT, FloatArray, Interval, Resampling, finite, resampled_means

# What is added to each cell of a model's paired 2 x 2 table of hits; the reason stands in `statistics`.
_CELL_WEIGHT = 0.75
_CELLS = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
# More resamples without spread than this make the bootstrap's quantiles those of an accident.
_SPREADLESS_SHARE = 0.01


@dataclass(frozen=True, eq=False)
class Cost:
    """What noise costs a model, sample by sample: harm, the mean over the seeds, and what it is a share of.

    The cost is mean(harm) / mean(clean), or exp of it - 1 where harm is a difference of logarithms (`logarithmic`).
    `hits` says that every value behind it was a hit or a miss.
    """

    harm: FloatArray
    clean: FloatArray
    logarithmic: bool = False
    hits: bool = False

    def __post_init__(self) -> None:
        harm, clean = finite(self.harm, "harm", (1,)), finite(self.clean, "clean", (1,))
        if harm.shape != clean.shape or len(harm) < 2:
            raise BadInputError(f"{len(harm)} values of harm, {len(clean)} clean ones: expected as many, at least 2.")
        if clean.mean() <= 0.0:
            raise BadInputError(f"clean mean {clean.mean():g}: a cost is a share of it and needs one above 0.")


@dataclass(frozen=True)
class Excess:
    """A cost less what it may be: the interval, and one-sided p-values that it is above 0 and below 0."""

    interval: Interval
    p_above: float
    p_below: float


def excess(cost: Cost, other: Cost, factor: float, *, plan: Resampling = DEFAULT) -> Excess:
    """How far a model's cost lies above a factor times another's, sample paired with sample.

    To first order each sample adds grad . (x - mean) to the difference, x being its harm and clean value in both
    models. Hits and misses get Student's t with part of an observation in each cell of the models' tables. All other
    values get it as well, and the studentised bootstrap of whole samples; the one that is less sure counts, because
    either alone is too sure of 50 samples with long tails, each on another side.
    """
    if len(cost.harm) != len(other.harm) or cost.logarithmic != other.logarithmic:
        raise BadInputError(
            f"{len(cost.harm)} samples and {len(other.harm)}: expected the same samples and metric in both."
        )
    return _judged(cost, other, _Contrast(factor, 0.0, cost.logarithmic), plan)


def beyond(cost: Cost, limit: float, *, plan: Resampling = DEFAULT) -> Excess:
    """How far a model's cost lies above a limit, by the same test."""
    return _judged(cost, cost, _Contrast(0.0, limit, cost.logarithmic), plan)


def _judged(cost: Cost, other: Cost, contrast: _Contrast, plan: Resampling) -> Excess:
    columns = np.stack([cost.harm, cost.clean, other.harm, other.clean], axis=1)
    if cost.hits and other.hits:
        return _of_hits(columns, contrast, plan)
    return _bootstrapped(columns, contrast, plan)


@dataclass(frozen=True)
class _Contrast:
    """The first cost less a factor times the second and less an offset, from the four means, and its gradient."""

    factor: float
    offset: float
    logarithmic: bool

    def value(self, means: FloatArray) -> FloatArray:
        first, second = self._costs(means)
        return np.asarray(first - self.factor * second - self.offset)

    def gradient(self, means: FloatArray) -> FloatArray:
        slopes = [1.0 + cost if self.logarithmic else np.ones_like(cost) for cost in self._costs(means)]
        parts = []
        for place, (slope, weight) in enumerate(zip(slopes, (1.0, -self.factor), strict=True)):
            harm, clean = means[..., 2 * place], means[..., 2 * place + 1]
            parts += [weight * slope / clean, -weight * slope * harm / clean**2]
        return np.stack(parts, axis=-1)

    def _costs(self, means: FloatArray) -> tuple[FloatArray, FloatArray]:
        ratios = (means[..., 0] / means[..., 1], means[..., 2] / means[..., 3])
        change: Callable[[FloatArray], FloatArray] = np.expm1 if self.logarithmic else np.asarray
        return change(ratios[0]), change(ratios[1])


def _bootstrapped(columns: FloatArray, contrast: _Contrast, plan: Resampling) -> Excess:
    samples, width = columns.shape
    means = columns.mean(axis=0)
    seen = float(contrast.value(means))
    influence = (columns - means) @ contrast.gradient(means)
    error = float(np.sqrt((influence**2).mean() / (samples - 1)))
    pull = seen / error if error > 0.0 else 0.0
    if error <= 1e-12 * float(np.abs(columns).mean()):
        return _spreadless(seen, samples, plan)
    # Scaled and centred, so that no digits are lost where values are far larger than their spread.
    centred = columns - means
    products = np.einsum("ni,nj->nij", centred, centred).reshape(samples, width * width)
    drawn = resampled_means(np.concatenate([centred, products], axis=1), plan)
    shift, second = drawn[:, :width], drawn[:, width:].reshape(-1, width, width)
    spread = second - np.einsum("ri,rj->rij", shift, shift)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        gradient = contrast.gradient(means + shift)
        errors = np.sqrt(np.maximum(np.einsum("ri,rij,rj->r", gradient, spread, gradient), 0.0) / (samples - 1))
        pulls = (contrast.value(means + shift) - seen) / errors
    usable = np.isfinite(pulls) & (errors > 1e-6 * error) & (means + shift > 0.0)[:, [1, 3]].all(axis=1)
    if usable.mean() < 1.0 - _SPREADLESS_SHARE:
        return _student(seen, error, samples, plan)
    kept, plain = pulls[usable], _student(seen, error, samples, plan)
    low, high = (float(limit) for limit in np.quantile(kept, plan.tails))
    interval = Interval(
        seen,
        min(seen - high * error, plain.interval.low),
        max(seen - low * error, plain.interval.high),
        plan.confidence,
        samples,
    )
    above, below = ((1 + int(reaching.sum())) / (len(kept) + 1) for reaching in (kept >= pull, kept <= pull))
    return Excess(interval, max(above, plain.p_above), max(below, plain.p_below))


def _of_hits(columns: FloatArray, contrast: _Contrast, plan: Resampling) -> Excess:
    """The estimate is that of the samples; the test and the interval stand on padded ones.

    What is added falls into the same cell in both models: as samples of their own in either, it would hide twice the
    cost among 50 samples altogether.
    """
    samples, means = len(columns), columns.mean(axis=0)
    extra = np.array([[clean - noisy, clean] for clean, noisy in _CELLS])
    padded = np.concatenate([columns, np.hstack([extra, extra])])
    weights = np.concatenate([np.ones(samples), np.full(len(_CELLS), _CELL_WEIGHT)])
    centre = weights @ padded / weights.sum()
    influence = (padded - centre) @ contrast.gradient(centre)
    error = float(np.sqrt(weights @ influence**2) / weights.sum())
    found = _student(float(contrast.value(centre)), error, samples, plan)
    seen, interval = float(contrast.value(means)), found.interval
    held = Interval(seen, min(interval.low, seen), max(interval.high, seen), plan.confidence, samples)
    return Excess(held, found.p_above, found.p_below)


def _student(seen: float, error: float, samples: int, plan: Resampling) -> Excess:
    reach = float(stats.t.ppf(plan.tails[1], samples - 1)) * error
    above = float(stats.t.sf(seen / error, samples - 1))
    return Excess(Interval(seen, seen - reach, seen + reach, plan.confidence, samples), above, 1.0 - above)


def _spreadless(seen: float, samples: int, plan: Resampling) -> Excess:
    """All samples say the same; they prove no more than a bootstrap of them could."""
    least, slack = 1.0 / (plan.resamples + 1), 1e-12
    interval = Interval(seen, seen, seen, plan.confidence, samples)
    return Excess(interval, least if seen > slack else 1.0, least if seen < -slack else 1.0)
