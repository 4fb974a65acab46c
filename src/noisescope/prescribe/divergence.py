"""How far a second system diverges in each layer: the places that are at fault there, and errors that are its own.

What a layer only inherits from those before it is not counted. It knows nothing of how fragile the layer is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from noisescope.core.words import many
from noisescope.diagnose.comparison import Comparison, Row

_SHOWN = 3


@dataclass(frozen=True)
class Divergence:
    """A layer of the second system: places at fault, and the largest mean relative error that is not inherited."""

    faults: tuple[Row, ...]
    mape: float | None
    is_above: bool

    @property
    def is_high(self) -> bool:
        """Whether a place is at fault, or rounding alone is above the limit that was asked for."""
        return bool(self.faults) or self.is_above

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.operator for row in self.faults))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Of the first faults each, else of the layer."""
        if not self.faults:
            return (f"no operator is at fault, but its rounding adds up to a MAPE of {self.mape or 0.0:.2g}",)
        told = tuple(map(_fault, self.faults[:_SHOWN]))
        rest = len(self.faults) - len(told)
        return (*told, f"and {many(rest, 'place')} more") if rest else told


def _fault(row: Row) -> str:
    own = row.local
    times = "far above" if own is None or not math.isfinite(own) else f"{own:.3g} times"
    mape = "" if math.isnan(row.mape) else f", MAPE {row.mape:.2g}"
    return f"{row.path}: its own error is {times} what rounding allows{mape}" + (
        f"; {row.symptom}" if row.symptom else ""
    )


def divergences(comparison: Comparison | None) -> dict[int | None, Divergence]:
    """By layer; None is what lies outside the layers."""
    if comparison is None:
        return {}
    by_layer: dict[int | None, list[Row]] = {}
    for row in comparison.rows:
        if row.verdict in ("local", "ok"):
            by_layer.setdefault(row.layer, []).append(row)
    faults: Mapping[int | None, list[Row]] = {
        layer: [row for row in comparison.suspects if row.layer == layer] for layer in by_layer
    }
    return {
        layer: Divergence(
            tuple(faults[layer]),
            _worst(faults[layer] or rows),
            any(row.mape > comparison.max_mape for row in rows),
        )
        for layer, rows in by_layer.items()
    }


def _worst(rows: Iterable[Row]) -> float | None:
    return max((row.mape for row in rows if not math.isnan(row.mape)), default=None)
