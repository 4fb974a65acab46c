"""Judges up to which scale the harm of noise follows the quadratic law that screening predicts with.

It measures nothing. Responses at all scales should come from the same samples under the same draws: what scales share
cancels, and a departure from the law shows where the harm itself is known badly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from noisescope.core.errors import BadInputError
from noisescope.core.records import Finding
from noisescope.core.words import many
from noisescope.measure.power_law import PowerLaw, fit_power_law
from noisescope.measure.statistics import FloatArray, Interval

TOLERANCE = 0.2


@dataclass(frozen=True)
class Validity:
    """How one group of sites responds. `departures` are harm over what the square of the smallest scale foretells.

    `holds_to` is the largest scale measured up to which the harm is within the tolerance with confidence, `left_at`
    the scale at which it leaves it for good, where that is sure; in between nothing is decided.
    """

    group: str
    law: PowerLaw
    scales: tuple[float, ...]
    departures: tuple[Interval, ...]
    holds_to: float
    left_at: float | None
    tolerance: float

    @property
    def is_decided(self) -> bool:
        """Whether every scale measured is known to be inside or outside."""
        return self.left_at is not None or self.holds_to == self.scales[-1]

    @property
    def statement(self) -> str:
        """What a reader has to know, in one sentence."""
        law = f"{self.group}: harm grows as scale^{self.law.exponent.estimate:.2f}"
        if self.left_at is not None:
            last = self.departures[-1].estimate
            end = f"{last:.2f} times the quadratic law at {self.scales[-1]:g}"
            return (
                f"{law}, leaves the quadratic law by more than {self.tolerance:.0%} at {self.left_at:.3g}, and is {end}"
            )
        if self.is_decided:
            return f"{law}, within {self.tolerance:.0%} of the quadratic law up to {self.scales[-1]:g}"
        return f"{law}, known to be within {self.tolerance:.0%} of the quadratic law only up to {self.holds_to:g}"


def judge_validity(
    group: str,
    scales: npt.ArrayLike,
    responses: npt.ArrayLike,
    *,
    tolerance: float = TOLERANCE,
    confidence: float = 0.95,
) -> Validity:
    """The validity of the quadratic law for one group from responses [scales, samples]."""
    law = fit_power_law(scales, responses, tolerance=tolerance, confidence=confidence)
    s, r = np.asarray(scales, dtype=np.float64), np.asarray(responses, dtype=np.float64)
    if r.ndim != 2:
        raise BadInputError(
            f"responses of shape {r.shape}: expected [scales, samples], to tell a departure from chance."
        )
    departures = _departures(s, r, confidence)
    low, high = 1.0 - tolerance, 1.0 + tolerance
    inside = [low <= d.low and d.high <= high for d in departures]
    outside = [d.high < low or d.low > high for d in departures]
    holds_to = float(s[inside.index(False) - 1] if False in inside else s[-1])
    left_at = law.left_at if outside[-1] else None
    return Validity(group, law, tuple(s.tolist()), departures, holds_to, left_at, tolerance)


def _departures(s: FloatArray, r: FloatArray, confidence: float) -> tuple[Interval, ...]:
    """Mean response over (s / s_0)^2 times that of s_0; the logarithm's error by leaving out each sample in turn.

    The jackknife is wider than the linear error where a few samples hold most of the harm.
    """
    samples = r.shape[1]
    sums = r.sum(axis=1, keepdims=True)
    logs = np.log(sums / sums[0])[:, 0] - 2.0 * np.log(s / s[0])
    others = np.log((sums - r) / (sums[0] - r[0]))
    errors = np.sqrt((samples - 1) / samples * ((others - others.mean(axis=1, keepdims=True)) ** 2).sum(axis=1))
    half = stats.t.ppf((1.0 + confidence) / 2.0, samples - 1) * errors
    return tuple(
        Interval(float(np.exp(one)), float(np.exp(one - h)), float(np.exp(one + h)), confidence, samples)
        for one, h in zip(logs, half, strict=True)
    )


def conclude_validity(found: Sequence[Validity], scale: float | None = None) -> Finding:
    """Where the predictions of a screening stop being valid, over all groups that were measured.

    It is a warning where a group has left the law by the scale that is asked about, or without one by any measured.
    """
    if not found:
        raise BadInputError("no responses: expected the validity of at least one group.")
    left = sorted((v for v in found if v.left_at is not None), key=lambda v: v.left_at or 0.0)
    open_ones = [v for v in found if not v.is_decided]
    figures = [(f"exponent {v.group}", v.law.exponent.estimate) for v in found]
    figures += [(f"left at {v.group}", v.left_at) for v in left if v.left_at is not None]
    asked = found[0].scales[-1] if scale is None else scale
    is_off = any(v.left_at is not None and v.left_at <= asked for v in found)
    statement = _statement(found, left, open_ones)
    return Finding(statement, "warning" if is_off else "note", tuple(figures), decided=not open_ones)


def _statement(found: Sequence[Validity], left: Sequence[Validity], open_ones: Sequence[Validity]) -> str:
    told = "; ".join(v.statement for v in (*left, *open_ones))
    if left:
        more = f"; {len(open_ones)} undecided" if open_ones else ""
        return f"The quadratic law of prediction is left by {len(left)} of {len(found)} groups{more}: {told}"
    if open_ones:
        count = many(len(open_ones), "group")
        return f"The quadratic law of prediction is not seen to be left, undecided in {count}: {told}"
    top = min(v.scales[-1] for v in found)
    within = f"by all {len(found)} groups measured, within {found[0].tolerance:.0%} up to scale {top:g}"
    return f"The quadratic law of prediction is kept {within}"
