"""Measures how a diagnosis grows with layers and with samples: CPU time, peak memory, and the exponent of both.

Usage: python bench/growth.py [--rounds N] [--out FILE]

Each diagnosis runs in a process of its own that is forked from one which has done one before.
Qwen2 of width 64 with random weights; the default diagnosis at 5 % noise, 3 seeds.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable

import numpy as np
from measuring import present, qwen, said, tokens

import noisescope as ns
from noisescope.measure.power_law import fit_power_law

LAYERS, SAMPLES = (4, 8, 16, 32, 64), (8, 16, 32, 64, 128)
FEW_LAYERS, FEW_SAMPLES = 4, 8
BAR = 1.05
Taken = tuple[float, float]


def diagnose(layers: int, samples: int) -> None:
    """The default diagnosis."""
    model = qwen(layers, 64, 512)
    ns.diagnose(model, [{"input_ids": ids} for ids in tokens(samples, 32, 512).split(8)], metric="kl_to_clean")


def apart(call: Callable[[], object]) -> Taken:
    """CPU seconds and peak megabytes of a call in a process of its own."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            call()
            status = 0
        finally:
            os._exit(status)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit("a diagnosis failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def grown(sizes: tuple[int, ...], call: Callable[[int], object], rounds: int) -> dict[int, list[Taken]]:
    """All sizes in turns, in an order that rotates."""
    found: dict[int, list[Taken]] = {size: [] for size in sizes}
    for number in range(rounds):
        print(f"\r  round {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
        shift = number % len(sizes)
        for size in sizes[shift:] + sizes[:shift]:
            found[size].append(apart(lambda one=size: call(one)))
    print(file=sys.stderr)
    return found


def table(what: str, found: dict[int, list[Taken]]) -> list[str]:
    """One row for each size, then the exponent."""
    lines = [
        f"| {what} | CPU time | lowest - highest | peak memory, MB | lowest - highest | rounds |",
        "|---|---|---|---|---|---|",
    ]
    for size, taken in found.items():
        seconds, megabytes = zip(*taken, strict=True)
        lines.append(
            f"| {size} | {said(statistics.median(seconds))} | {said(min(seconds))} - {said(max(seconds))} | "
            f"{statistics.median(megabytes):.0f} | {min(megabytes):.0f} - {max(megabytes):.0f} | {len(taken)} |"
        )
    law = fit_power_law(list(found), np.array([[seconds for seconds, _ in taken] for taken in found.values()]))
    e = law.exponent
    met = (
        "met" if e.high <= BAR else "met by the estimate, not by its whole interval" if e.estimate <= BAR else "NOT met"
    )
    return [
        *lines,
        "",
        f"CPU time grows as {what} to the power of {e.estimate:.2f} (95 % interval {e.low:.2f} to {e.high:.2f}); the "
        f"bar of {BAR} is {met}.",
        "",
    ]


def lines_of(rounds: int) -> list[str]:
    """Both tables."""
    # What a first diagnosis imports and compiles would be in every figure, and make the growth look less.
    diagnose(FEW_LAYERS, FEW_SAMPLES)
    return [
        *table("layers", grown(LAYERS, lambda size: diagnose(size, FEW_SAMPLES), rounds)),
        *table("samples", grown(SAMPLES, lambda size: diagnose(FEW_LAYERS, size), rounds)),
    ]


if __name__ == "__main__":
    present(__doc__, 5, lines_of)
