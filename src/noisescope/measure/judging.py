"""Compares an output with its exact value: how far every error lies above what rounding allows, and what kind it is.

Everything is computed in float64 on the host. It knows no operator; each brings its own allowance for what happens
before the last rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from noisescope.measure.defects import defect_of
from noisescope.measure.judged import Judged
from noisescope.measure.leaning import LEANS, leaning
from noisescope.measure.rounding import half_spacing, host, is_short, rounded

_CHANNELS = 512


@dataclass(frozen=True)
class Excess:
    """Errors in units of what is allowed, how many of them could be judged, and how those above 1 are wrong."""

    values: Tensor
    judged: int
    defect: str = ""


def judge(check: str, seen: Tensor, exact: Tensor, allowed: Tensor | float, roundings: float = 1.0) -> Judged:
    """Compare an output with its exact value. `allowed` is the error before the last rounding, an absolute figure."""
    found = joined(check, [excess_of(seen, exact, allowed, roundings)])
    return found if roundings > 1 else leans(found, lean_of(seen, exact, allowed))


def lean_of(seen: Tensor, exact: Tensor, before: Tensor | float, more: Tensor | float = 0.0) -> float:
    """How far the values lean one way together, in units of what is allowed.

    `before` is the error of the sums, `more` that of a rounding before the last. In long formats sums err by more than
    roundings, so there it is 0.
    """
    if not is_short(seen.dtype):
        return 0.0
    room = float(before.sum()) if isinstance(before, Tensor) else before * exact.numel()
    step = half_spacing(exact.abs() + before, seen.dtype).add_(more)
    return leaning(host(seen), _measures(exact, seen.dtype), room, step, by_rows=False)


def _measures(exact: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    yield exact
    yield rounded(exact, dtype)


def leans(found: Judged, lean: float) -> Judged:
    """The same check, with what its values show together where that is more than what they show one by one."""
    if lean <= max(found.worst, 1.0) or not found.judged:
        return found
    if not found.holds:
        return replace(found, worst=lean)
    return replace(found, worst=lean, hits=found.judged, note=LEANS)


def excess_of(seen: Tensor, exact: Tensor, allowed: Tensor | float, roundings: float = 1.0) -> Excess:
    """Every error in units of what is allowed.

    Where the exact value is not finite nothing is judged. Beyond the range of the dtype infinity is right.
    """
    dtype = seen.dtype
    wide = host(seen)
    room = exact.abs().add_(allowed)
    limit = half_spacing(room, dtype).mul_(roundings).add_(allowed)
    excess = (wide - exact).abs_().div_(limit)
    top = float(room.max()) if room.numel() else 0.0
    # A sum or a maximum that is finite says that all values are.
    if math.isfinite(top) and 2 * top < torch.finfo(dtype).max and math.isfinite(float(excess.sum())):
        return _told(seen, exact, excess, excess.numel())
    beyond = room + limit >= torch.finfo(dtype).max
    fine = beyond & (wide * exact.sign() >= exact.abs() - limit)
    sound = exact.isfinite() & limit.isfinite()
    excess = torch.where(fine | ~sound, 0.0, excess.nan_to_num(nan=torch.inf))
    return _told(seen, exact, excess, int(sound.sum()))


def _told(seen: Tensor, exact: Tensor, excess: Tensor, judged: int) -> Excess:
    over = excess > 1.0
    return Excess(excess, judged, defect_of(seen, exact, over) if bool(over.any()) else "")


def joined(check: str, parts: list[Excess]) -> Judged:
    """The figures of several parts that stand side by side in the last dimension."""
    judged = sum(part.judged for part in parts)
    worst = max((float(part.values.max()) for part in parts if part.values.numel()), default=0.0)
    if worst <= 1.0 or not judged:
        return Judged(check, worst if judged else 0.0, judged)
    found = tallied(check, torch.cat([part.values for part in parts], -1), judged)
    return replace(found, defect=next((part.defect for part in parts if part.defect), ""))


def tallied(check: str, excess: Tensor, judged: int) -> Judged:
    """The figures of a tensor of errors in units of what is allowed; its last dimension are the channels."""
    if not excess.numel() or not judged:
        return Judged(check, 0.0, 0)
    worst = float(excess.max())
    if worst <= 1.0:
        return Judged(check, worst, judged)
    over = excess > 1.0
    width = excess.shape[-1] if excess.dim() else 1
    counts = over.reshape(-1, width).sum(0)
    hits = int(counts.sum())
    touched = int((counts > 0).sum())
    order = counts.argsort(descending=True, stable=True)[: min(touched, _CHANNELS)]
    # A longer list would be cut, and a cut list must not pass for the whole.
    channels = tuple(order.tolist()) if touched <= _CHANNELS else ()
    return Judged(check, worst, judged, hits, width, channels)
