"""What rounding is: the spacing of a dtype, and values in float64 on the host.

It compares nothing; `judging` does.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Of a wide dtype, the whole numbers of its size and where its exponent is in them.
_EXPONENTS = {torch.float64: (torch.int64, 0x7FF0000000000000), torch.float32: (torch.int32, 0x7F800000)}


def host(x: Tensor) -> Tensor:
    """The values in float64 on the host."""
    # Widening a short format by way of float32 is exact as well, and several times faster.
    here = x.detach().to("cpu")
    return here.to(torch.float32).to(torch.float64) if is_short(x.dtype) else here.to(torch.float64)


def is_short(dtype: torch.dtype) -> bool:
    """Whether a dtype is one of 16 bits."""
    return dtype in (torch.bfloat16, torch.float16)


def unit(dtype: torch.dtype) -> float:
    """The largest relative error of one rounding to nearest."""
    return torch.finfo(dtype).eps / 2


def sum_unit(dtype: torch.dtype) -> float:
    """The same for the format in which sums of a dtype are kept: float32 for all short ones."""
    return unit(torch.float64 if dtype is torch.float64 else torch.float32)


def half_spacing(size: Tensor, dtype: torch.dtype) -> Tensor:
    """Half the distance between neighbours of a dtype at |size|: the most that one rounding to nearest moves.

    The sizes are in float64, or in float32 for the short formats.
    """
    whole, exponent = _EXPONENTS[size.dtype]
    # Machines may flush subnormals of the wide formats; those of float16 are values like others.
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps if dtype is torch.float16 else info.smallest_normal
    power = size.contiguous().view(whole).bitwise_and(exponent)
    return power.view(size.dtype).mul_(info.eps / 2).clamp_(min=least)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The values of a wide tensor after rounding to a dtype, still as wide."""
    return x.to(dtype).to(x.dtype)
