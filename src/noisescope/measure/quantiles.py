"""Quantiles of many streams at once, one per channel, from counts of fixed size with a bounded relative error.

It keeps no values, and it knows sizes alone (numbers >= 0): signs are the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor

from noisescope.core.errors import BadInputError

# A bin is named by the exponent and the first four bits of the mantissa of a float32.
BINS_PER_OCTAVE = 16
_BELOW = 23 - 4
_NOT_FINITE = 255 * BINS_PER_OCTAVE
# For a bin [l, u) the answer 2lu / (l + u) is off by at most (u - l) / (u + l) of the value; the widest is [16, 17).
RELATIVE_ERROR = 1 / 33
# Bins by channel are moved and summed in parts, so that the scratch memory does not grow with the channels.
_PART = 1024


class QuantileSketch:
    """Counts per channel over the octaves below the largest size that the channel has met.

    Sizes further down than `octaves` count as 0. The counts depend on the values alone, not on their order nor on how
    they were cut into updates. A channel takes 2**31 values at most.
    """

    def __init__(self, channels: int, octaves: int = 16, device: torch.device | None = None) -> None:
        self.bins = octaves * BINS_PER_OCTAVE
        # One more for what is passed over.
        self._flat = torch.zeros(channels * self.bins + 1, dtype=torch.int32, device=device)
        self._top = torch.zeros(channels, dtype=torch.int32, device=device)
        self._first = torch.arange(channels, dtype=torch.int32, device=device) * self.bins

    @property
    def counts(self) -> Tensor:
        """How many sizes each bin holds, by channel."""
        return self._flat[:-1].view(-1, self.bins)

    def update(self, sizes: Tensor) -> None:
        """Add rows of sizes, one column per channel. What is not finite is passed over."""
        if not sizes.numel():
            return
        named = sizes.float().contiguous().view(torch.int32) >> _BELOW
        lost = named >= _NOT_FINITE
        named.masked_fill_(lost, 0)
        self._raise(named.amax(0))
        named.sub_(self._top - (self.bins - 1)).clamp_(min=0).add_(self._first)
        named.masked_fill_(lost, len(self._flat) - 1)
        one = torch.ones((), dtype=torch.int32, device=named.device)
        self._flat.index_add_(0, named.view(-1), one.expand(named.numel()))

    def merge(self, other: Self) -> None:
        """Add what another sketch of as many channels has met."""
        if other.counts.shape != self.counts.shape:
            raise BadInputError(
                f"a sketch of {tuple(other.counts.shape)} channels and bins cannot be merged into one of "
                f"{tuple(self.counts.shape)}; make both for the same tensor."
            )
        self._raise(other._top.to(self._top.device))
        for part in _parts(torch.arange(len(self._top), device=self._top.device)):
            theirs = other.counts[part.to(other._top.device)].to(self._flat.device)
            shift = self._top[part] - other._top.to(self._top.device)[part]
            self.counts[part] += _slid(theirs, shift)

    def quantile(self, share: float) -> Tensor:
        """By channel, the smallest size that at least this share of the sizes does not exceed; NaN without any."""
        found = [self._quantile(part, share) for part in _parts(torch.arange(len(self._top), device=self._top.device))]
        return torch.cat(found) if found else self._top.double()

    def _quantile(self, part: Tensor, share: float) -> Tensor:
        sums = self.counts[part].cumsum(1)
        total = sums[:, -1]
        # A share such as 0.07 times 100 must not come out above 7.
        rank = (share * total.double() - 1e-9).ceil().clamp(min=1)
        place = (sums < rank[:, None]).sum(1).clamp(max=self.bins - 1)
        name = self._top[part] - (self.bins - 1) + place
        value = torch.where((place == 0) | (name <= 0), 0.0, _value(name.clamp(min=0).int()))
        return torch.where(total > 0, value, torch.nan)

    def _raise(self, top: Tensor) -> None:
        """Let the largest sizes be at least these; what falls off below is counted in the lowest bin."""
        top = torch.maximum(self._top, top)
        shift = top - self._top
        for part in _parts((shift > 0).nonzero().flatten()):
            counts = self.counts[part]
            if counts.any():
                self.counts[part] = _slid(counts, shift[part])
        self._top = top


def _parts(channels: Tensor) -> Iterator[Tensor]:
    return iter(channels.split(_PART)) if len(channels) else iter(())


def _slid(counts: Tensor, shift: Tensor) -> Tensor:
    """The counts with every bin named `shift` lower, and the lowest bin taking in all that ends up below it."""
    bins = counts.shape[1]
    source = torch.arange(bins, device=counts.device) + shift[:, None]
    sums = counts.cumsum(1).gather(1, source.clamp(max=bins - 1))
    return sums.diff(dim=1, prepend=torch.zeros_like(sums[:, :1])).int()


def _value(name: Tensor) -> Tensor:
    low, high = ((n << _BELOW).view(torch.float32).double() for n in (name, name + 1))
    return 2 * low / (1 + low / high)
