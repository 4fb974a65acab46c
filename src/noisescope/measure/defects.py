"""Says in words how wrong values differ from the right ones: stuck, clamped, lost, scaled, shifted, a bit flipped.

It is given the values of one operator that are off, with their exact ones. Who is to blame is not asked here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from noisescope.measure.rounding import half_spacing, host

# More wrong values than that say nothing new.
_MOST = 4096
_FEW = 3
# What an explanation may leave of an error, as a share of it, and the share of the values that it has to explain.
_REST, _NEARLY_ALL = 0.02, 0.9
# In roundings: a flipped bit is undone to within this.
_NEAR = 4.0
_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def defect_of(seen: Tensor, exact: Tensor, over: Tensor) -> str:
    """The most telling way in which the values `over` the limit are wrong; empty if none are."""
    places = over.reshape(-1).nonzero().flatten()[:_MOST]
    if not places.numel():
        return ""
    channels = places % seen.shape[-1]
    bits, right = seen.detach().cpu().reshape(-1)[places], exact.reshape(-1)[places]
    wrong = host(bits)
    if not bool(wrong.isfinite().all()):
        return "they are NaN or infinite"
    found = (
        _zero(wrong, right, seen[..., channels.unique()]),
        _stuck(wrong, channels),
        _clamped(wrong, right),
        _scaled(wrong, right),
        _shifted(wrong, right),
        _flipped(bits, right),
    )
    return next((words for words in found if words), _scattered(wrong, right))


def _zero(wrong: Tensor, right: Tensor, touched: Tensor) -> str:
    """`touched` are the channels that hold a wrong value, whole."""
    if bool(wrong.any()):
        return ""
    kind = "a dead zone, or a write that was lost" if bool(touched.any()) else "stuck at 0"
    return f"they are 0 where up to {float(right.abs().max()):.3g} is right ({kind})"


def _stuck(wrong: Tensor, channels: Tensor) -> str:
    groups = [wrong[channels == c] for c in channels.unique()[: _FEW + 1]]
    if len(groups) > _FEW or any(len(g) < _FEW or bool((g != g[0]).any()) for g in groups):
        return ""
    return f"they hold {float(groups[0][0]):.4g} whatever goes in (a stuck channel)"


def _clamped(wrong: Tensor, right: Tensor) -> str:
    size = wrong.abs()
    limit = size[0]
    if len(size) < 2 or bool((size != limit).any()) or not bool((right.abs() > limit).all()):
        return ""
    return f"they are clamped at {float(limit):.4g} where up to {float(right.abs().max()):.4g} is right (saturation)"


def _scaled(wrong: Tensor, right: Tensor) -> str:
    factor = float((wrong * right).sum() / right.square().sum()) if bool(right.any()) else 0.0
    if len(wrong) < _FEW or not _explains(wrong, right, factor * right):
        return ""
    return f"they are {factor:.4g} times what is right (a gain)"


def _shifted(wrong: Tensor, right: Tensor) -> str:
    by = float((wrong - right).mean())
    if len(wrong) < _FEW or not _explains(wrong, right, right + by):
        return ""
    return f"they are all off by {by:+.3g} (an offset)"


def _explains(wrong: Tensor, right: Tensor, claim: Tensor) -> bool:
    return float((wrong - claim).norm()) <= _REST * float((wrong - right).norm())


def _flipped(bits: Tensor, right: Tensor) -> str:
    """Whether undoing one bit of each value makes it right; which, if it is the same one."""
    whole = _WHOLE[bits.element_size()]
    width = 8 * bits.element_size()
    near = _NEAR * half_spacing(right, bits.dtype)
    shifts = [1 << b if b < width - 1 else -(1 << b) for b in range(width)]
    undone = torch.stack([host((bits.view(whole) ^ shift).view(bits.dtype)) for shift in shifts])
    is_right = (undone - right).abs() <= near
    share = is_right.double().mean(1)
    if float(share.max()) >= _NEARLY_ALL:
        return f"bit {int(share.argmax())} of {width} is wrong in them"
    if float(is_right.any(0).double().mean()) >= _NEARLY_ALL:
        return f"one bit of {width} is wrong in each of them"
    return ""


def _scattered(wrong: Tensor, right: Tensor) -> str:
    error = float((wrong - right).square().mean().sqrt())
    size = float(right.square().mean().sqrt())
    share = f"about {error / size:.2g} times" if size else "against"
    return f"their errors follow no simple pattern and are {share} the size of the right values"
