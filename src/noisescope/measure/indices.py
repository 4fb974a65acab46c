"""Single figures that sum up a measurement, each with the limits by which it is named good or bad.

It measures nothing itself and does not need torch: it works on figures, and plans where to measure next.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from noisescope.core.errors import BadInputError

UNDEFINED = "undefined"


@dataclass(frozen=True)
class Bands:
    """Names for ranges of a figure, best first, with the limits between them.

    The best name is for what lies beyond the first limit; a value on any other limit takes the better name.
    """

    names: tuple[str, ...]
    limits: tuple[float, ...]

    def grade(self, value: float | None) -> str:
        """The name of the range that a value is in; 'undefined' for None and NaN."""
        if value is None or math.isnan(value):
            return UNDEFINED
        rising = self.limits[0] > self.limits[-1]
        for i, (name, limit) in enumerate(zip(self.names, self.limits, strict=False)):
            beyond = value > limit if rising else value < limit
            if beyond or (i > 0 and value == limit):
                return name
        return self.names[-1]

    def worst(self, names: Iterable[str]) -> str:
        """The worst of some of these names; 'undefined' if there is none."""
        known = [name for name in names if name in self.names]
        return max(known, key=self.names.index) if known else UNDEFINED


_QUALITY = ("excellent", "good", "fair", "poor")
TOLERANCE = Bands(_QUALITY, (20.0, 10.0, 5.0))
SNR = Bands(_QUALITY, (40.0, 30.0, 20.0))
MAE = Bands(_QUALITY, (1e-4, 1e-3, 1e-2))
MAPE = Bands(_QUALITY, (0.01, 0.05, 0.10))
PEARSON = Bands(_QUALITY, (0.99, 0.95, 0.90))
BRITTLENESS = Bands(("low", "moderate", "high", "critical"), (0.10, 0.05, 0.02))
_GRADIENT_NAMES = ("stable", "moderate", "concerning", "critical")
_GRADIENT_RANGES = ((0.9, 1.1), (0.7, 1.3), (0.5, 1.5))


def relative_degradation(clean: float, noisy: float, *, higher_is_better: bool = True) -> float:
    """The share of the clean score that noise costs: (clean - noisy) / clean; negative where noise helps."""
    if clean == 0 or not math.isfinite(clean):
        raise BadInputError(
            f"a clean score of {clean:g} leaves degradation undefined; expected a finite one other than 0. Use a "
            "metric that this model has a score in: nll, perplexity, kl or top1 (agreement with its own clean answers)."
        )
    lost = clean - noisy if higher_is_better else noisy - clean
    return lost / abs(clean)


def noise_tolerance_index(degradation: float) -> float:
    """1 / degradation; infinite where noise cost nothing."""
    return 1 / degradation if degradation > 0 else math.nan if math.isnan(degradation) else math.inf


def snr_db(signal_squares: float, noise_squares: float) -> float:
    """10 log10 of the sum of squares of the signal over that of the noise as realised; infinite without noise."""
    if noise_squares == 0:
        return math.nan if signal_squares == 0 else math.inf
    return 10 * math.log10(signal_squares / noise_squares) if signal_squares > 0 else -math.inf


def gradient_norm_ratio(noisy: float, clean: float) -> float:
    """The norm of the noisy gradient over that of the clean one."""
    if not clean > 0 or not math.isfinite(clean):
        raise BadInputError(
            f"the norm of the clean gradient is {clean:g}; expected a finite one above 0. Check that the loss reaches "
            "these parameters and that they have requires_grad."
        )
    return noisy / clean


def gradient_grade(ratio: float) -> str:
    """How far a ratio of gradient norms is from 1: stable, moderate, concerning or critical."""
    for name, (low, high) in zip(_GRADIENT_NAMES, _GRADIENT_RANGES, strict=False):
        if low <= ratio <= high:
            return name
    return UNDEFINED if math.isnan(ratio) else _GRADIENT_NAMES[-1]


def divergence_verdict(mae: float, mape: float, pearson: float, mismatches: float = 0) -> str:
    """The worst of the three grades; poor where one side has a NaN or an infinity that the other has not."""
    if mismatches:
        return _QUALITY[-1]
    return MAE.worst((MAE.grade(mae), MAPE.grade(mape), PEARSON.grade(pearson)))


@dataclass(frozen=True)
class CurvePoint:
    """A layer's divergence, the sum up to and with it, and that sum's share of the whole."""

    layer: int | str
    value: float
    total: float
    share: float


def cumulative_curve(by_layer: Mapping[Any, float]) -> tuple[CurvePoint, ...]:
    """The running sum of a divergence over the layers, in the order they are given."""
    totals = list(itertools.accumulate(by_layer.values()))
    whole = totals[-1] if totals else 0.0
    return tuple(
        CurvePoint(layer, value, total, total / whole if whole else 0.0)
        for (layer, value), total in zip(by_layer.items(), totals, strict=True)
    )


@dataclass(frozen=True)
class CriticalThreshold:
    """The smallest scale that costs as much as was asked about; it lies above `low`, which does not cost that much.

    `scale` is None where no scale up to the top does. `monotone` is False where some larger scale was seen to cost
    less than that again: the measurements are then too noisy for the last digits.
    """

    scale: float | None
    low: float
    monotone: bool = True

    @property
    def brittleness(self) -> str:
        """low, moderate, high or critical."""
        return BRITTLENESS.grade(math.inf if self.scale is None else self.scale)


def next_scale(
    known: Mapping[float, float], *, cost: float = 0.10, top: float = 0.2, tolerance: float = 0.001
) -> float | CriticalThreshold:
    """The scale to measure next, or the answer, from the degradations {scale: degradation} that are known.

    Bisection between the largest scale that is known to cost less and the smallest that is known to cost as much, from
    whatever source. Scales above the top are not looked at.
    """
    broken = [scale for scale, lost in known.items() if math.isnan(lost)]
    if broken:
        raise BadInputError(f"the degradation at scale {broken[0]:g} is NaN; measure it again or leave it out.")
    inside = {scale: lost for scale, lost in known.items() if 0 < scale <= top}
    high = min((scale for scale, lost in inside.items() if lost >= cost), default=None)
    if high is None:
        return CriticalThreshold(None, top) if top in inside else top
    low = max((scale for scale in inside if scale < high), default=0.0)
    # The difference of two decimal fractions may come out a little above the tolerance they are apart.
    if high - low <= tolerance * (1 + 1e-9):
        monotone = all(lost >= cost for scale, lost in inside.items() if scale > high)
        return CriticalThreshold(high, low, monotone)
    return (low + high) / 2


def critical_threshold(
    measure: Callable[[float], float],
    known: Mapping[float, float] | None = None,
    *,
    cost: float = 0.10,
    top: float = 0.2,
    tolerance: float = 0.001,
) -> CriticalThreshold:
    """Ask `measure` for the degradation at one scale after another until the threshold is found."""
    found = dict(known or {})
    while True:
        step = next_scale(found, cost=cost, top=top, tolerance=tolerance)
        if isinstance(step, CriticalThreshold):
            return step
        found[step] = measure(step)
