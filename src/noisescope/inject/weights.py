"""Rounds a weight matrix to a number format, by value: the matrix that a quantized linear layer computes with.

Nothing is packed, and no range is searched: scales come from the largest value of each row or block, to nearest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from noisescope.core.precision import WeightFormat
from noisescope.inject.formats import FORMATS, Format, integer, per_block, round_to
from noisescope.inject.size import widen


def rounded(weight: Tensor, form: WeightFormat) -> Tensor:
    """The nearest values that the format can hold, for a matrix of output rows by input columns, in its own dtype."""
    wide = widen(weight)
    if not form.scale_bits:
        return round_to(form.number, wide).to(weight.dtype)
    block = form.block or weight.shape[-1]
    if form.zero_bits:
        return _asymmetric(wide, form.bits, block).to(weight.dtype)
    number = _number_of(form)
    scale = per_block(wide, number, block)
    if form.scale_bits == 16:
        scale = _kept(scale)
    return (number.round(wide / scale) * scale).to(weight.dtype)


def _number_of(form: WeightFormat) -> Format:
    return integer(2 ** (form.bits - 1) - 1) if form.number == "integer" else FORMATS[form.number]


def _kept(scale: Tensor) -> Tensor:
    """A scale as 16 bits hold it: bfloat16, which quantizers of bfloat16 models use and which has no small range."""
    return round_to("bf16", scale).clamp(min=torch.finfo(torch.bfloat16).tiny)


def _asymmetric(wide: Tensor, bits: int, block: int) -> Tensor:
    """Codes from 0 on, with a zero point that is one of them: 0 stays 0."""
    top = 2**bits - 1
    columns = wide.shape[-1]
    blocks = torch.nn.functional.pad(wide, (0, -columns % block)).unflatten(-1, (-1, block))
    low, high = blocks.amin(-1, keepdim=True).clamp(max=0.0), blocks.amax(-1, keepdim=True).clamp(min=0.0)
    scale = _kept((high - low) / top)
    zero = (-low / scale).round().clamp(0, top)
    codes = ((blocks / scale).round() + zero).clamp(0, top)
    found: Tensor = ((codes - zero) * scale).flatten(-2)[..., :columns]
    return found
