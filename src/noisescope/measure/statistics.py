"""Intervals for means, proportions, differences and degradations, resampling whole samples.

A sample stays together under all its seeds, and the seeds are held fixed: an interval says what other samples would
give under these seeds. Nothing is decided here; bands and p-values are made elsewhere in this room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from noisescope.core.errors import BadInputError

FloatArray = npt.NDArray[np.float64]

# Cells of one block of resamples: what the cache of a core holds.
_BLOCK_CELLS = 65_536
# Resamples without spread beyond this share make the studentised quantiles those of an accident.
_SPREADLESS_SHARE = 0.01
# What is added to each cell of a paired 2 x 2 table. Half an observation (Agresti and Min 2005, Statistics in Medicine
# 24) covers 90 % of nominal 95 where losses are few and all seeds share them, a whole one (Bonett and Price 2012, JEBS
# 37) 97 to 99 and is wider; three quarters never fell below 94 in either case.
_CELLS = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
_CELL_WEIGHT = 0.75


@dataclass(frozen=True)
class Interval:
    """An estimate with the limits that hold it at a confidence, from so many samples."""

    estimate: float
    low: float
    high: float
    confidence: float
    samples: int

    def scaled(self, factor: float) -> Interval:
        """The interval of the figure times a factor; a negative one turns it round."""
        low, high = sorted((self.low * factor, self.high * factor))
        # Adding 0 turns -0.0 into 0.0.
        return Interval(self.estimate * factor + 0.0, low + 0.0, high + 0.0, self.confidence, self.samples)


@dataclass(frozen=True)
class Resampling:
    """How samples are drawn anew. Equal seeds and sample counts give equal draws, so that figures share them."""

    confidence: float = 0.95
    resamples: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.confidence < 1.0:
            raise BadInputError(f"confidence {self.confidence!r}: expected a share between 0 and 1, such as 0.95.")
        if self.resamples < 100:
            raise BadInputError(f"{self.resamples!r} resamples: expected at least 100; 10000 give steady limits.")

    @property
    def tails(self) -> tuple[float, float]:
        """The two quantiles that the confidence leaves outside."""
        outside = (1.0 - self.confidence) / 2.0
        return outside, 1.0 - outside

    def generator(self) -> np.random.Generator:
        """A generator of its own, keyed by the seed."""
        return np.random.Generator(np.random.Philox(key=self.seed % 2**64))


DEFAULT = Resampling()


def finite(values: npt.ArrayLike, what: str, dimensions: tuple[int, ...] = (1, 2)) -> FloatArray:
    """Values as float64, refused by name where their shape is wrong or one of them is not finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in dimensions or array.size == 0:
        expected = " or ".join(str(d) for d in dimensions)
        raise BadInputError(f"{what} of shape {array.shape}: expected {expected} dimension(s) and at least one value.")
    strange = int(array.size - np.isfinite(array).sum())
    if strange:
        raise BadInputError(f"{what}: {strange} of {array.size} values are not finite; count them and leave them out.")
    return array


def over_seeds(values: npt.ArrayLike, what: str) -> FloatArray:
    """One value per sample: the mean over the seeds of [seeds, samples], or [samples] as it is."""
    array = finite(values, what)
    means = array if array.ndim == 1 else array.mean(axis=0)
    if len(means) < 2:
        raise BadInputError(f"{what}: {len(means)} sample; expected at least 2, because one has no spread.")
    return means


def are_hits(*values: npt.ArrayLike) -> bool:
    """Whether every value is 0 or 1, a miss or a hit."""
    return all(bool(np.isin(np.asarray(v), (0.0, 1.0)).all()) for v in values)


