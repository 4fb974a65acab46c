"""The faults of a simulated machine as functions from a healthy output to the faulty one.

They do not decide which elements are reached, and magnitude 0 never comes here: `landing.corrupt` sees to both. The
fault `noise` is an error to be added and stands with the noises in `kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from noisescope.core.errors import BadInputError
from noisescope.core.records import is_number
from noisescope.inject.call import Call, Kind
from noisescope.inject.formats import grid_of, round_to
from noisescope.inject.size import peak, rms, widen

Params = Mapping[str, Any]

# Children of a call's draws, so that two draws of one fault never share their numbers.
_HIT, _VALUE, _CHANNEL = 1, 2, 3

_BITS: Mapping[torch.dtype, tuple[torch.dtype, int]] = MappingProxyType(
    {
        torch.float32: (torch.int32, 32),
        torch.bfloat16: (torch.int16, 16),
        torch.float16: (torch.int16, 16),
    }
)


def dead_zone(y: Tensor, magnitude: float, call: Call, params: Params) -> Tensor:
    """Values below magnitude * rms become 0; with `limit`, values below that, and the magnitude only switches on."""
    limit = _limit(params)
    threshold = magnitude * rms(y) if limit is None else limit
    return torch.where(widen(y).abs() < threshold, torch.zeros_like(y), y)


def saturation(y: Tensor, magnitude: float, call: Call, params: Params) -> Tensor:
    """Values are clamped to magnitude * max|x|, or to `limit`; infinity is clamped too, NaN stays.

    The maximum is that of the whole tensor even where a few channels are reached: a machine has one range per tensor.
    """
    limit = _limit(params)
    bound = magnitude * peak(y) if limit is None else torch.full((), limit, dtype=torch.float32, device=y.device)
    x = widen(y)
    return torch.where(x.abs() > bound, torch.copysign(bound, x).to(y.dtype), y)


def spike(y: Tensor, magnitude: float, call: Call, params: Params) -> Tensor:
    """A share `rate` of the values, other ones in each run, is multiplied by 1 / magnitude; it may overflow."""
    return torch.where(_hits(y, call, params), (widen(y) * (1 / magnitude)).to(y.dtype), y)


def bit_flip(y: Tensor, magnitude: float, call: Call, params: Params) -> Tensor:
    """Bit `bit` (0 the lowest; None: any, drawn per value) flips in a share `rate` of the values, other ones each run.

    The bits are those of the tensor's own dtype, its sign the highest. The magnitude only switches the fault on.
    """
    whole, width = _BITS[y.dtype]
    bit = params["bit"]
    if bit is None:
        chosen = (call.fresh.child(_VALUE).uniform(y) * width).to(whole)
        mask = torch.ones_like(chosen).bitwise_left_shift(chosen)
    elif isinstance(bit, bool) or not isinstance(bit, int) or not 0 <= bit < width:
        raise BadInputError(f"bit {bit!r}: expected 0 to {width - 1} (sign), the bits of {y.dtype}.")
    else:
        mask = torch.full((), 1 << bit if bit < width - 1 else -(1 << bit), dtype=whole, device=y.device)
    return torch.where(_hits(y, call, params), (y.view(whole) ^ mask).view(y.dtype), y)


def stuck_at_zero(y: Tensor, magnitude: float, call: Call, params: Params) -> Tensor:
    """The channels given in `channels` are 0, or else a share `rate` of all, at least one, the same in every run.

    Rate 0 sticks none. The magnitude only switches the fault on.
    """
    if params["channels"] is not None:
        return torch.zeros_like(y)
    width = y.shape[-1]
    count = max(1, round(params["rate"] * width)) if params["rate"] else 0
    chosen = call.fixed.child(_CHANNEL).uniform(y.new_empty(width)).topk(count).indices
    stuck = torch.zeros(width, dtype=torch.bool, device=y.device).index_fill(0, chosen, True)
    return torch.where(stuck, torch.zeros_like(y), y)


def value_corruption(y: Tensor, magnitude: float, call: Call, params: Params) -> Tensor:
    """A share `rate` of the values, other ones in each run, is drawn anew, uniform in +-magnitude * max|x|."""
    drawn = (call.fresh.child(_VALUE).uniform(y) * 2 - 1) * (magnitude * peak(y))
    return torch.where(_hits(y, call, params), drawn.to(y.dtype), y)


def stuck_channel(y: Tensor, magnitude: float, call: Call, params: Params) -> Tensor:
    """Channel `channel` of the last dimension holds magnitude * rms of the whole tensor."""
    channel, width = params["channel"], y.shape[-1]
    if isinstance(channel, bool) or not isinstance(channel, int) or not 0 <= channel < width:
        raise BadInputError(f"channel {channel!r}: expected 0 to {width - 1}, for the last dimension is {width} wide.")
    stuck = torch.arange(width, device=y.device) == channel
    return torch.where(stuck, (magnitude * rms(y)).to(y.dtype), y)


def gain_drift(y: Tensor, magnitude: float, call: Call, params: Params) -> Tensor:
    """Every value times 1 + magnitude, rounded to nearest: a drift below half an ulp of the dtype leaves no trace."""
    return (widen(y) * (1 + magnitude)).to(y.dtype)


def offset(y: Tensor, magnitude: float, call: Call, params: Params) -> Tensor:
    """Every value plus magnitude * rms of the whole tensor, rounded to nearest as in `gain_drift`."""
    return (widen(y) + magnitude * rms(y)).to(y.dtype)


def exp_lut(y: Tensor, magnitude: float, call: Call, params: Params) -> Tensor:
    """A softmax along the last dimension whose exp is read from a table with steps of `magnitude` nats.

    The table is entered below the argument, so that exp comes out too small by up to exp(-magnitude); rows still sum
    to 1. A probability of 0 stays 0; rows that are no softmax (all 0, or not finite) stay as they are.
    """
    p = widen(y)
    largest = p.amax(-1, keepdim=True)
    steps = ((p / largest).log() / magnitude).floor()
    coarse = (steps * magnitude).exp()
    rows = coarse / coarse.sum(-1, keepdim=True)
    return torch.where(rows.isfinite(), rows.to(y.dtype), y)


def low_precision_accumulation(y: Tensor, magnitude: float, call: Call, params: Params) -> Tensor:
    """A matrix product whose running sum is rounded to `dtype` after every `chunk` terms, and after the bias.

    Within a chunk sums are in float32. The magnitude only switches the fault on.
    """
    name, chunk = params["dtype"], params["chunk"]
    grid_of(name)
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise BadInputError(f"chunk {chunk!r}: expected the number of terms summed between two roundings, >= 1.")
    if call.product is None:
        raise BadInputError(
            "this call is no product of two matrices that can be computed anew (a grouped product, an einsum): "
            "low_precision_accumulation does not fit it. Name the operators or layers that it should act on."
        )
    total = torch.zeros((), dtype=torch.float32, device=y.device)
    for partial in call.product.chunks(chunk):
        total = round_to(name, total + partial)
    if total.numel() != y.numel() or (total.shape != y.shape and y.numel() != 1):
        seen = f"product of shape {tuple(total.shape)} for an output of shape {tuple(y.shape)}"
        raise BadInputError(f"{seen}: expected the operands of the call that made the output.")
    return total.to(y.dtype).reshape(y.shape)


def _limit(params: Params) -> float | None:
    limit = params["limit"]
    if limit is not None and not (is_number(limit) and limit >= 0):
        raise BadInputError(f"limit {limit!r}: expected an absolute value >= 0, or None to go by the magnitude.")
    return None if limit is None else float(limit)


def _hits(y: Tensor, call: Call, params: Params) -> Tensor:
    return call.fresh.child(_HIT).uniform(y).lt(params["rate"])


VALUES: Mapping[str, Kind] = MappingProxyType(
    {
        "dead_zone": dead_zone,
        "saturation": saturation,
        "spike": spike,
        "bit_flip": bit_flip,
        "stuck_at_zero": stuck_at_zero,
        "value_corruption": value_corruption,
        "stuck_channel": stuck_channel,
        "gain_drift": gain_drift,
        "offset": offset,
        "exp_lut": exp_lut,
        "low_precision_accumulation": low_precision_accumulation,
    }
)
