"""Where a value lies on an axis, and at which round values an axis is labelled.

It draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from noisescope.report.view import Figure, Spacing

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """Values from low to high onto coordinates from start to end; `low` is above 0 where spacing is log."""

    low: float
    high: float
    start: float
    end: float
    spacing: Spacing = "linear"

    def share(self, value: float) -> float:
        """How far along the axis a value lies, from 0 to 1; beyond the ends it stays at the end."""
        if self.spacing == "log":
            where = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            where = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, where))

    def at(self, value: float) -> float:
        """The coordinate of a value."""
        return self.start + self.share(value) * (self.end - self.start)

    def holds(self, value: float) -> bool:
        """Whether a value lies on the axis and not beyond its ends."""
        return self.low <= value <= self.high

    def onto(self, start: float, end: float) -> Scale:
        """The same values onto other coordinates."""
        return Scale(self.low, self.high, start, end, self.spacing)


def values_of(figures: Iterable[Figure | None]) -> list[float]:
    """Every finite value and limit of some figures."""
    found = (v for f in figures if f is not None for v in (f.value, f.low, f.high))
    return [v for v in found if v is not None and math.isfinite(v)]


def linear(values: Iterable[float], *, with_zero: bool = True) -> Scale:
    """A scale from 0 to 1 over all values, rounded outward to a labelled value."""
    seen = [*values, 0.0] if with_zero else list(values)
    low, high = min(seen, default=0.0), max(seen, default=0.0)
    if high == low:
        high = low + (abs(low) or 1.0)
    step = _step(high - low)
    # The hair keeps a value that lies on a label from opening another step.
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, 0.0, 1.0)


def tight(values: Iterable[float]) -> Scale:
    """A scale from 0 to 1 over 0 and all values, with a little room and no more."""
    seen = [0.0, *values]
    low, high = min(seen), max(seen)
    if high == low:
        return Scale(0.0, 1.0, 0.0, 1.0)
    room = 0.03 * (high - low)
    return Scale(low - room if low < 0 else 0.0, high + room if high > 0 else 0.0, 0.0, 1.0)


def log(values: Iterable[float]) -> Scale:
    """A scale from 0 to 1 over all values above 0, rounded outward to 1, 2 or 5 times a power of ten."""
    seen = [value for value in values if value > 0] or [1.0]
    low, high = _rounded(min(seen), up=False), _rounded(max(seen), up=True)
    return Scale(low, high if high > low else 10 * low, 0.0, 1.0, "log")


def spaced(values: Iterable[float], spacing: Spacing, *, with_zero: bool = True) -> Scale:
    """A scale of either spacing."""
    return log(values) if spacing == "log" else linear(values, with_zero=with_zero)


def _rounded(value: float, *, up: bool) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    steps = [power * factor for factor in (1.0, 2.0, 5.0, 10.0)]
    hair = 1 + 1e-9
    return min(s for s in steps if s * hair >= value) if up else max(s for s in steps if s <= value * hair)


def _step(span: float, wanted: int = 5) -> float:
    rough = span / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * step for step in _STEPS if power * step >= rough * (1 - 1e-9))


def ticks(scale: Scale, wanted: int = 5, *, whole: bool = False) -> list[float]:
    """The values to label; only whole ones where there is nothing between them, as between layers."""
    if scale.spacing == "log":
        return _log_ticks(scale, wanted)
    step = _step(scale.high - scale.low, wanted)
    if whole:
        step = math.ceil(step)
    first = math.ceil(scale.low / step - 1e-9)
    last = math.floor(scale.high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _log_ticks(scale: Scale, wanted: int) -> list[float]:
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    powers = range(first, last + 1)
    every = [10.0**p * f for p in powers for f in (1, 2, 5) if scale.low * 0.999 <= 10.0**p * f <= scale.high * 1.001]
    if len(every) <= wanted + 2:
        return every
    tens = [10.0**p for p in powers if scale.low * 0.999 <= 10.0**p <= scale.high * 1.001]
    return tens[:: -(-len(tens) // (wanted + 1))]
