"""The registry of corruption kinds, and the noises in it: functions from an output to the error to add to it.

It does not add the error: `landing` does, with the rounding, the reached elements and strength 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from noisescope.inject import faults, formats
from noisescope.inject.call import Call, Kind, Product
from noisescope.inject.size import rms, widen

__all__ = ["ERRORS", "VALUES", "Call", "Kind", "Product"]

Params = Mapping[str, Any]
_LARGEST = torch.finfo(torch.float32).max
_LARGE = _LARGEST / 16


def relative_gaussian(y: Tensor, scale: float, call: Call, params: Params) -> Tensor:
    """n * x * scale: n is symmetric, so this is n * |x| * scale in law, and one pass cheaper."""
    x = widen(y)
    return _scaled(call.fresh.normal(x), scale) * x


def _scaled(draws: Tensor, scale: float) -> Tensor:
    """Draws times scale, kept finite: what is infinite would make no number of a zero."""
    return draws * scale if scale < _LARGE else (draws * scale).clamp(-_LARGEST, _LARGEST)


def absolute_gaussian(y: Tensor, scale: float, call: Call, params: Params) -> Tensor:
    """n * scale."""
    return call.fresh.normal(y).to(widen(y).dtype) * scale


def rms_gaussian(y: Tensor, scale: float, call: Call, params: Params) -> Tensor:
    """n * rms(x) * scale, with the rms of the whole tensor even where a few channels are reached."""
    x = widen(y)
    return call.fresh.normal(x).to(x.dtype) * (rms(x) * scale)


def relative_uniform(y: Tensor, scale: float, call: Call, params: Params) -> Tensor:
    """Uniform in +-sqrt(3) * |x| * scale: the standard deviation of `relative_gaussian`."""
    x = widen(y)
    return _scaled(call.fresh.uniform(x) - 0.5, math.sqrt(12) * scale) * x


def ulp(y: Tensor, scale: float, call: Call, params: Params) -> Tensor:
    """Uniform in +-scale / 2 ulps of `dtype` at each value. 0 has no rounding error and gets none."""
    x = widen(y)
    unit = formats.spacing(x, formats.grid_of(params["dtype"])) * (x != 0)
    return (call.fresh.uniform(x) - 0.5) * (unit * scale)


ERRORS: Mapping[str, Kind] = MappingProxyType(
    {
        "relative_gaussian": relative_gaussian,
        "absolute_gaussian": absolute_gaussian,
        "rms_gaussian": rms_gaussian,
        "relative_uniform": relative_uniform,
        "ulp": ulp,
        "noise": rms_gaussian,
    }
)
VALUES: Mapping[str, Kind] = MappingProxyType({**formats.VALUES, **faults.VALUES})
