"""How a healthy system answers to its last bit: runs it with every value moved by one ulp, and measures what moves.

The answer at a tap holds what all values before it carry there. It judges nothing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from noisescope.inject.keyed import Draw
from noisescope.sweep.laying import Laid
from noisescope.sweep.tapping import Tap, Tapping

Run = Callable[[], None]
# By the key of a tap, what it showed in the order of its calls.
Values = Mapping[str, Sequence[Tensor]]


@dataclass(frozen=True)
class Clean:
    """A run of a healthy system on one batch, the tokens of it that count, and what every tap showed."""

    run: Run
    mask: Tensor | None
    values: Values


def clean_of(tapping: Tapping, run: Run, mask: Tensor | None) -> Clean:
    """What a run shows as it is."""
    return Clean(run, mask, values_of(tapping, run, mask))


def values_of(tapping: Tapping, run: Run, mask: Tensor | None) -> dict[str, list[Tensor]]:
    """Every tensor of one run, by the key of its tap and in the order of its calls."""
    found: dict[str, list[Tensor]] = {}

    def keep(tap: Tap, given: Laid) -> None:
        found.setdefault(tap.key, []).append(given.rows.clone())

    with tapping.watching(keep, mask):
        run()
    return found


def answer_of(
    tapping: Tapping, batches: Sequence[Clean], dtype: torch.dtype, *, forced: bool = False
) -> dict[str, Tensor]:
    """The root mean square per channel of what one ulp of a dtype everywhere before a tap changes there.

    `forced`: of what one ulp changes since the last tap, for every tap then goes on with its clean values, moved.
    """
    squares: dict[str, Tensor] = {}
    rows_of: Counter[str] = Counter()
    draws = itertools.count(1)
    for clean in batches:
        met: Counter[str] = Counter()

        def dither(tap: Tap, given: Laid, clean: Clean = clean, met: Counter[str] = met) -> Tensor:
            # On the host, so that a device needs no random numbers and no double precision of its own.
            rows, right = given.rows.cpu(), clean.values[tap.key][met[tap.key]].cpu()
            met[tap.key] += 1
            gap = (rows.double() - right.double()).nan_to_num(0.0, 0.0, 0.0)
            squares[tap.key] = squares.get(tap.key, 0.0) + gap.square().sum(0)
            rows_of[tap.key] += len(gap)
            return given.put(moved_by_an_ulp(right if forced else rows, dtype, Draw(next(draws))))

        with tapping.watching(dither, clean.mask):
            clean.run()
    return {key: (total / rows_of[key]).sqrt().float() for key, total in squares.items()}


def moved_by_an_ulp(x: Tensor, dtype: torch.dtype, draw: Draw) -> Tensor:
    """Every value one ulp of a dtype up or down by chance, if the tensor's own dtype can hold that."""
    wide = x if x.dtype is torch.float64 else x.float()
    sign = (draw.uniform(wide) < 0.5).to(wide.dtype) * 2 - 1
    _, exponent = torch.frexp(wide)
    step = torch.ldexp(torch.full_like(wide, max(torch.finfo(dtype).eps, torch.finfo(x.dtype).eps)), exponent - 1)
    moved = wide + sign * step
    return torch.where(wide.isfinite() & (wide != 0), moved, wide).to(x.dtype)
