"""Attention taken apart: the two products and the softmax that a fused kernel hides, each run through a tap.

The call is that of `torch.nn.functional.scaled_dot_product_attention`. The softmax runs in float32, as in the unfused
path of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Tap = Callable[..., Tensor]
_AFTER_VALUE = ("attn_mask", "dropout_p", "is_causal")


def attention_operands(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of a call."""
    named = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
    return named["query"], named["key"], named["value"]


def unfused_attention(tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Scaled dot-product attention with `tap(operator, function, *args)` around every elementary operator."""
    named = dict(zip(("query", "key", "value", *_AFTER_VALUE), args, strict=False)) | kwargs
    query, key, value = named["query"], named["key"], named["value"]
    if named.get("enable_gqa"):
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scale = named.get("scale")
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = tap("matmul", torch.matmul, query, key.transpose(-2, -1)) * scale
    weights = _weights(tap, scores, named.get("attn_mask"), bool(named.get("is_causal"))).to(query.dtype)
    share = named.get("dropout_p") or 0.0
    return tap("matmul", torch.matmul, F.dropout(weights, share) if share else weights, value)


def _weights(tap: Tap, scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask
    wide = torch.float64 if scores.dtype is torch.float64 else torch.float32
    weights = tap("softmax", F.softmax, scores, dim=-1, dtype=wide)
    if mask is None:
        return weights
    # A row that may attend to nothing gives 0 and not NaN, as the fused kernels do.
    return weights.masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0.0)