def paired(clean: npt.ArrayLike, noisy: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Clean values and noisy means over seeds, one of each per sample."""
    c, n = over_seeds(clean, "clean"), over_seeds(noisy, "noisy")
    if c.shape != n.shape:
        raise BadInputError(f"clean has {len(c)} samples and noisy {len(n)}; expected the same samples in both.")
    return c, n


def check_clean_mean(clean: FloatArray) -> None:
    """Refuse a clean score that nothing can be a share of."""
    if clean.mean() <= 0.0:
        raise BadInputError(
            f"clean mean {clean.mean():g}: degradation is a share of it and needs one above 0. "
            "Use a metric that works without: KL to clean, NLL, or top-1 agreement."
        )


def resample_weights(samples: int, plan: Resampling) -> Iterator[FloatArray]:
    """Blocks [resamples, samples] that say how often each sample was drawn."""
    generator = plan.generator()
    rows = max(1, _BLOCK_CELLS // samples)
    starts = (np.arange(rows) * samples)[:, None]
    for done in range(0, plan.resamples, rows):
        size = min(rows, plan.resamples - done)
        drawn = generator.integers(0, samples, size=(size, samples)) + starts[:size]
        yield np.bincount(drawn.ravel(), minlength=size * samples).reshape(size, samples).astype(np.float64)


def resampled_means(columns: FloatArray, plan: Resampling) -> FloatArray:
    """Means [resamples, columns] of [samples, columns], one shared draw of samples per row."""
    samples = len(columns)
    return np.concatenate([weights @ columns for weights in resample_weights(samples, plan)]) / samples


def degradation(
    clean: npt.ArrayLike, noisy: npt.ArrayLike, *, higher_is_better: bool = True, plan: Resampling = DEFAULT
) -> Interval:
    """(clean - noisy) / clean of the means, or (noisy - clean) / clean where lower is better.

    `clean` is [samples], `noisy` [samples] or [seeds, samples]. Hits and misses (every value 0 or 1, so one row
    per seed and not their mean) get a Student interval with part of an observation added in each cell, because
    resampling says nothing of losses that are rare among so few samples. All other values get the studentised
    bootstrap of a ratio of means.
    """
    c, n = paired(clean, noisy)
    check_clean_mean(c)
    growth = float((n - c).mean() / c.mean())
    if are_hits(clean, noisy):
        low, high = _hit_growth(c, n, plan.confidence)
    else:
        low, high = _ratio_growth(c, n, plan)
    interval = _holding(growth, low, high, plan.confidence, len(c))
    return interval.scaled(-1.0) if higher_is_better else interval


def mean_interval(values: npt.ArrayLike, *, plan: Resampling = DEFAULT) -> Interval:
    """The mean over samples of [samples] or [seeds, samples]."""
    x = over_seeds(values, "values")
    if are_hits(values):
        # Agresti and Coull 1998: z^2 / 2 hits and as many misses more, here as samples of their own.
        extra = stats.norm.ppf(plan.tails[1]) ** 2 / 2.0
        low, high = _padded_mean(x, np.array([0.0, 1.0]), float(extra), plan.confidence)
        low, high = max(low, 0.0), min(high, 1.0)
    else:
        low, high = _bootstrapped_mean(x, plan)
    return _holding(float(x.mean()), low, high, plan.confidence, len(x))


def difference(first: npt.ArrayLike, second: npt.ArrayLike, *, plan: Resampling = DEFAULT) -> Interval:
    """Mean of first - second over the samples that both share."""
    a, b = paired(first, second)
    if are_hits(first, second):
        low, high = _padded_mean(a - b, _CELLS[:, 0] - _CELLS[:, 1], _CELL_WEIGHT, plan.confidence)
        low, high = max(low, -1.0), min(high, 1.0)
    else:
        low, high = _bootstrapped_mean(a - b, plan)
    return _holding(float((a - b).mean()), low, high, plan.confidence, len(a))


def proportion(hits: int, samples: int, *, confidence: float = 0.95) -> Interval:
    """A share of independent samples with its Wilson interval."""
    if not 0 <= hits <= samples or samples < 1:
        raise BadInputError(f"{hits} hits of {samples} samples: expected 0 <= hits <= samples and a sample.")
    share = hits / samples
    z2 = float(stats.norm.ppf((1.0 + confidence) / 2.0)) ** 2
    centre = (share + z2 / (2 * samples)) / (1 + z2 / samples)
    half = np.sqrt(z2 * (share * (1 - share) + z2 / (4 * samples)) / samples) / (1 + z2 / samples)
    return _holding(share, max(0.0, centre - half), min(1.0, centre + half), confidence, samples)


def _holding(estimate: float, low: float, high: float, confidence: float, samples: int) -> Interval:
    """An interval never leaves out its own estimate, which padding at an edge could do."""
    return Interval(estimate, float(min(low, estimate)), float(max(high, estimate)), confidence, samples)


def _student(estimate: float, error: float, samples: int, confidence: float) -> tuple[float, float]:
    half = float(stats.t.ppf((1.0 + confidence) / 2.0, samples - 1)) * error
    return estimate - half, estimate + half


def hit_ratio_error(clean: FloatArray, noisy: FloatArray, growth: float | None = None) -> tuple[float, float]:
    """Growth noisy / clean - 1 of padded hits, and its standard error at that growth or at a given one.

    Linearised: the error of a ratio of means is that of the mean of (noisy - clean) - growth * clean, over the clean
    mean.
    """
    c, n = np.concatenate([clean, _CELLS[:, 0]]), np.concatenate([noisy, _CELLS[:, 1]])
    weights = np.concatenate([np.ones(len(clean)), np.full(len(_CELLS), _CELL_WEIGHT)])
    seen = float(weights @ (n - c) / (weights @ c))
    residual = (n - c) - (seen if growth is None else growth) * c
    residual -= weights @ residual / weights.sum()
    return seen, float(np.sqrt(weights @ residual**2) / (weights @ c))


def _hit_growth(clean: FloatArray, noisy: FloatArray, confidence: float) -> tuple[float, float]:
    growth, error = hit_ratio_error(clean, noisy)
    low, high = _student(growth, error, len(clean), confidence)
    return max(low, -1.0), high


def _padded_mean(x: FloatArray, extra: FloatArray, weight: float, confidence: float) -> tuple[float, float]:
    values = np.concatenate([x, extra])
    weights = np.concatenate([np.ones(len(x)), np.full(len(extra), weight)])
    mean = float(weights @ values / weights.sum())
    error = float(np.sqrt(weights @ (values - mean) ** 2) / weights.sum())
    return _student(mean, error, len(x), confidence)


def _bootstrapped_mean(x: FloatArray, plan: Resampling) -> tuple[float, float]:
    centred = x - x.mean()
    means, squares = resampled_means(np.stack([centred, centred**2], axis=1), plan).T
    errors = np.sqrt(np.maximum(squares - means**2, 0.0) / (len(x) - 1))
    error = float(np.sqrt((centred**2).mean() / (len(x) - 1)))
    lower, upper = _studentised(means, errors, error, len(x), plan)
    return float(x.mean()) + lower, float(x.mean()) + upper


def _ratio_growth(clean: FloatArray, noisy: FloatArray, plan: Resampling) -> tuple[float, float]:
    """Studentised bootstrap of mean(noisy - clean) / mean(clean), on residuals, which lose no digits to each other."""
    growth = float((noisy - clean).mean() / clean.mean())
    residual = (noisy - clean) - growth * clean
    columns = np.stack([clean, residual, clean**2, clean * residual, residual**2], axis=1)
    c, r, cc, cr, rr = resampled_means(columns, plan).T
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = np.where(c > 0.0, r / c, np.nan)
        errors = np.sqrt(np.maximum(rr - 2 * shift * cr + shift**2 * cc, 0.0) / (len(clean) - 1)) / c
    error = float(np.sqrt((residual**2).mean() / (len(clean) - 1)) / clean.mean())
    lower, upper = _studentised(shift, errors, error, len(clean), plan)
    return growth + lower, growth + upper


def _studentised(
    shifts: FloatArray, errors: FloatArray, error: float, samples: int, plan: Resampling
) -> tuple[float, float]:
    """Limits relative to the estimate: percentile-t, or Student's where too many resamples have no spread."""
    usable = np.isfinite(shifts) & (errors > 1e-6 * error)
    if error == 0.0 or usable.mean() < 1.0 - _SPREADLESS_SHARE:
        return _student(0.0, error, samples, plan.confidence)
    low, high = np.quantile(shifts[usable] / errors[usable], plan.tails)
    return float(-high * error), float(-low * error)
