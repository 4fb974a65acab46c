"""How large the values of a tensor are: their rms and their peak, over the finite ones.

It does not change values and never reads one back to the host: every answer is a 0-d tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor


def widen(y: Tensor) -> Tensor:
    """The values in the precision that corruptions are computed in: float64 stays, everything else is float32."""
    return y if y.dtype == torch.float64 else y.float()


def rms(y: Tensor) -> Tensor:
    """Root of the mean square of the finite values; 0 where there is none."""
    x = widen(y)
    finite = x.isfinite()
    sizes = torch.where(finite, x.abs(), 0.0)
    # Squares of values above 1.8e19 overflow float32, so they are taken relative to the largest.
    unit = sizes.amax().clamp(min=torch.finfo(x.dtype).tiny)
    return unit * ((sizes / unit).square().sum() / finite.sum().clamp(min=1)).sqrt()


def peak(y: Tensor) -> Tensor:
    """The largest finite |value|; 0 where there is none."""
    x = widen(y)
    return torch.where(x.isfinite(), x.abs(), 0.0).amax()
