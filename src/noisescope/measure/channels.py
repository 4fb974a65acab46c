"""Running statistics of each channel of a tensor that comes in batches, of a size that is fixed.

It keeps no activations, does not know models and judges nothing; `noisescope.measure.outliers` does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from noisescope.core.errors import BadInputError
from noisescope.measure.outliers import ChannelSummary
from noisescope.measure.quantiles import QuantileSketch

NEAR_ZERO = 1e-6
FIRST, DELIMITER, OTHER = range(3)
# Positions 0 to 3 have a bin each, then every octave has one.
_POSITION_BINS = 33
_PIECE = 1 << 20
_LEAST_ROWS = 64
NOWHERE = -1


class Tokens(NamedTuple):
    """The tokens of a batch: position in the text (-1 is padding), id (-1 is unknown), and kind."""

    position: Tensor
    token: Tensor
    kind: Tensor

    @classmethod
    def plain(cls, shape: Sequence[int], device: torch.device) -> Self:
        """Tokens of which nothing is known but how they are laid out."""
        position = torch.arange(shape[1], device=device).expand(shape[0], -1)
        return cls.of(position, torch.full_like(position, NOWHERE), ())

    @classmethod
    def of(cls, position: Tensor, token: Tensor, delimiters: Collection[int]) -> Self:
        """Tokens with their kinds."""
        listed = torch.tensor(sorted(delimiters), dtype=torch.long, device=token.device)
        kind = torch.where(torch.isin(token, listed), DELIMITER, OTHER)
        return cls(position, token, torch.where(position == 0, FIRST, kind))

    def rows(self, chosen: Tensor | slice) -> Self:
        """Those of some rows, once flattened."""
        return type(self)(*(part.reshape(-1)[chosen] for part in self))

    def to(self, device: torch.device) -> Self:
        return type(self)(*(part.to(device) for part in self))


class ChannelStatistics:
    """Running statistics of the channels of one tensor, the same whatever the number of tokens."""

    def __init__(self, channels: int, device: torch.device | None = None) -> None:
        whole: dict[str, Any] = {"dtype": torch.int64, "device": device}
        wide: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self.channels = channels
        self.tokens = self.unplaced = 0
        self.sketch = QuantileSketch(channels, device=device)
        self.count = torch.zeros(channels, **whole)
        self.near_zero = torch.zeros(channels, **whole)
        self.non_finite = torch.zeros(channels, **whole)
        self.mean = torch.zeros(channels, **wide)
        self.squares = torch.zeros(channels, **wide)
        self.squared_gradients = torch.zeros(channels, **wide)
        self.has_gradients = False
        self.peak = torch.zeros(3, channels, device=device)
        self.peak_position = torch.full((channels,), NOWHERE, **whole)
        self.peak_token = torch.full((channels,), NOWHERE, **whole)
        self.position_peak = torch.zeros(_POSITION_BINS, device=device)

    @torch.no_grad()
    def update(self, values: Tensor, tokens: Tokens | None = None) -> None:
        """Add rows of values, one column per channel, of these tokens."""
        self.tokens += len(values)
        self.unplaced += len(values) if tokens is None else 0
        step = max(_LEAST_ROWS, _PIECE // self.channels)
        for start in range(0, len(values), step):
            some = slice(start, start + step)
            self._add(values[some].detach().float(), None if tokens is None else tokens.rows(some))

    def _add(self, values: Tensor, tokens: Tokens | None) -> None:
        sizes = values.abs()
        self.sketch.update(sizes)
        count = torch.full_like(self.count, len(values))
        lost = ~sizes.isfinite()
        # Both are rare, and to look is cheaper than to count by channel.
        if lost.any():
            sizes, values = sizes.masked_fill(lost, 0.0), values.masked_fill(lost, 0.0)
            self.non_finite += lost.sum(0)
            count -= lost.sum(0)
        small = sizes < NEAR_ZERO
        if small.any():
            self.near_zero += (small & ~lost).sum(0)
        wide = values.double()
        mean = wide.sum(0) / count.clamp(min=1)
        self._join(count, mean, wide.sub_(mean).masked_fill_(lost, 0.0).square_().sum(0))
        self._place(sizes, tokens)

    def _join(self, count: Tensor, mean: Tensor, squares: Tensor) -> None:
        """Moments of two sets made one (Chan, Golub, LeVeque 1979)."""
        total = (self.count + count).clamp(min=1)
        off = mean - self.mean
        self.mean += off * count / total
        self.squares += squares + off.square() * self.count * count / total
        self.count += count

    def _place(self, sizes: Tensor, tokens: Tokens | None) -> None:
        """Largest values by kind of token and by position, and where each channel has its largest."""
        largest, row = sizes.max(0)
        better = largest > self.peak.amax(0)
        if tokens is None:
            self.peak[OTHER] = torch.maximum(self.peak[OTHER], largest)
            self.peak_position[better] = self.peak_token[better] = NOWHERE
            return
        for kind in (FIRST, DELIMITER, OTHER):
            some = sizes[tokens.kind == kind]
            if len(some):
                self.peak[kind] = torch.maximum(self.peak[kind], some.amax(0))
        self.peak_position[better] = tokens.position[row[better]]
        self.peak_token[better] = tokens.token[row[better]]
        # The exponent of a float is the octave, exactly.
        octave = tokens.position.double().frexp().exponent + 1
        bins = torch.where(tokens.position < 4, tokens.position, octave.long()).clamp(max=_POSITION_BINS - 1)
        self.position_peak.scatter_reduce_(0, bins, sizes.amax(1), "amax")

    @torch.no_grad()
    def add_gradient(self, gradients: Tensor) -> None:
        """Add rows of the gradient of a loss; with labels drawn from the model this sums up the Fisher diagonal."""
        self.has_gradients = True
        self.squared_gradients += gradients.detach().double().square().sum(0)

    def merge(self, other: Self) -> None:
        """Add what was met elsewhere, such as by another process."""
        if other.channels != self.channels:
            raise BadInputError(f"{other.channels} channels cannot be merged into {self.channels}; match the modules.")
        here = self.count.device
        self.sketch.merge(other.sketch)
        better = other.peak.amax(0).to(here) > self.peak.amax(0)
        self._join(other.count.to(here), other.mean.to(here), other.squares.to(here))
        for mine, theirs in (
            (self.peak_position, other.peak_position),
            (self.peak_token, other.peak_token),
        ):
            mine[better] = theirs.to(here)[better]
        self.peak = torch.maximum(self.peak, other.peak.to(here))
        self.position_peak = torch.maximum(self.position_peak, other.position_peak.to(here))
        self.near_zero += other.near_zero.to(here)
        self.non_finite += other.non_finite.to(here)
        self.squared_gradients += other.squared_gradients.to(here)
        self.has_gradients |= other.has_gradients
        self.tokens += other.tokens
        self.unplaced += other.unplaced

    def summary(self, path: str = "", side: str = "output") -> ChannelSummary:
        """The statistics as a record of plain numbers."""
        count = self.count.clamp(min=1)
        first, delimiters, other = (tuple(row.tolist()) for row in self.peak)
        return ChannelSummary(
            path=path,
            side=side,
            tokens=self.tokens,
            unplaced=self.unplaced,
            peaks=tuple(self.peak.amax(0).tolist()),
            means=tuple(self.mean.tolist()),
            deviations=tuple((self.squares / count).sqrt().tolist()),
            medians=tuple(self.sketch.quantile(0.5).tolist()),
            q99=tuple(self.sketch.quantile(0.99).tolist()),
            place_peaks=(first, delimiters, other),
            peak_positions=tuple(self.peak_position.tolist()),
            peak_tokens=tuple(self.peak_token.tolist()),
            position_peaks=tuple(self.position_peak.tolist()),
            sparsity=float(self.near_zero.sum()) / max(1, int(self.count.sum())),
            non_finite=tuple(self.non_finite.tolist()),
            squared_gradients=tuple(self.squared_gradients.tolist()) if self.has_gradients else (),
        )


def sparsity(values: Tensor, below: float = NEAR_ZERO) -> float:
    """The share of values that are smaller than a limit."""
    return float((values.abs() < below).sum()) / max(1, values.numel())
