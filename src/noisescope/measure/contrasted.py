"""How far two systems are apart at one tap, as plain values: S6's figures, errors over what is healthy, the symptom.

It holds no tensors and draws no conclusion from several taps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from noisescope.core.records import Site
from noisescope.measure.indices import divergence_verdict


@dataclass(frozen=True)
class Figures:
    """The divergences of one tap; NaN is undefined. `ulps` are the largest distance and that of 99 % of the values."""

    mae: float
    mape: float
    pearson: float
    max_error: float
    cosine: float
    sqnr_db: float
    ulp_99: float
    ulp_max: float
    ulp_dtype: str
    mismatches: int = 0

    @property
    def grade(self) -> str:
        """excellent, good, fair or poor: the worst by MAE, MAPE and Pearson."""
        return divergence_verdict(self.mae, self.mape, self.pearson, self.mismatches)


@dataclass(frozen=True)
class PartFigures:
    """A channel, or a block of them from `start` on: its error over what is healthy there, and its divergence."""

    start: int
    size: int
    excess: float
    mape: float
    max_error: float


@dataclass(frozen=True)
class Contrast:
    """One tap of two systems.

    `excess` is the error over what the healthy system's answer to its last bit allows: up to 1 is healthy. It is the
    larger of that of the whole tap and that of its worst channel. `basis` says which rows the figures are of; the
    excess is always of all. Without figures, `note` says why there are none.
    """

    site: Site
    role: str
    order: int
    excess: float = math.nan
    figures: Figures | None = None
    basis: str = ""
    channels: tuple[PartFigures, ...] = ()
    blocks: tuple[PartFigures, ...] = ()
    symptom: str = ""
    note: str = ""
    identical: bool = False

    @property
    def differs(self) -> bool:
        """Whether the two are further apart than two healthy systems are."""
        return self.excess > 1.0
