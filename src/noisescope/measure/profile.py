"""The predicted harm of noise at every site, as plain numbers that can be kept in a run folder and read back.

It predicts nothing itself and does not need torch; `noisescope.sweep.screening` makes profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from noisescope.core.codec import decode, encode
from noisescope.core.errors import BadInputError
from noisescope.core.records import Site
from noisescope.measure.statistics import FloatArray

_HEAD = "head"
Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Profile:
    """Predicted harm of relative noise of one scale, in nats of KL per token.

    `harm` is by (layer, operator), `by_site` finer, `channels` finest: one value per index of the last dimension.
    """

    scale: float
    tokens: int
    draws: int
    by_site: Mapping[Site, float]
    channels: Mapping[Site, FloatArray] = field(repr=False)

    @property
    def harm(self) -> dict[tuple[int | None, str], float]:
        """Predicted harm by (layer, operator)."""
        found: dict[tuple[int | None, str], float] = {}
        for site, value in self.by_site.items():
            key = (site.layer, site.operator)
            found[key] = found.get(key, 0.0) + value
        return found

    def at_scale(self, scale: float) -> Profile:
        """The same prediction for another scale: harm grows with its square."""
        factor = (scale / self.scale) ** 2
        by_site = {site: value * factor for site, value in self.by_site.items()}
        return Profile(scale, self.tokens, self.draws, by_site, {s: c * factor for s, c in self.channels.items()})

    def to_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """The whole profile as named arrays, such as a run folder keeps: a head in JSON, then channels by site."""
        sites = tuple(self.by_site)
        head = _Head(self.scale, self.tokens, self.draws, sites, tuple(self.by_site[site] for site in sites))
        arrays: dict[str, npt.NDArray[np.generic]] = {_HEAD: np.frombuffer(encode(head).encode(), dtype=np.uint8)}
        return arrays | {str(index): self.channels[site] for index, site in enumerate(sites)}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Profile:
        """The profile that `to_arrays` wrote, equal to the last bit."""
        if _HEAD not in arrays:
            raise BadInputError(f"arrays {', '.join(sorted(arrays)[:3]) or '(none)'}: not those of a profile.")
        head = decode(_Head, arrays[_HEAD].tobytes().decode("utf-8", "replace"))
        missing = [site.path for index, site in enumerate(head.sites) if str(index) not in arrays]
        if missing or len(head.harm) != len(head.sites):
            raise BadInputError(f"profile of {len(head.sites)} sites lacks {', '.join(missing) or 'their harm'}.")
        channels = {site: arrays[str(index)].astype(np.float64) for index, site in enumerate(head.sites)}
        return cls(head.scale, head.tokens, head.draws, dict(zip(head.sites, head.harm, strict=True)), channels)


@dataclass(frozen=True)
class _Head:
    """What of a profile is not an array."""

    scale: float
    tokens: int
    draws: int
    sites: tuple[Site, ...]
    harm: tuple[float, ...]
