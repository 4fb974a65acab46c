"""How a response grows with the noise scale: r = a s^p, r = a s^2, and where the second stops being true.

It chooses no scales and measures no response.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from noisescope.core.errors import BadInputError
from noisescope.measure.statistics import FloatArray, Interval, finite

# No response counts as known to better than 1 %: the law is not truer, and one exact point would own the fit.
_FINEST = 0.01


@dataclass(frozen=True)
class PowerLaw:
    """r = factor * s^exponent and r = quadratic_factor * s^2, fitted to the logarithms.

    Residuals are root mean squares of log response minus log fit: 0.05 is about 5 %. `left_at` is the scale from
    which the response is off the quadratic law of the smallest scale by more than the tolerance; None if it never is.
    """

    exponent: Interval
    factor: float
    residual: float
    quadratic_factor: float
    quadratic_residual: float
    left_at: float | None


def fit_power_law(
    scales: npt.ArrayLike,
    responses: npt.ArrayLike,
    *,
    errors: npt.ArrayLike | None = None,
    tolerance: float = 0.2,
    confidence: float = 0.95,
) -> PowerLaw:
    """Both laws from responses at rising scales.

    `responses` is [scales, samples], the same samples at every scale, or [scales] with or without standard `errors`.
    The interval of the exponent comes from the samples, from the errors, or, without either, from the residuals of at
    least 3 scales.
    """
    s, r = _checked(scales, responses)
    means = r if r.ndim == 1 else r.mean(axis=1)
    if (means <= 0.0).any():
        at = s[int(np.argmax(means <= 0.0))]
        raise BadInputError(f"mean response {means.min():g} at scale {at:g}: a power law needs responses above 0.")
    relative = _relative_errors(r, means, errors)
    weights = np.ones(len(s)) if relative is None else 1.0 / np.maximum(relative, _FINEST) ** 2
    u, v = np.log(s), np.log(means)
    centred = u - weights @ u / weights.sum()
    pull = weights * centred / (weights @ centred**2)
    slope = float(pull @ v)
    off, height = _residual(v - slope * u, weights)
    off_square, square = _residual(v - 2.0 * u, weights)
    half = _half_width(pull, confidence, samples=r / means[:, None] if r.ndim == 2 else None, known=relative, off=off)
    return PowerLaw(
        Interval(slope, slope - half, slope + half, confidence, r.shape[-1]),
        float(np.exp(height)),
        float(np.sqrt((off**2).mean())),
        float(np.exp(square)),
        float(np.sqrt((off_square**2).mean())),
        _leaves_at(u, v - 2.0 * u, tolerance),
    )


def _checked(scales: npt.ArrayLike, responses: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    s, r = finite(scales, "scales", (1,)), finite(responses, "responses")
    if len(s) != len(r) or len(s) < 2 or s[0] <= 0.0 or (np.diff(s) <= 0.0).any():
        raise BadInputError(
            f"{len(s)} scales {s.tolist()} and {len(r)} responses: expected at least 2 rising scales above 0, "
            "and a response for each."
        )
    return s, r


def _relative_errors(r: FloatArray, means: FloatArray, errors: npt.ArrayLike | None) -> FloatArray | None:
    if r.ndim == 2:
        if r.shape[1] < 2:
            raise BadInputError(f"responses of {r.shape[1]} sample: expected at least 2, because one has no spread.")
        return np.asarray(r.std(axis=1, ddof=1) / np.sqrt(r.shape[1]) / means)
    if errors is None:
        return None
    e = finite(errors, "errors", (1,))
    if e.shape != means.shape or (e < 0.0).any():
        raise BadInputError(f"errors {e.tolist()}: expected one standard error >= 0 for each of {len(means)} scales.")
    return e / means


def _residual(values: FloatArray, weights: FloatArray) -> tuple[FloatArray, float]:
    """What a weighted mean leaves over, and the mean."""
    mean = float(weights @ values / weights.sum())
    return values - mean, mean


def _half_width(
    pull: FloatArray, confidence: float, *, samples: FloatArray | None, known: FloatArray | None, off: FloatArray
) -> float:
    """Half the exponent's interval: by what each sample does to it, by known errors, or by the residuals.

    The exponent is `pull` @ log response, and a sample moves a log response by its share of the mean.
    """
    tail = (1.0 + confidence) / 2.0
    if samples is not None:
        moves = pull @ samples
        return float(stats.t.ppf(tail, len(moves) - 1) * moves.std(ddof=1) / np.sqrt(len(moves)))
    if known is not None:
        return float(stats.norm.ppf(tail) * np.sqrt(pull**2 @ known**2))
    if len(off) < 3:
        raise BadInputError("2 scales without errors: expected errors, values per sample, or at least 3 scales.")
    error = np.sqrt(off @ off / (len(off) - 2)) * np.sqrt(pull @ pull)
    return float(stats.t.ppf(tail, len(off) - 2) * error)


def _leaves_at(u: FloatArray, level: FloatArray, tolerance: float) -> float | None:
    """The scale at which log(response / s^2) leaves its first value for good, by straight lines between the scales."""
    if not 0.0 < tolerance < 1.0:
        raise BadInputError(f"tolerance {tolerance!r}: expected a share between 0 and 1, such as 0.2.")
    away = level - level[0]
    # A hair of slack: what is off by the tolerance to the last bit is not off by more.
    slack = 1e-9
    outside = (away > np.log1p(tolerance) + slack) | (away < np.log1p(-tolerance) - slack)
    if not outside[-1]:
        return None
    first = len(outside) - int(np.argmin(outside[::-1]))
    edge = np.log1p(tolerance if away[first] > 0.0 else -tolerance)
    part = (edge - away[first - 1]) / (away[first] - away[first - 1])
    return float(np.exp(u[first - 1] + np.clip(part, 0.0, 1.0) * (u[first] - u[first - 1])))
