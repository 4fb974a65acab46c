"""Number formats of few bits: their grids, rounding to them, and the round trip of a tensor through one.

Integer and block formats are simulated by value, on ordinary float tensors: nothing here stores packed bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.inject.call import Call, Kind
from noisescope.inject.size import peak, widen

GRANULARITIES = ("none", "tensor", "channel", "block")


@dataclass(frozen=True)
class Grid:
    """The values that a floating-point format can hold: stored mantissa bits, spacing at 0, largest finite value."""

    digits: int
    smallest: float
    largest: float


GRIDS: Mapping[str, Grid] = MappingProxyType(
    {
        "fp64": Grid(52, 2.0**-1074, torch.finfo(torch.float64).max),
        "fp32": Grid(23, 2.0**-149, torch.finfo(torch.float32).max),
        "bf16": Grid(7, 2.0**-133, torch.finfo(torch.bfloat16).max),
        "fp16": Grid(10, 2.0**-24, 65504.0),
        "fp8_e4m3": Grid(3, 2.0**-9, 448.0),
        "fp8_e5m2": Grid(2, 2.0**-16, 57344.0),
        "fp4_e2m1": Grid(1, 0.5, 6.0),
    }
)
_CASTS: Mapping[str, torch.dtype] = MappingProxyType({"fp64": torch.float64, "fp32": torch.float32})


def grid_of(name: str) -> Grid:
    """The grid of a floating-point format."""
    if name not in GRIDS:
        raise unknown_name("floating-point format", name, GRIDS)
    return GRIDS[name]


def power_below(x: Tensor) -> Tensor:
    """2 ** floor(log2 |x|) of float32 or float64 values, exactly: the exponent bits alone. Subnormals give 0."""
    if x.dtype == torch.float64:
        return (x.view(torch.int64) & 0x7FF0000000000000).view(torch.float64)
    return (x.view(torch.int32) & 0x7F800000).view(torch.float32)


def spacing(x: Tensor, grid: Grid) -> Tensor:
    """The distance from |x| to the next larger value of the grid, as if its exponents had no upper end."""
    return (power_below(x) * 2.0**-grid.digits).clamp(min=grid.smallest)


def round_to(name: str, x: Tensor) -> Tensor:
    """The nearest values of a format, ties to even, in x's own dtype.

    Beyond the largest finite value bf16 and fp16 overflow as torch's cast does, fp8 and fp4 saturate.
    """
    grid = grid_of(name)
    if name in _CASTS:
        return x.to(_CASTS[name]).to(x.dtype)
    # Casts to bf16 and fp16 and back would be shorter, but compilers drop them as redundant.
    if name == "bf16":
        return _to_bf16(x.float()).to(x.dtype)
    edge = 2 * grid.largest if name == "fp16" else grid.largest
    inside = x.clamp(-edge, edge)
    unit = spacing(inside, grid)
    nearest = (inside / unit).round() * unit
    return torch.where(nearest.abs() > grid.largest, nearest * math.inf, nearest)


def _to_bf16(x: Tensor) -> Tensor:
    # bf16 is the upper half of float32: adding just under half of the lower half, one more where the upper half is
    # odd, carries into it exactly when nearest even rounds up. It overflows to infinity by the same carry.
    whole = x.view(torch.int32)
    carried = whole + 0x7FFF + ((whole >> 16) & 1)
    return torch.where(x.isnan(), x, (carried & -0x10000).view(torch.float32))


@dataclass(frozen=True)
class Format:
    """How scaled values are rounded, and the scale that belongs to a peak. `bare`: usable without a scale."""

    round: Callable[[Tensor], Tensor]
    scale: Callable[[Tensor], Tensor]
    bare: bool


def _float(name: str) -> Format:
    return Format(partial(round_to, name), partial(_peak_to, GRIDS[name].largest), bare=True)


def integer(levels: int) -> Format:
    """Whole numbers from -levels to levels, the peak at the end."""
    return Format(partial(_round_integer, levels), partial(_peak_to, float(levels)), bare=False)


def _peak_to(largest: float, peaks: Tensor) -> Tensor:
    # A subnormal scale has few digits, or is 0 where the machine flushes subnormals: hence the lower end.
    return (peaks / largest).clamp(min=torch.finfo(peaks.dtype).tiny)


def _round_integer(levels: int, x: Tensor) -> Tensor:
    return x.round().clamp(-levels, levels) + 0.0  # integers have no -0


def _shared_power(peaks: Tensor) -> Tensor:
    # OCP MX 1.0: shared exponent floor(log2(peak)) - 2, for 2 is the exponent of e2m1's largest value. The exponents
    # of E8M0 end at -127, here at -126: 2 ** -127 is 0 where the machine flushes subnormals.
    return (power_below(peaks) * 0.25).clamp(2.0**-126, 2.0**127)


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "bf16": _float("bf16"),
        "fp16": _float("fp16"),
        "fp8_e4m3": _float("fp8_e4m3"),
        "fp8_e5m2": _float("fp8_e5m2"),
        "int8": integer(127),
        "int4": integer(7),
        "fp4_e2m1": _float("fp4_e2m1"),
        "mxfp4": Format(partial(round_to, "fp4_e2m1"), _shared_power, bare=False),
    }
)


def round_trip(name: str, y: Tensor, strength: float, call: Call, params: Mapping[str, Any]) -> Tensor:
    """The values after a round trip through a format, whatever the strength.

    Scales come from the finite values of the whole tensor, channel or block; NaN and infinity pass unchanged.
    `channel` is one scale per index of the last dimension. What is finite in the format stays finite in y's dtype.
    """
    x = widen(y)
    finite = x.isfinite()
    sound = torch.where(finite, x, 0.0)
    form = FORMATS[name]
    scale = _scale(name, sound, params)
    code = form.round(sound if scale is None else sound / scale)
    back = code if scale is None else code * scale
    top = torch.finfo(y.dtype).max
    kept = torch.where(code.isinf(), code, back.clamp(-top, top))
    return torch.where(finite, kept.to(y.dtype), y)


def _scale(name: str, x: Tensor, params: Mapping[str, Any]) -> Tensor | None:
    granularity, block = params["granularity"], params["block"]
    form = FORMATS[name]
    if granularity not in GRANULARITIES:
        raise unknown_name("granularity", granularity, GRANULARITIES)
    if granularity == "none":
        if form.bare:
            return None
        raise BadInputError(f"granularity 'none': {name} has no range without a scale; use tensor, channel or block.")
    if granularity == "tensor":
        return form.scale(peak(x))
    if granularity == "channel":
        return form.scale(x.reshape(-1, x.shape[-1]).abs().amax(0))
    return per_block(x, form, block)


def per_block(x: Tensor, form: Format, block: object) -> Tensor:
    """The scale of every value, from the peak of the block of neighbours in its row that it belongs to."""
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise BadInputError(f"block {block!r}: expected the number of neighbouring values that share a scale, >= 1.")
    width = x.shape[-1]
    padded = torch.nn.functional.pad(x.abs(), (0, -width % block))
    blocks = padded.reshape(*x.shape[:-1], -1, block)
    scales = form.scale(blocks.amax(-1, keepdim=True))
    return scales.expand(*scales.shape[:-1], block).flatten(-2)[..., :width]


VALUES: Mapping[str, Kind] = MappingProxyType({name: partial(round_trip, name) for name in FORMATS})
