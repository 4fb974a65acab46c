"""Recomputes softmax, activations and attention on the host in float64, with what rounding allows for each.

Inputs and outputs are those that the run had. Products are checked in `products`; modules as a whole in `replay`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from noisescope.measure.judged import Judged
from noisescope.measure.judging import judge
from noisescope.measure.products import chosen_rows
from noisescope.measure.rounding import host, sum_unit, unit

# Errors of exp, erf and tanh as libraries make them, in roundings of the format that they compute in.
_FUNCTION = 32.0
_VALUES = 1 << 19
_SIGMAS = 4.0


def sampled(x: Tensor, out: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of an input and its output of the same shape, not more than are worth the host's time."""
    width = max(out.shape[-1], 1) if out.dim() else 1
    x, out = x.detach().reshape(1, -1, width), out.detach().reshape(1, -1, width)
    most = max(_VALUES // width, 8)
    if out.shape[1] <= most:
        return x, out
    rows = chosen_rows(out, most, generator).to(out.device)
    return x[:, rows], out[:, rows]


def check_activation(operator: str, x: Tensor, out: Tensor, how: Mapping[str, Any]) -> Judged:
    """silu or gelu, value by value. In its tails a gelu is a difference, whose error goes by the input."""
    exact = F.silu(host(x)) if operator == "silu" else F.gelu(host(x), **how)
    allowed = _FUNCTION * sum_unit(out.dtype) * (host(x).abs() + exact.abs())
    return judge("oracle", out, exact, allowed)


def check_softmax(x: Tensor, out: Tensor) -> Judged:
    """Softmax along the last dimension. Rows that may attend to nothing are left out."""
    scores = host(x)
    exact = scores.softmax(-1)
    depth = (scores.amax(-1, keepdim=True) - scores).nan_to_num(posinf=0.0)
    # exp(x - max) carries the rounding of its argument, the sum that of its terms.
    allowed = exact * sum_unit(out.dtype) * (_FUNCTION + 2 * depth + math.sqrt(x.shape[-1]))
    return judge("oracle", out, exact, allowed)


def check_attention(named: Mapping[str, Any], out: Tensor) -> Judged:
    """Scaled dot-product attention from its query, key, value and mask.

    Fused kernels keep scores in float32 and probabilities in the short dtype, unfused ones round all of them to it. An
    error e_j of score j moves the output by p_j e_j (v_j - y), a rounding of p_j by p_j u v_j.
    """
    query, key, value = (host(named[name]) for name in ("query", "key", "value"))
    if named.get("enable_gqa"):
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scale = named.get("scale")
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = masked(query @ key.mT * scale, named)
    chances = scores.softmax(-1)
    exact = chances @ value
    rough, fine, terms = unit(out.dtype), sum_unit(out.dtype), query.shape[-1]
    # The inputs of the scores may be scaled, and so rounded, before they meet.
    size = (query.square() @ key.square().mT).sqrt() * abs(scale)
    moved = 2 * rough * size + rough * scores.abs().nan_to_num(posinf=0.0) + fine * math.sqrt(terms) * size
    weight = (chances * (moved + fine * _FUNCTION)).square()
    spread = weight @ value.square() + weight.sum(-1, keepdim=True) * exact.square()
    own = (rough**2 + fine**2 * chances.shape[-1]) * (chances.square() @ value.square())
    return judge("oracle", out, exact, _SIGMAS * (spread + own).sqrt() + rough * exact.abs())


def masked(scores: Tensor, named: Mapping[str, Any]) -> Tensor:
    """Scores with the mask of an attention call on them."""
    if named.get("is_causal"):
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    mask = named.get("attn_mask")
    if mask is None:
        return scores
    if mask.dtype is torch.bool:
        return scores.masked_fill(~mask.cpu(), -math.inf)
    return scores + host(mask)


def check_lookup(weight: Tensor, ids: Tensor, out: Tensor) -> Judged:
    """An embedding copies rows: every bit of them has to be there."""
    exact = host(weight[ids.to(weight.device).reshape(-1)]).reshape(out.shape)
    return judge("lookup", out, exact, 0.0)
