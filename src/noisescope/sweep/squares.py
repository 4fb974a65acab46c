"""Sums (y g)^2 over an operator's output y and the gradient g that arrives there, channel by channel, as it arrives.

Nothing is kept of a gradient. Of an output only what autograd keeps anyway is kept, or one tensor of its size where
autograd keeps none; what is as large as a context squared is computed anew, block by block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from noisescope.core.records import Site
from noisescope.inject.attention import attention_operands
from noisescope.inject.ops import OPERATOR_OF, product_of

# Values of one block: what stays near the processor.
_BLOCK = 1 << 16
# Of scores in fused attention: large enough for a matrix product, small beside the model.
_SCORES = 1 << 17
# The last dimension of these is a position or a part of a head, and no channel.
_WITHOUT_CHANNELS = frozenset({"matmul", "bmm", "softmax"})


class Squares:
    """The sums by site; the site's channels in float64, or one value where it has none."""

    def __init__(self) -> None:
        self.totals: dict[Site, Tensor] = {}

    def listen(self, site: Site, out: Tensor) -> None:
        """Follow an output whose values have to be kept until its gradient arrives."""
        if out.requires_grad:
            # Not the tensor itself: it would hold its own hook, and both would live until the next garbage collection.
            values = out.detach()
            out.register_hook(lambda grad: self._add(site, values, grad))

    def witness(self, site: Site, function: Callable[..., Any], args: Any, kwargs: Any, out: Any) -> None:
        """Follow a product, a softmax or an attention, given with its operands."""
        if not isinstance(out, Tensor) or not out.requires_grad:
            return
        if OPERATOR_OF.get(function) == "attention":
            values = out.detach()
            out.register_hook(lambda grad: self._add_attention(site, (args, kwargs), values, grad))
            return
        product = product_of(site.operator, function, (args, kwargs))
        if product is None or product.bias is not None or not _is_larger(out, product.left, product.right):
            self.listen(site, out)
            return
        left, right = product.left.detach(), product.right.detach()
        out.register_hook(lambda grad: self._add(site, left @ right, grad))

    def _add(self, site: Site, values: Tensor, grad: Tensor) -> None:
        with torch.no_grad():
            if site.operator in _WITHOUT_CHANNELS and values.dim() > 2:
                self._put(site, _total(values, grad))
            else:
                self._put(site, _by_channel(values, grad))

    def _add_attention(self, site: Site, call: tuple[Any, Any], values: Tensor, grad: Tensor) -> None:
        """The fused kernel hides a product, a softmax and a product, the last of which gives its output."""
        with torch.no_grad():
            context = _by_channel(values, grad)
            scores, weights = _inside_attention(call, grad)
            self._put(site, context)
            self._put(Site(site.layer, "matmul", site.path), scores + context.sum(0, keepdim=True))
            self._put(Site(site.layer, "softmax", site.path), weights)

    def _put(self, site: Site, total: Tensor) -> None:
        held = self.totals.get(site)
        if held is not None and held.shape != total.shape:
            total, held = total.sum(0, keepdim=True), held.sum(0, keepdim=True)
        self.totals[site] = total if held is None else held + total


def _is_larger(out: Tensor, left: Tensor, right: Tensor) -> bool:
    """Whether the operands, both of which autograd keeps because both need gradients, are less than the product."""
    both = left.requires_grad and right.requires_grad
    return both and out.numel() > left.numel() + right.numel()


def _total(values: Tensor, grad: Tensor) -> Tensor:
    """The sum over all elements, as one channel."""
    total = values.new_zeros(1, dtype=torch.float64)
    flat, slopes = values.reshape(-1), grad.reshape(-1)
    for first in range(0, len(flat), _BLOCK):
        part = slice(first, first + _BLOCK)
        total += _squared(flat[part].float() * slopes[part].float())
    return total


def _squared(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    return torch.dot(flat, flat)


def _by_channel(values: Tensor, grad: Tensor) -> Tensor:
    """The sum over all but the last dimension."""
    width = values.shape[-1]
    rows, slopes = values.reshape(-1, width), grad.reshape(-1, width)
    step = max(1, _BLOCK // max(1, width))
    # One partial sum per row of a block: few enough terms in each for float32.
    sums = torch.zeros(min(step, len(rows)), width, dtype=torch.float32, device=rows.device)
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        product = rows[part].float() * slopes[part].float()
        sums[: len(product)].addcmul_(product, product)
    return sums.sum(0, dtype=torch.float64)


def _inside_attention(call: tuple[Any, Any], grad: Tensor) -> tuple[Tensor, Tensor]:
    """The sums at the scores and at the weights of a fused attention.

    Weights P = softmax(c S) with S = Q K^T, out = P V: dP = dO V^T, and dS = c P (dP - rowsum(P dP)).
    """
    scores = torch.zeros(1, dtype=torch.float64, device=grad.device)
    weights = torch.zeros(1, dtype=torch.float64, device=grad.device)
    for raw, chances, slopes, scale in _blocks(call, grad):
        weighted = chances * slopes
        weights += _squared(weighted)
        through = weighted.sub_(chances.mul_(weighted.sum(-1, keepdim=True))).mul_(scale)
        scores += _squared(through.mul_(raw))
    return scores, weights


def _blocks(call: tuple[Any, Any], grad: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, float]]:
    """For blocks of queries: the raw scores, the weights, the gradient of the weights, and the factor in between."""
    args, kwargs = call
    query, key, value = (operand.detach().float() for operand in attention_operands(args, kwargs))
    options = dict(zip(("attn_mask", "dropout_p", "is_causal"), args[3:], strict=False)) | kwargs
    mask, scale = options.get("attn_mask"), options.get("scale")
    if options.get("enable_gqa"):
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else float(scale)
    length = query.size(-2)
    step = max(1, _SCORES * length // max(1, query[..., 0].numel() * key.size(-2)))
    for first in range(0, length, step):
        rows = slice(first, min(first + step, length))
        seen = slice(0, rows.stop if options.get("is_causal") else key.size(-2))
        raw = query[..., rows, :] @ key[..., seen, :].mT
        slopes = grad[..., rows, :].float() @ value[..., seen, :].mT
        yield raw, _weights(raw * scale, mask, rows, is_causal=bool(options.get("is_causal"))), slopes, scale


def _weights(scores: Tensor, mask: Tensor | None, rows: slice, *, is_causal: bool) -> Tensor:
    if is_causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(rows.start + 1)
        return scores.masked_fill_(ahead, -math.inf).softmax(-1)
    if mask is None:
        return scores.softmax(-1)
    part = mask if mask.size(-2) == 1 else mask[..., rows, :]
    scores = scores.masked_fill_(~part, -math.inf) if part.dtype is torch.bool else scores.add_(part)
    # A row that may attend to nothing attends to nothing.
    return scores.softmax(-1).masked_fill_((scores == -math.inf).all(-1, keepdim=True), 0.0)
