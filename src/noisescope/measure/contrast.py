"""Contrasts two captures tap by tap: errors per channel from the shared projection, S6's figures from shared rows.

What is allowed comes from the healthy system: FACTOR times its answer to one ulp of the coarser dtype at every value,
per channel. It matches taps by path and role, and draws no conclusion from several.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from noisescope.core.records import Site
from noisescope.measure.capture_file import Capture, Entry
from noisescope.measure.contrasted import Contrast, Figures, PartFigures
from noisescope.measure.divergence import DivergenceMeter
from noisescope.measure.sketch import Sketch
from noisescope.measure.symptoms import symptom_of

# Real kernels round several times where the dither moves once; they add up in other orders.
FACTOR = 3.0
# The squared error of one channel is estimated from few lines: 8 of them exceed three times its root once in 1e7.
CHANNEL_FACTOR = 3.0
BLOCK = 32
_SHOWN = 5
# Of a site's size: below this share, a channel that is nearly always 0 has no scale of its own.
_LEAST = 1e-3


@dataclass(frozen=True)
class Pair:
    """Two systems at one tap: what they made, and the error that is healthy there, per channel."""

    one: Sketch
    other: Sketch
    allowed: Tensor

    @property
    def error(self) -> Tensor:
        """The root mean square error of each channel over all rows."""
        if self.one.mark == self.other.mark and self.one.rows.dtype is self.other.rows.dtype:
            return torch.zeros_like(self.allowed)
        if self.one.full is not None and self.other.full is not None:
            gap = self.one.full.double() - self.other.full.double()
            return gap.nan_to_num(0.0, 0.0, 0.0).square().mean(0).sqrt()
        gap = self.one.lines.double() - self.other.lines.double()
        return (gap.square().mean(0) / max(self.one.count, 1)).sqrt()


def contrasts(reference: Capture, other: Capture) -> Iterator[Contrast]:
    """A contrast for every tap of the reference that the other has too, in the order of the reference's run."""
    theirs = other.entries
    for order, (key, entry) in enumerate(reference.entries.items()):
        if key in theirs:
            site = Site(entry.layer, entry.operator, entry.path)
            bare = Contrast(site, entry.role, order)
            note = _mismatch(entry, theirs[key])
            yield replace(bare, note=note) if note else _contrasted(bare, pair_of(reference, other, key))


def unmatched(reference: Capture, other: Capture) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The taps that only the one has, and those that only the other has."""
    one, two = reference.entries, other.entries
    return tuple(key for key in one if key not in two), tuple(key for key in two if key not in one)


def _mismatch(one: Entry, other: Entry) -> str:
    if (one.count, one.width) == (other.count, other.width):
        return ""
    return f"{one.count} rows of {one.width} channels against {other.count} of {other.width}"


def pair_of(reference: Capture, other: Capture, key: str) -> Pair:
    """Both sides of a tap with what is allowed there."""
    one = reference.sketches[key]
    dtype = coarser_of(reference.manifest.dtype, other.manifest.dtype)
    return Pair(one, other.sketches[key], allowed_at(one, answer_to(reference, key, dtype), dtype))


def coarser_of(one: str, other: str) -> torch.dtype:
    """The dtype of two, by name, that has the larger steps."""
    first, second = getattr(torch, one), getattr(torch, other)
    found: torch.dtype = first if torch.finfo(first).eps >= torch.finfo(second).eps else second
    return found


def answer_to(reference: Capture, key: str, dtype: torch.dtype) -> Tensor:
    """The reference's answer to the last bit of a dtype; from another dtype by the ratio of their steps."""
    known = [name for name in reference.answers if key in reference.answers[name]]
    if not known:
        return torch.zeros(reference.sketches[key].width, dtype=torch.float64)
    eps = torch.finfo(dtype).eps
    nearest = min(known, key=lambda name: abs(math.log(torch.finfo(getattr(torch, name)).eps / eps)))
    ratio = eps / torch.finfo(getattr(torch, nearest)).eps
    return reference.answers[nearest][key].double() * ratio


def allowed_at(one: Sketch, answer: Tensor, dtype: torch.dtype) -> Tensor:
    """The error per channel up to which a system in a dtype is healthy."""
    size = one.size
    own = torch.finfo(dtype).eps * torch.maximum(size, _LEAST * size.square().mean().sqrt())
    return FACTOR * (answer.double().square() + own.square()).sqrt()


def _contrasted(bare: Contrast, pair: Pair) -> Contrast:
    error = pair.error
    ratio = torch.where(error > 0, error / pair.allowed, 0.0).nan_to_num(posinf=1e12).clamp(max=1e12)
    lost = bool((pair.one.figure("lost") != pair.other.figure("lost")).any())
    whole = float(ratio.square().mean().sqrt())
    excess = math.inf if lost else max(whole, float(ratio.max()) / CHANNEL_FACTOR)
    meter, basis = _met(pair)
    return replace(
        bare,
        excess=excess,
        figures=_figures(meter),
        basis=basis,
        channels=_channels(meter, ratio),
        blocks=_blocks(meter, ratio),
        symptom=symptom_of(pair.one, pair.other, ratio, bare.role) if excess > 1.0 else "",
        identical=not bool(error.any()) and not lost,
    )


def _met(pair: Pair) -> tuple[DivergenceMeter, str]:
    meter = DivergenceMeter()
    if pair.one.full is not None and pair.other.full is not None:
        meter.update(pair.one.full, pair.other.full)
        return meter, f"all {pair.one.count} rows"
    rows = min(len(pair.one.rows), len(pair.other.rows))
    meter.update(pair.one.rows[:rows], pair.other.rows[:rows])
    return meter, f"{rows} of {pair.one.count} rows"


def _figures(meter: DivergenceMeter) -> Figures:
    found = meter.result()
    names = ("mae", "mape", "pearson", "max_error", "cosine", "sqnr_db", "ulp_99", "ulp_max", "ulp_dtype")
    return Figures(**{name: getattr(found, name) for name in names}, mismatches=found.mismatches)


def _channels(meter: DivergenceMeter, ratio: Tensor) -> tuple[PartFigures, ...]:
    columns = meter.channels()
    worst = ratio.argsort(descending=True, stable=True)[:_SHOWN].tolist()
    return tuple(
        PartFigures(i, 1, float(ratio[i]) / CHANNEL_FACTOR, float(columns.mape[i]), float(columns.max_error[i]))
        for i in worst
        if ratio[i] > 0
    )


def _blocks(meter: DivergenceMeter, ratio: Tensor) -> tuple[PartFigures, ...]:
    columns = meter.blocks(BLOCK)
    parts = ratio.split(BLOCK)
    excess = torch.stack([part.square().mean().sqrt() for part in parts])
    worst = excess.argsort(descending=True, stable=True)[:_SHOWN].tolist()
    return tuple(
        PartFigures(i * BLOCK, len(parts[i]), float(excess[i]), float(columns.mape[i]), float(columns.max_error[i]))
        for i in worst
        if excess[i] > 0
    )
