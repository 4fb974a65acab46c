"""Lays the tensors of a run out as rows of channels, one row per token, and puts changed rows back.

Fused and written-out attention hold the same values in different layouts; here they become the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Layout = Literal["plain", "heads", "grid", "scores"]
# Code masks scores by adding the least value of a dtype or a large constant: both mean that a token is not looked at.
_MASKED = -1e4


@dataclass(frozen=True)
class Laid:
    """A tensor of a run. `keep` says which of its rows are tokens and not padding; None: all.

    `groups`: how many query heads share a head of it; it is shown with one head for each of them.
    """

    tensor: Tensor
    layout: Layout
    keep: Tensor | None
    groups: int = 1

    @property
    def rows(self) -> Tensor:
        """The values as [row, channel], where they are."""
        rows = self._spread()
        return rows if self.keep is None else rows[self.keep.to(rows.device)]

    def put(self, rows: Tensor) -> Tensor:
        """A tensor like this one with other rows; padding stays as it is."""
        x = self.tensor
        rows = rows.to(x.device, x.dtype)
        if self.layout == "scores":
            rows = torch.where(rows.isfinite(), rows, torch.finfo(x.dtype).min)
        whole = rows
        if self.keep is not None:
            whole = self._spread().clone()
            whole[self.keep.to(x.device)] = rows
        if self.layout == "plain":
            return whole.view(x.shape)
        if self.layout == "heads":
            batch, heads, length, width = x.shape
            return whole.view(batch, length, heads * self.groups, width).transpose(1, 2)[:, :: self.groups]
        batch, heads, queries, keys = x.shape
        return whole.view(batch, queries, keys, heads).permute(0, 3, 1, 2).contiguous()

    def _spread(self) -> Tensor:
        x = self.tensor.detach()
        if self.layout == "plain":
            return x.reshape(-1, x.shape[-1])
        if self.layout == "heads":
            x = x.repeat_interleave(self.groups, 1) if self.groups > 1 else x
            return x.transpose(1, 2).reshape(-1, x.shape[1] * x.shape[3])
        rows = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
        return torch.where(rows <= _MASKED, -torch.inf, rows) if self.layout == "scores" else rows


def laid(x: Tensor, mask: Tensor | None, layout: Layout = "plain", groups: int = 1) -> Laid:
    """A tensor with the rows that count: `mask` [batch, token] says which tokens are not padding."""
    return Laid(x, layout, None if mask is None else _kept(x, mask, layout), groups)


def _kept(x: Tensor, mask: Tensor, layout: Layout) -> Tensor | None:
    batch, length = mask.shape
    mask = mask > 0
    if bool(mask.all()):
        return None
    if layout == "plain":
        if x.shape[:2] == (batch, length) and x.dim() > 2:
            return mask.reshape(batch, length, *[1] * (x.dim() - 3)).expand(x.shape[:-1]).reshape(-1)
        return mask.reshape(-1) if x.dim() == 2 and len(x) == batch * length else None
    if x.shape[0] != batch or x.shape[2] != length:
        return None
    return mask.reshape(-1) if layout == "heads" else mask[:, :, None].expand(-1, -1, x.shape[3]).reshape(-1)
