"""Sums up a stream of rows in fixed space: figures per channel, a random projection over the rows, a few whole rows.

The projection is S X with random signs S [lines, rows]. Its difference between two runs is S (X - Y), so that the mean
of its squares is the squared error of each channel over all rows (Achlioptas 2003), though neither run is kept. Signs
and the chosen rows depend on the seed and the number of a row alone, so two machines that never met project alike.
All is computed on the host, because the device may be what is at fault.
"""

from __future__ import annotations

import heapq
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noisescope.core.errors import BadInputError

Bits = NDArray[np.uint64]
LINES, ROWS = 8, 16
# Per channel: least, largest, sum, sum of squares, how many have the largest size, zeros, values that are not finite.
FIGURES = ("least", "largest", "sum", "squares", "ties", "zeros", "lost")
_PIECE = 1 << 20
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def hashes(seed: int, start: int, count: int) -> Bits:
    """64 random bits for each of some rows (SplitMix64)."""
    with np.errstate(over="ignore"):
        x = (np.arange(start, start + count, dtype=np.uint64) + np.uint64(seed & 0xFFFFFFFF)) * np.uint64(_GOLDEN)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
        return x ^ (x >> np.uint64(31))


def signs(bits: Bits, lines: int) -> Tensor:
    """+-1 [lines, rows] from the lowest bits of each row's hash."""
    drawn = (bits[None] >> np.arange(lines, dtype=np.uint64)[:, None]) & np.uint64(1)
    return torch.from_numpy(drawn.astype(np.float64) * 2 - 1)


@dataclass(frozen=True)
class Sketch:
    """What is kept of one stream: `figures` [7, channel], `lines` [line, channel], whole `rows` and their numbers.

    Rows are in the order of their random priority, so that the first of them are the same however many were kept.
    `full` holds all rows in order, where that was asked for. `mark` is a checksum over all bits.
    """

    count: int
    figures: Tensor
    lines: Tensor
    rows: Tensor
    mark: int
    full: Tensor | None = None

    @property
    def width(self) -> int:
        """The number of channels."""
        return self.figures.shape[1]

    def figure(self, name: str) -> Tensor:
        """One of FIGURES for every channel."""
        return self.figures[FIGURES.index(name)].double()

    @property
    def size(self) -> Tensor:
        """The root mean square of every channel."""
        return (self.figure("squares") / max(self.count, 1)).sqrt()


class Sketcher:
    """Takes in rows [row, channel] in any number of parts."""

    def __init__(self, seed: int = 0, *, lines: int = LINES, rows: int = ROWS, keeps_all: bool = False) -> None:
        self._seed, self._most = seed, rows
        self._lines_wanted = lines
        self.count = 0
        self._figures: Tensor | None = None
        self._lines = torch.zeros(0)
        # The rows of the smallest priority, as a heap with the largest of them in front.
        self._chosen: list[tuple[int, int, Tensor]] = []
        self._all: list[Tensor] | None = [] if keeps_all else None
        self._mark = 0

    def update(self, x: Tensor) -> None:
        """Add rows."""
        here = x.detach().to("cpu").contiguous()
        if self._figures is not None and here.shape[1] != self._figures.shape[1]:
            raise BadInputError(f"rows of {here.shape[1]} channels after rows of {self._figures.shape[1]}.")
        if here.numel():
            self._mark = zlib.crc32(here.reshape(-1).view(torch.uint8).numpy().data, self._mark)
        if self._all is not None:
            self._all.append(here.clone())
        for piece in here.split(max(_PIECE // max(here.shape[1], 1), 1)):
            bits = hashes(self._seed, self.count, len(piece))
            self._add(piece.double(), signs(bits, self._lines_wanted))
            self._choose(piece, bits)
            self.count += len(piece)

    def _add(self, x: Tensor, drawn: Tensor) -> None:
        lost = ~x.isfinite()
        x = x.masked_fill(lost, 0.0) if bool(lost.any()) else x
        sums = drawn @ x
        size = x.abs()
        top = size.amax(0)
        found = torch.stack(
            (x.amin(0), x.amax(0), x.sum(0), x.square().sum(0), (size == top).sum(0), (x == 0).sum(0), lost.sum(0))
        )
        if self._figures is None:
            self._figures, self._lines = found, sums
            return
        self._lines += sums
        self._figures = _joined(self._figures, found)

    def _choose(self, piece: Tensor, bits: Bits) -> None:
        priorities = (bits >> np.uint64(16)).astype(np.int64)
        for i in np.argsort(priorities, kind="stable")[: self._most]:
            entry = (-int(priorities[i]), self.count + int(i), piece[int(i)].clone())
            if len(self._chosen) < self._most:
                heapq.heappush(self._chosen, entry)
            elif entry[:2] > self._chosen[0][:2]:
                heapq.heapreplace(self._chosen, entry)

    def result(self) -> Sketch:
        """What is kept of the rows so far."""
        if self._figures is None:
            raise BadInputError("no rows were seen; run the model on at least one token.")
        chosen = [row for _, _, row in sorted(self._chosen, key=lambda entry: (-entry[0], entry[1]))]
        full = torch.cat(self._all) if self._all is not None else None
        rows = torch.stack(chosen)
        kept = torch.float64 if rows.dtype is torch.float64 else torch.float32
        return Sketch(self.count, self._figures.to(kept), self._lines.to(kept), rows, self._mark, full)


def _joined(one: Tensor, other: Tensor) -> Tensor:
    tops = [torch.maximum(x[0].abs(), x[1].abs()) for x in (one, other)]
    joined = one + other
    joined[0], joined[1] = torch.minimum(one[0], other[0]), torch.maximum(one[1], other[1])
    ties = (one[4] * (tops[0] >= tops[1])) + (other[4] * (tops[1] >= tops[0]))
    joined[4] = ties
    return joined
