"""Sums up what a fault of one generation step leaves behind: lost tokens by step, and when the healthy ones are back.

It takes figures in and runs nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from noisescope.diagnose.fault_tests import Stepped
from noisescope.measure.statistics import Interval, Resampling, mean_interval

# Steps that are looked at, the faulty one the first; and how many healthy ones in a row make a recovery.
STEPS, IN_A_ROW = 16, 3
Bools = npt.NDArray[np.bool_]


def recovery_steps(lost: Bools) -> npt.NDArray[np.float64]:
    """The first step behind the faulty one, which is step 0, that begins a row of healthy ones.

    `lost` is [..., steps]. Where there is none, the number of steps.
    """
    steps = lost.shape[-1]
    starts = range(1, steps - IN_A_ROW + 1)
    healthy = np.stack([~lost[..., at : at + IN_A_ROW].any(axis=-1) for at in starts], axis=-1)
    return np.where(healthy.any(axis=-1), healthy.argmax(axis=-1) + 1.0, float(steps))


def stepped(lost: Bools, broken: npt.NDArray[Any], confidence: float) -> Stepped:
    """What [seeds, samples, steps] lost tokens, and those that did not exist, come to."""
    plan = Resampling(confidence)
    recovery = recovery_steps(lost)
    as_numbers = lost.astype(np.float64)
    return Stepped(
        loss=mean_interval(as_numbers.mean(axis=-1), plan=plan),
        lost=tuple(mean_interval(as_numbers[..., step], plan=plan) for step in range(lost.shape[-1])),
        recovery=_behind(mean_interval(recovery - 1.0, plan=plan)),
        unrecovered=int((recovery == lost.shape[-1]).sum()),
        sequences=int(recovery.size),
        nonfinite=int(broken.sum()),
        positions=int(broken.size),
    )


def _behind(late: Interval) -> Interval:
    """The first good step, from how many steps it is behind the first one that it can be."""
    return Interval(late.estimate + 1.0, late.low + 1.0, late.high + 1.0, late.confidence, late.samples)
