"""The band between named limits that an interval lies in, or how many more samples would settle it.

It measures nothing and holds no limits of its own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from noisescope.core.errors import BadInputError
from noisescope.measure.statistics import Interval

UNDECIDED = "undecided"
# Nearer to a limit than this share of the interval, no affordable number of samples decides.
_ON_A_LIMIT = 1e-6


@dataclass(frozen=True)
class Limits:
    """Rising limits and the names of the bands between them, lowest first: one more name than limits."""

    values: tuple[float, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.values, self.values[1:], strict=False))
        if not self.values or not rising or len(self.names) != len(self.values) + 1:
            raise BadInputError(
                f"limits {self.values} with names {self.names}: expected rising limits and one more name than limits."
            )

    def band(self, figure: float) -> int:
        """The index of the band: below the first limit, above the last, or from one limit to the next."""
        return min(bisect_right(self.values, figure), len(self.values) - (figure <= self.values[-1]))

    def name(self, figure: float) -> str:
        """The name of the band that a figure lies in."""
        return self.names[self.band(figure)]


@dataclass(frozen=True)
class Verdict:
    """A band's name, or undecided between bands, lowest first.

    `more_samples` is how many more would decide it: 0 when decided, None when no number can be told.
    """

    name: str
    bands: tuple[str, ...]
    more_samples: int | None = 0

    @property
    def decided(self) -> bool:
        return len(self.bands) == 1


def judge(interval: Interval, limits: Limits) -> Verdict:
    """The verdict that every figure of the interval agrees on."""
    first, last = limits.band(interval.low), limits.band(interval.high)
    bands = limits.names[first : last + 1]
    if first == last:
        return Verdict(bands[0], bands)
    return Verdict(UNDECIDED, bands, _more_samples(interval, limits.values[first:last]))


def _more_samples(interval: Interval, straddled: tuple[float, ...]) -> int | None:
    """The interval narrows as 1 / sqrt(samples) about its estimate until it leaves every straddled limit out."""
    shrink = min(_room(interval, limit) for limit in straddled)
    if shrink < _ON_A_LIMIT:
        return None
    # A hair less, so that 144 to the last bit is not 145.
    return max(1, math.ceil(interval.samples / shrink**2 * (1.0 - 1e-9)) - interval.samples)


def _room(interval: Interval, limit: float) -> float:
    """The share of its width towards a limit that an interval can keep."""
    gap = limit - interval.estimate
    side = interval.high - interval.estimate if gap > 0 else interval.estimate - interval.low
    return abs(gap) / side if side > 0.0 else 0.0
