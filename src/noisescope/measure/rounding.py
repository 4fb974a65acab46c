"""What rounding allows: the spacing of a dtype, and the comparison of an output with its exact value.

Everything is computed in float64 on the host. It knows no operator; each brings its own allowance for what happens
before the last rounding.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from noisescope.measure.judged import Judged
from noisescope.measure.leaning import LEANS, leaning

_CHANNELS = 512


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
    """Half the distance between neighbours of a dtype at |size|: the most that one rounding to nearest moves."""
    whole = size.contiguous().view(torch.int64).bitwise_and(0x7FF0000000000000)
    # Machines may flush subnormals of the wide formats; those of float16 are values like others.
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps if dtype is torch.float16 else info.smallest_normal
    return whole.view(torch.float64).mul_(info.eps / 2).clamp_(min=least)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The values of a float64 tensor after rounding to a dtype, still in float64."""
    return x.to(dtype).to(torch.float64)


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
    return leaning(host(seen), [exact, rounded(exact, seen.dtype)], room, step, by_rows=False)


def leans(found: Judged, lean: float) -> Judged:
    """The same check, with what its values show together where that is more than what they show one by one."""
    if lean <= max(found.worst, 1.0) or not found.judged:
        return found
    if not found.holds:
        return replace(found, worst=lean)
    return replace(found, worst=lean, hits=found.judged, note=LEANS)


def excess_of(seen: Tensor, exact: Tensor, allowed: Tensor | float, roundings: float = 1.0) -> tuple[Tensor, int]:
    """Every error in units of what is allowed, and how many values could be judged.

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
        return excess, excess.numel()
    beyond = room + limit >= torch.finfo(dtype).max
    fine = beyond & (wide * exact.sign() >= exact.abs() - limit)
    sound = exact.isfinite() & limit.isfinite()
    excess = torch.where(fine | ~sound, 0.0, excess.nan_to_num(nan=torch.inf))
    return excess, int(sound.sum())


def joined(check: str, parts: list[tuple[Tensor, int]]) -> Judged:
    """The figures of several parts that stand side by side in the last dimension."""
    judged = sum(count for _, count in parts)
    worst = max((float(excess.max()) for excess, _ in parts if excess.numel()), default=0.0)
    if worst <= 1.0 or not judged:
        return Judged(check, worst if judged else 0.0, judged)
    return tallied(check, torch.cat([excess for excess, _ in parts], -1), judged)


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
