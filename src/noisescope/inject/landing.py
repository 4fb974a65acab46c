"""Lands a corruption on an output: which elements it reaches, how the error is rounded, what stays untouched.

It does not choose the calls to be corrupted and carries no gradient: whoever needs one passes it around the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from noisescope.core.errors import BadInputError
from noisescope.core.records import Corruption, is_number
from noisescope.inject.formats import GRIDS, Grid, grid_of, spacing
from noisescope.inject.keyed import Draw
from noisescope.inject.kinds import ERRORS, VALUES, Call
from noisescope.inject.size import widen

_GRIDS: Mapping[torch.dtype, Grid] = MappingProxyType(
    {
        torch.float64: GRIDS["fp64"],
        torch.float32: GRIDS["fp32"],
        torch.bfloat16: GRIDS["bf16"],
        torch.float16: GRIDS["fp16"],
    }
)

# Children of a call's draws. The native kernel rounds with the same one; noises use no other.
_ROUNDING, _REACH = 1, 12

# From this many ulps on, float32 holds no fraction of an ulp to be rounded.
_COARSE = 2**20

# In float32 and wider, from this scale on, in eps of the dtype, nearest rounding of y + e keeps the rms of e within
# 0.3 %. Noise that goes by the rms must also show on channels 100 times the rms; noise of absolute size may meet any
# value.
_PLAIN_FROM: Mapping[str, float] = MappingProxyType(
    {
        "relative_gaussian": 4,
        "relative_uniform": 4,
        "rms_gaussian": 512,
        "noise": 512,
        "absolute_gaussian": math.inf,
        "ulp": 16,
    }
)


@torch.no_grad()
def corrupt(y: Tensor, corruption: Corruption, strength: float, call: Call) -> Tensor:
    """A new tensor like y with the corruption in it. `strength` stands in place of the corruption's own.

    Strength 0, tensors that are not floating point and, for faults, float64 come back with the same bits. Statistics
    (rms, maximum, scales of a format) are those of the whole tensor even where `channels` or `fraction` reach a part.
    """
    if not is_number(strength) or not 0 <= strength < math.inf:
        raise BadInputError(f"strength {strength!r} of {corruption.kind}: expected a finite number >= 0.")
    if strength == 0 or y.numel() == 0 or not y.is_floating_point():
        return y.clone()
    if corruption.hardware and y.dtype == torch.float64:
        return y.clone()
    if y.dtype not in _GRIDS:
        raise BadInputError(f"{y.dtype} output: expected float32, bfloat16, float16, float64; leave its operator out.")
    if y.dim() == 0:
        return corrupt(y.reshape(1), corruption, strength, call).reshape(())
    params = corruption.spec_params
    if corruption.kind in ERRORS:
        changed = _noisy(y, corruption.kind, strength, call, params)
    else:
        changed = VALUES[corruption.kind](y, strength, call, params)
    reached = _reached(y, params, call.fixed)
    return changed if reached is None else torch.where(reached, changed, y)


def land(y: Tensor, error: Tensor, draw: Draw) -> Tensor:
    """y + error, rounded once to y's dtype so that the mean square of the error is kept at every scale.

    Nearest rounding swallows errors below half an ulp. Here t = |error| / ulp(y) becomes a whole number of ulps, f or
    f + 1 with f = floor(t), the latter with p = (t^2 - f^2) / (2f + 1); then E[k^2] = f^2 + p (2f + 1) = t^2. A
    symmetric error keeps its zero mean. Error 0 gives y's bits; the finite stays finite, and the rest stays as it is.
    """
    x = widen(y)
    unit = spacing(x, _GRIDS[y.dtype])
    size = error.abs() / unit
    whole = size.floor()
    steps = whole + (draw.uniform(x) * (2 * whole + 1) < (size - whole) * (size + whole))
    # Large errors are off y's own grid (y may be 0); and where unit is flushed to 0 the comparison is False.
    step = torch.where(size < _COARSE, steps * unit, error.abs())
    return _add(y, torch.copysign(step, error))


def _noisy(y: Tensor, kind: str, strength: float, call: Call, params: Mapping[str, Any]) -> Tensor:
    # Beyond the range of the computation the scale would be infinite, and infinity * 0 is no number.
    scale = min(strength, torch.finfo(widen(y).dtype).max)
    error = ERRORS[kind](y, scale, call, params)
    ratio = 2.0 ** -grid_of(params["dtype"]).digits if kind == "ulp" else 1.0
    short = torch.finfo(y.dtype).bits < 32
    if not short and strength * ratio >= _PLAIN_FROM[kind] * torch.finfo(y.dtype).eps:
        return _add(y, error)
    return land(y, error, call.fresh.child(_ROUNDING))


def _add(y: Tensor, error: Tensor) -> Tensor:
    top = torch.finfo(y.dtype).max
    moved = (widen(y) + error).clamp(-top, top).to(y.dtype)
    return torch.where(y.isfinite() & (error != 0), moved, y)


def _reached(y: Tensor, params: Mapping[str, Any], fixed: Draw) -> Tensor | None:
    """Which elements the corruption reaches, broadcastable to y; None for all."""
    chosen, fraction = params["channels"], params["fraction"]
    reached = None if chosen is None else _of_channels(y, tuple(chosen))
    if fraction < 1:
        share = fixed.child(_REACH).uniform(y) < fraction
        reached = share if reached is None else reached & share
    return reached


def _of_channels(y: Tensor, chosen: tuple[int, ...]) -> Tensor:
    width = y.shape[-1]
    outside = [c for c in chosen if not 0 <= c < width]
    if outside or not chosen:
        seen = f"channels {outside}" if outside else "no channels"
        raise BadInputError(f"{seen}: expected indices 0 to {width - 1}, for the last dimension is {width} wide.")
    mask = torch.zeros(width, dtype=torch.bool)
    mask[list(chosen)] = True
    return mask.to(y.device, non_blocking=True)
