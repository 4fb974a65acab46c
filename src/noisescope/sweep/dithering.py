"""How a healthy system answers to its last bit: runs it with every value moved by one ulp, and measures what moves.

The answer at a tap holds what all values before it carry there. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from noisescope.inject.keyed import Draw
from noisescope.sweep.laying import Laid
from noisescope.sweep.tapping import Tap, Tapping

Run = Callable[[], None]
# By the key of a tap, what it showed in the order of its calls.
Values = Mapping[str, Sequence[Tensor]]


def values_of(tapping: Tapping, run: Run, mask: Tensor | None) -> dict[str, list[Tensor]]:
    """Every tensor of one run, by the key of its tap and in the order of its calls."""
    found: dict[str, list[Tensor]] = {}

    def keep(tap: Tap, given: Laid) -> None:
        found.setdefault(tap.key, []).append(given.rows.clone())

    with tapping.watching(keep, mask):
        run()
    return found


def answer_of(
    tapping: Tapping, run: Run, mask: Tensor | None, clean: Values, dtype: torch.dtype, *, forced: bool = False
) -> dict[str, Tensor]:
    """The root mean square per channel of what one ulp of a dtype everywhere before a tap changes there.

    `forced`: of what one ulp changes since the last tap, for every tap then goes on with its clean values, moved.
    """
    squares: dict[str, list[Tensor]] = {}
    count = [0]

    def dither(tap: Tap, given: Laid) -> Tensor:
        # On the host, so that a device needs no random numbers and no double precision of its own.
        rows = given.rows.cpu()
        met = squares.setdefault(tap.key, [])
        right = clean[tap.key][len(met)].cpu()
        met.append((rows.double() - right.double()).nan_to_num(0.0, 0.0, 0.0).square())
        count[0] += 1
        return given.put(moved_by_an_ulp(right if forced else rows, dtype, Draw(count[0])))

    with tapping.watching(dither, mask):
        run()
    return {key: torch.cat(met).mean(0).sqrt().float() for key, met in squares.items()}


def moved_by_an_ulp(x: Tensor, dtype: torch.dtype, draw: Draw) -> Tensor:
    """Every value one ulp of a dtype up or down by chance, if the tensor's own dtype can hold that."""
    wide = x if x.dtype is torch.float64 else x.float()
    sign = (draw.uniform(wide) < 0.5).to(wide.dtype) * 2 - 1
    _, exponent = torch.frexp(wide)
    step = torch.ldexp(torch.full_like(wide, max(torch.finfo(dtype).eps, torch.finfo(x.dtype).eps)), exponent - 1)
    moved = wide + sign * step
    return torch.where(wide.isfinite() & (wide != 0), moved, wide).to(x.dtype)
