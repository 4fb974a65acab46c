"""Faults that the engine does not know, put on a module from outside: what no list of kinds foresaw.

Each takes a healthy output and returns the faulty one; none looks at which module it is on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

Change = Callable[[Tensor], Tensor]


def stale_tile(y: Tensor) -> Tensor:
    """A tile of rows still holds what the tile before it gave."""
    rows = y.reshape(-1, y.shape[-1])
    half = max(1, y.shape[-1] // 2)
    rows[4:8, :half] = rows[0:4, :half]
    return rows.reshape(y.shape)


def swapped_channels(y: Tensor) -> Tensor:
    """Two neighbouring channels change places."""
    y[..., [2, 3]] = y[..., [3, 2]]
    return y


def transposed_head(y: Tensor) -> Tensor:
    """A block of 8 x 8 values is written transposed."""
    block = y[..., :8, :8].transpose(-1, -2).clone()
    if block.shape[-1] == block.shape[-2]:
        y[..., :8, :8] = block
    return y


def short_mantissa(y: Tensor) -> Tensor:
    """The last bits of the mantissa are cut: 3 of 7 in bfloat16, 10 of 23 in float32."""
    if y.dtype is torch.float32:
        return (y.view(torch.int32) & -1024).view(torch.float32)
    return (y.view(torch.int16) & -8).view(y.dtype)


def strided_stuck_bit(y: Tensor) -> Tensor:
    """In every 16th channel the highest bit of the mantissa is stuck at 1."""
    chosen = y[..., ::16].contiguous()
    if y.dtype is torch.float32:
        stuck = (chosen.view(torch.int32) | (1 << 22)).view(torch.float32)
    else:
        stuck = (chosen.view(torch.int16) | (1 << (6 if y.dtype is torch.bfloat16 else 9))).view(y.dtype)
    y[..., ::16] = stuck
    return y


def wrong_eps(y: Tensor) -> Tensor:
    """As if a norm had added a thousandth of the variance to it."""
    return (y.float() / 1.001**0.5).to(y.dtype) if y.dtype is torch.float32 else (y.float() / 1.01**0.5).to(y.dtype)


def one_element(y: Tensor) -> Tensor:
    """One value of all is off by a quarter of the largest."""
    flat = y.reshape(-1)
    flat[flat.numel() // 3] += 0.25 * flat.abs().max()
    return flat.reshape(y.shape)


def lost_row(y: Tensor) -> Tensor:
    """The last row of the output was never written."""
    y[..., -1, :] = 0
    return y


STRANGE: dict[str, Change] = {
    change.__name__: change
    for change in (
        stale_tile,
        swapped_channels,
        transposed_head,
        short_mantissa,
        strided_stuck_bit,
        wrong_eps,
        one_element,
        lost_row,
    )
}


class Spoiled:
    """A module whose output a strange fault changes, in every call or in a share `rate`; `changed` says if it did."""

    def __init__(self, module: nn.Module, change: Change, rate: float | None = None, seed: int = 0) -> None:
        self.module, self.change, self.changed, self.rate = module, change, False, rate
        self._drawn = torch.Generator().manual_seed(seed)
        self._handle: RemovableHandle | None = None

    def __enter__(self) -> Spoiled:
        self._handle = self.module.register_forward_hook(self._hook)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _hook(self, _module: nn.Module, _args: object, out: object) -> object:
        if self.rate is not None and float(torch.rand((), generator=self._drawn)) >= self.rate:
            return out
        first = out[0] if isinstance(out, tuple) else out
        if not isinstance(first, Tensor) or first.dim() < 2:
            return out
        bad = self.change(first.clone())
        self.changed = self.changed or not torch.equal(bad, first)
        return (bad, *out[1:]) if isinstance(out, tuple) else bad
