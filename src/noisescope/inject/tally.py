"""Counts what an injection really did: calls by phase, layer and operator, values reached, and how far they moved.

Nothing is read back from the device until somebody looks.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from noisescope.core.records import Site
from noisescope.core.vocabulary import PHASES
from noisescope.inject.native import Landed


@dataclass
class Count:
    """Injections in each phase."""

    forward: int = 0
    backward: int = 0


class Counts(dict[object, Count]):
    """Counts by layer or by operator; what was never reached counts zero."""

    def __missing__(self, key: object) -> Count:
        return Count()


@dataclass(frozen=True)
class Realised:
    """What an injection did at one site in one phase. `elements` is what it reached, `measured` what was compared.

    `relative` is the RMS of the change over that of the values, `error` the RMS of the change itself.
    """

    calls: int
    elements: int
    measured: int
    changed: int
    relative: float
    error: float


@dataclass
class _Sum:
    calls: int = 0
    injections: int = 0
    elements: int = 0
    landed: Landed = field(default_factory=lambda: Landed(0, 0, 0.0, 0.0))
    on_device: Tensor | None = None

    def total(self) -> Landed:
        """The measured figures, read back from the device if some are there."""
        if self.on_device is None:
            return self.landed
        measured, changed, error, value = self.on_device.tolist()
        return self.landed + Landed(int(measured), int(changed), error, value)


class Tally:
    """The statistics of one injection."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Site, str], _Sum] = {}
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Forget everything counted so far."""
        with self._lock:
            self._sums.clear()

    def count(self, site: Site, phase: str, injections: int, elements: int) -> None:
        """One call at a site. `injections` is 0 for a call that repeats one already counted."""
        with self._lock:
            entry = self._entry(site, phase)
            entry.calls += 1
            entry.injections += injections
            entry.elements += elements

    def landed(self, site: Site, phase: str, landed: Landed) -> None:
        """Add what was measured on the host."""
        with self._lock:
            self._entry(site, phase).landed += landed

    def sums(self, site: Site, phase: str, device: torch.device) -> Tensor:
        """The sums that are kept on a device, for whoever measures there to add to; laid out as by `measure`."""
        with self._lock:
            entry = self._entry(site, phase)
            if entry.on_device is None:
                # A tensor made in inference mode could not be added to outside it.
                with torch.inference_mode(False):
                    entry.on_device = torch.zeros(4, dtype=_widest(device), device=device)
            elif entry.on_device.device != device:
                entry.on_device = entry.on_device.to(device)
            return entry.on_device

    def _entry(self, site: Site, phase: str) -> _Sum:
        return self._sums.setdefault((site, phase), _Sum())

    @property
    def total_forward(self) -> int:
        """Injections into outputs."""
        return sum(s.injections for (_, phase), s in self._sums.items() if phase == "forward")

    @property
    def total_backward(self) -> int:
        """Operator calls whose gradients were injected into."""
        return sum(s.injections for (_, phase), s in self._sums.items() if phase == "backward")

    @property
    def by_layer(self) -> Counts:
        """Injections by layer index; None is what lies outside the layers."""
        return self._by((site.layer, phase, s) for (site, phase), s in self._sums.items())

    @property
    def by_operator(self) -> Counts:
        """Injections by operator."""
        return self._by((site.operator, phase, s) for (site, phase), s in self._sums.items())

    @staticmethod
    def _by(rows: Iterator[tuple[object, str, _Sum]]) -> Counts:
        counts = Counts()
        for key, phase, entry in rows:
            count = counts.setdefault(key, Count())
            setattr(count, phase, getattr(count, phase) + entry.injections)
        return counts

    def by_site(self, phase: str = "forward") -> dict[Site, Realised]:
        """What really happened at every site that was reached, in the order of first contact."""
        found = {}
        for (site, of_phase), entry in list(self._sums.items()):
            if of_phase == phase:
                total = entry.total()
                relative = (total.error_squares / total.value_squares) ** 0.5 if total.value_squares else 0.0
                error = (total.error_squares / total.elements) ** 0.5 if total.elements else 0.0
                found[site] = Realised(entry.calls, entry.elements, total.elements, total.changed, relative, error)
        return found

    @property
    def elements(self) -> int:
        """Values reached in both phases."""
        return sum(s.elements for s in self._sums.values())

    @property
    def changed(self) -> int:
        """Values that came out different, among those that were compared."""
        return sum(s.total().changed for s in self._sums.values())

    @property
    def realised(self) -> float:
        """RMS of the change over RMS of the values: the median over the sites of both phases.

        A median, because a few huge channels at a few sites would decide a sum over all of them.
        """
        return self.realised_in(PHASES)

    def realised_in(self, phases: Iterable[str]) -> float:
        """The same over the sites of some phases."""
        sites = [site.relative for phase in phases for site in self.by_site(phase).values()]
        return statistics.median(sites) if sites else 0.0


def measure(before: Tensor, after: Tensor) -> Tensor:
    """[compared, changed, squared change, squared value] over the finite values, as a tensor on their device."""
    wide = _widest(before.device)
    work = wide if before.dtype is torch.float64 else torch.float32
    finite = torch.isfinite(before) & torch.isfinite(after)
    changed = (before != after) & ~(torch.isnan(before) & torch.isnan(after))
    old = torch.where(finite, before, 0).to(work)
    error = torch.where(finite, after, 0).to(work) - old
    counts = [torch.tensor(before.numel(), dtype=wide, device=before.device), changed.sum(dtype=wide)]
    return torch.stack([*counts, _squares(error, wide), _squares(old, wide)])


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type in ("mps", "npu") else torch.float64


def _squares(x: Tensor, wide: torch.dtype) -> Tensor:
    """The sum of squares; scaled by the largest value first, since squares leave the range long before values do."""
    largest = x.abs().amax().clamp_min(torch.finfo(x.dtype).tiny) if x.numel() else x.new_ones(())
    return (x / largest).square().sum(dtype=wide) * largest.to(wide).square()
