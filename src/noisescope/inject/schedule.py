"""How strong noise is at each step of a training run: a pure function of the step and the number of steps.

It keeps no state, so that a run that is resumed goes on with the strength that it had, and it injects nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.core.records import is_number

_EXPECTED = "a scale such as 0.05, a preset, or KIND:START[:END][:stages=N][:warmup=SHARE][:silent=N]"


@dataclass(frozen=True)
class Schedule:
    """A scale that goes from `start` to `end` in `stages` of equal length; without stages, anew at every step.

    Of stages k = 1 to K, exponential is start (end / start)^((k - 1) / (K - 1)), linear start + (end - start)
    (k - 1) / (K - 1), and constant is start. One stage alone has the scale of the start. `levels` are the scales of a
    step schedule, one to a stage. `warmup` is the share of the run over which the scale rises from 0 to its place on
    the schedule; `silent` are stages without noise that come first and count among the stages.
    """

    kind: str = "constant"
    start: float = 0.05
    end: float | None = None
    stages: int | None = None
    warmup: float = 0.0
    silent: int = 0
    levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("schedule", self.kind, KINDS)
        for scale in (self.start, *self.levels, *(() if self.end is None else (self.end,))):
            if not is_number(scale) or not 0 <= scale < math.inf:
                raise BadInputError(f"scale {scale!r} of a schedule: expected a finite number >= 0.")
        if not is_number(self.warmup) or not 0 <= self.warmup < 1:
            raise BadInputError(f"warmup {self.warmup!r}: expected a share of the run, at least 0 and below 1.")
        if (self.end is None) == (self.kind in _TO_AN_END) or bool(self.levels) != (self.kind == "step"):
            raise BadInputError(f"{self.kind} schedule: {_NEEDS[self.kind]}.")
        if self.kind == "exponential" and 0 in (self.start, self.end):
            raise BadInputError("exponential schedule: it never reaches 0, so both scales have to be above it.")
        if (self.stages is not None and self.stages < 1) or not 0 <= self.silent <= (self.stages or 0):
            raise BadInputError(
                f"{self.stages} stages, {self.silent} of them silent: expected at least one stage, and no more silent "
                "ones than there are."
            )

    def scale(self, step: int, steps: int) -> float:
        """The scale of step 0 to steps - 1; before the first it is that of the first, after the last that of it."""
        if steps < 1:
            raise BadInputError(f"a schedule over {steps} steps: the length of the run has to be known, at least 1.")
        step = min(max(step, 0), steps - 1)
        count = self.stages or (len(self.levels) if self.kind == "step" else steps)
        stage = step * count // steps
        if stage < self.silent:
            return 0.0
        rising = min(1.0, (step + 1) / (self.warmup * steps)) if self.warmup else 1.0
        return rising * KINDS[self.kind](self, stage - self.silent, count - self.silent)

    def times(self, factor: float) -> Schedule:
        """The same course at another strength."""
        end = None if self.end is None else self.end * factor
        return replace(self, start=self.start * factor, end=end, levels=tuple(s * factor for s in self.levels))

    def __str__(self) -> str:
        scales = self.levels if self.kind == "step" else [s for s in (self.start, self.end) if s is not None]
        options = {"stages": self.stages, "warmup": self.warmup, "silent": self.silent}
        return ":".join([self.kind, *(f"{s:g}" for s in scales), *(f"{k}={v:g}" for k, v in options.items() if v)])


def read_schedule(text: str) -> Schedule:
    """A schedule from text: a scale, a preset such as decay, or its kind, scales and options such as stages=10."""
    name, *parts = text.strip().split(":")
    if name in PRESETS and not parts:
        return PRESETS[name]
    try:
        return _of_parts(name, parts) if parts else Schedule("constant", float(name))
    except BadInputError:
        raise
    except (ValueError, TypeError):
        raise BadInputError(
            f"schedule {text!r}: expected a scale such as 0.05, a preset ({', '.join(PRESETS)}), or a kind with its "
            f"scales and options, such as exponential:0.05:0.001:stages=10:warmup=0.1. {_say_kinds()}"
        ) from None


def _of_parts(name: str, parts: list[str]) -> Schedule:
    options = dict(part.split("=", 1) for part in parts if "=" in part)
    scales: Any = tuple(float(part) for part in parts if "=" not in part)
    for option in options:
        if option not in _READ:
            raise unknown_name("option of a schedule", option, _READ)
    more: dict[str, Any] = {option: _READ[option](value) for option, value in options.items()}
    if name == "warmup":
        return Schedule("constant", *scales, **{"warmup": 0.1, **more})
    return Schedule("step", levels=scales, **more) if name == "step" else Schedule(name, *scales, **more)


def _say_kinds() -> str:
    return " ".join(f"{kind}: {needs}." for kind, needs in _NEEDS.items())


def _share(stage: int, count: int) -> float:
    return stage / (count - 1) if count > 1 else 0.0


def _exponential(of: Schedule, stage: int, count: int) -> float:
    return of.start * math.pow((of.end or of.start) / of.start, _share(stage, count))


def _linear(of: Schedule, stage: int, count: int) -> float:
    return of.start + ((of.end or 0.0) - of.start) * _share(stage, count)


def _constant(of: Schedule, _stage: int, _count: int) -> float:
    return of.start


def _step(of: Schedule, stage: int, count: int) -> float:
    return of.levels[stage * len(of.levels) // count]


KINDS: Mapping[str, Callable[[Schedule, int, int], float]] = MappingProxyType(
    {"constant": _constant, "linear": _linear, "exponential": _exponential, "step": _step}
)
_TO_AN_END = ("linear", "exponential")
_NEEDS: Mapping[str, str] = MappingProxyType(
    {
        "constant": "takes one scale",
        "linear": "takes the scale at the start and that at the end",
        "exponential": "takes the scale at the start and that at the end",
        "step": "takes one scale or more, each held for an equal part of the run",
    }
)
_READ: Mapping[str, Callable[[str], float]] = MappingProxyType({"stages": int, "warmup": float, "silent": int})
# decay: 5 % to 0.1 %. The others are quantization-aware RL's noise on norm weights (Huang et al. 2025, "QeRL",
# section 3.3): as in the paper's formula, and as in its released code, where the first of the ten stages is silent.
PRESETS: Mapping[str, Schedule] = MappingProxyType(
    {
        "decay": Schedule("exponential", 0.05, 0.001),
        "qerl": Schedule("exponential", 5e-2, 5e-4, stages=10),
        "qerl_code": Schedule("exponential", 5e-2, 5e-4, stages=10, silent=1),
    }
)
