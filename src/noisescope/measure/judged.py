"""What one check of one operator call found, as plain values: how far the worst error lies above what is allowed.

It holds no tensors and draws no conclusion from several checks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Judged:
    """One check. `worst` is the largest error in units of what rounding allows: up to 1 is healthy.

    `judged` values were compared and `hits` of them lay above; `channels` of `width` are those that they touched, the
    most often hit first, and none if those are too many to be listed. `defect` says how they are wrong.
    """

    check: str
    worst: float
    judged: int
    hits: int = 0
    width: int = 0
    channels: tuple[int, ...] = ()
    note: str = ""
    defect: str = ""

    @property
    def holds(self) -> bool:
        """Whether every judged value lies within what rounding allows."""
        return self.worst <= 1.0

    def at(self, check: str, note: str = "") -> Judged:
        """The same figures under another name."""
        return replace(self, check=check, note=note or self.note)


def scattered_over(width: int, hits: int) -> float:
    """How many of `width` channels are expected to be touched by hits that fall anywhere."""
    return width * -math.expm1(hits * math.log1p(-1.0 / width)) if width > 1 else float(min(width, hits))


def is_confined(channels: int, hits: int, width: int) -> bool:
    """Whether errors keep to fewer channels than they would touch if they fell anywhere. A single one does."""
    return 0 < channels <= round(0.5 * scattered_over(width, hits)) or (channels == hits == 1 and width > 1)


def together(check: str, parts: list[Judged]) -> Judged:
    """Several checks of one call as one; the widest that has errors says which channels."""
    if not parts:
        return Judged(check, 0.0, 0)
    telling = max(parts, key=lambda part: (part.hits, part.width))
    return Judged(
        check,
        max(part.worst for part in parts),
        sum(part.judged for part in parts),
        sum(part.hits for part in parts),
        telling.width,
        telling.channels,
        next((part.note for part in parts if part.note), ""),
        telling.defect or next((part.defect for part in parts if part.defect), ""),
    )
