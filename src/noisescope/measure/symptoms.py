"""Says in words how the values of one system differ from those of another: stuck, clamped, scaled, in another order.

A symptom is what is seen in a tap's statistics and shared rows. Who is to blame for it is not asked here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from noisescope.measure.sketch import Sketch

_LISTED = 8
# What remains of the difference, as a share of it, where an explanation is taken to be right.
_EXPLAINED = 0.1
_CONFINED = 0.1
_TIES = 3


def symptom_of(one: Sketch, other: Sketch, ratio: Tensor, role: str) -> str:
    """The most telling way in which the other differs; empty if there is no name for it.

    `ratio` is the error of each channel over what is allowed there.
    """
    found = (
        _lost(one, other, role),
        _stuck(one, other),
        _clamped(one, other),
        _zeroed(one, other),
        _reordered(one, other),
        _scaled(one, other),
        _confined(ratio),
    )
    return next((words for words in found if words), "")


def _named(channels: Tensor) -> str:
    numbers = channels.nonzero().flatten().tolist()
    more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
    return f"channel{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:_LISTED]))}{more}"


def _lost(one: Sketch, other: Sketch, role: str) -> str:
    was, now = one.figure("lost"), other.figure("lost")
    if bool((was == now).all()):
        return ""
    if role == "scores":
        return "other tokens are masked"
    if bool((now > was).any()):
        return f"NaN or infinity in {_named(now > was)}"
    return f"NaN or infinity of the reference is missing in {_named(now < was)}"


def _stuck(one: Sketch, other: Sketch) -> str:
    varies = one.figure("least") < one.figure("largest")
    stuck = varies & (other.figure("least") == other.figure("largest"))
    if not bool(stuck.any()) or other.count < _TIES:
        return ""
    value = float(other.figure("least")[stuck][0])
    at = f" at {value:.4g}" if int(stuck.sum()) == 1 else ""
    return f"{_named(stuck)} {'is' if int(stuck.sum()) == 1 else 'are'} stuck{at}"


def _clamped(one: Sketch, other: Sketch) -> str:
    """Several values at one largest size that the reference exceeds."""
    was, now = (torch.maximum(x.figure("least").abs(), x.figure("largest").abs()) for x in (one, other))
    limit = now.max()
    at_limit = (now == limit) & (was > limit)
    ties = float(other.figure("ties")[at_limit].sum())
    before = float(one.figure("ties")[was == was.max()].sum())
    if not limit > 0 or ties < _TIES or ties <= before or float(was.max()) <= 1.01 * float(limit):
        return ""
    return f"clamped at {float(limit):.4g} (saturation), where the reference goes up to {float(was.max()):.4g}"


def _zeroed(one: Sketch, other: Sketch) -> str:
    was, now = one.figure("zeros").sum(), other.figure("zeros").sum()
    whole = one.count * one.width
    share = float((now - was) / whole)
    return f"{share:.1%} of the values are 0 that are not 0 in the reference" if share > 0.01 else ""


def _pairs(one: Sketch, other: Sketch) -> tuple[Tensor, Tensor]:
    rows = min(len(one.rows), len(other.rows))
    a, b = one.rows[:rows].double(), other.rows[:rows].double()
    fine = a.isfinite() & b.isfinite()
    return a.where(fine, 0.0), b.where(fine, 0.0)


def _reordered(one: Sketch, other: Sketch) -> str:
    a, b = _pairs(one, other)
    gap = (a - b).norm()
    sorted_gap = (a.sort(-1).values - b.sort(-1).values).norm()
    if a.shape[1] > 2 and gap > 1e-3 * a.norm() and sorted_gap < _EXPLAINED * gap:
        return "the same values in another order: interleaved, transposed or grouped otherwise"
    return ""


def _scaled(one: Sketch, other: Sketch) -> str:
    a, b = _pairs(one, other)
    size = a.square().sum()
    if not size > 0:
        return ""
    factor = (a * b).sum() / size
    gap = (a - b).norm()
    if gap > 0 and (b - factor * a).norm() < _EXPLAINED * gap:
        return f"all values are {float(factor):.6g} times those of the reference"
    return ""


def _confined(ratio: Tensor) -> str:
    hit = ratio > max(1.0, _CONFINED * float(ratio.max()))
    count = int(hit.sum())
    return f"confined to {_named(hit)}" if 0 < count <= max(1, _CONFINED * len(ratio)) else ""
