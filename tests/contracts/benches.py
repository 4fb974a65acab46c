"""Benches, trials and a diagnosis that need no model, in a module that worker processes can import."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from noisescope.core.codec import encode, key_of
from noisescope.core.errors import LoadError
from noisescope.core.records import Finding, Reading, Trial

ODD = (math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308)


def trials(count: int, metric: str = "nll", workload: str = "w") -> list[Trial]:
    return [Trial((), workload, metric, i, i + 1) for i in range(count)]


def expected(trial: Trial) -> Reading:
    values = (math.sin(trial.start), trial.start / 7, ODD[trial.start % len(ODD)])
    return Reading(trial, values, nonfinite=sum(not math.isfinite(v) for v in values))


def texts(readings: Mapping[str, Reading]) -> dict[str, str]:
    """As text, because NaN equals nothing."""
    return {key: encode(reading) for key, reading in readings.items()}


@dataclass(frozen=True)
class NumericBench:
    """Answers by formula; the metric of a trial may ask for trouble. `log` gets a line per trial that is begun."""

    folder: str = ""
    pause: float = 0.0

    def __call__(self) -> NumericBench:
        return self

    def measure(self, trial: Trial) -> Reading:
        self._note(f"{key_of(trial)} {os.getpid()}")
        time.sleep(self.pause)
        if trial.metric == "stall":
            time.sleep(60.0)
        if trial.metric == "raise":
            raise ZeroDivisionError("no samples")
        if trial.metric == "other":
            return expected(trials(1)[0])
        if trial.metric == "nothing":
            return None
        if trial.metric == "kill" or (trial.metric == "kill once" and not self._was_here(trial)):
            os.kill(os.getpid(), signal.SIGKILL)
        if trial.metric == "fail once" and not self._was_here(trial):
            raise MemoryError("out of memory")
        return expected(trial)

    def _was_here(self, trial: Trial) -> bool:
        mark = Path(self.folder) / f"mark-{key_of(trial)}"
        if mark.exists():
            return True
        mark.touch()
        return False

    def _note(self, line: str) -> None:
        if self.folder:
            with (Path(self.folder) / "log").open("a") as log:
                log.write(f"{line}\n")


def log_of(folder: Path) -> list[tuple[str, int]]:
    """The trials that were begun, each with the process that began it."""
    path = folder / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(line.split()[0], int(line.split()[1])) for line in lines]


def no_model() -> NumericBench:
    raise LoadError("tiny: no such model")


def broken() -> NumericBench:
    raise ZeroDivisionError("a bug")


def dies_at_once() -> NumericBench:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class TorchBench:
    """A small model whose sums are long enough to be split among threads, with noise injected by the trial's seed."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        generator = torch.Generator().manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2048, 32), nn.SiLU(), nn.Linear(32, 2048), nn.LayerNorm(2048))
        for weight in self.model.parameters():
            weight.data = torch.randn(weight.shape, generator=generator) / 16
        self.inputs = torch.randn(32, 2048, generator=generator)

    def measure(self, trial: Trial) -> Reading:
        import torch

        import noisescope as ns

        with torch.no_grad(), ns.inject(self.model, ns.noise(scale=0.05), seed=trial.start):
            out = self.model(self.inputs)
        total = float(out.sum())
        return Reading(trial, (total, *out.std(dim=1).tolist(), float(torch.get_num_threads())))


@dataclass(frozen=True)
class Census:
    """Asks for a list of trials, then for one more where the first values end; concludes how many are good."""

    asked: tuple[Trial, ...]

    def plan(self, known: Mapping[str, Reading]) -> list[Trial]:
        if all(key_of(trial) in known for trial in self.asked):
            return [*self.asked, Trial((), "w", "nll", 10_000, 10_001)]
        return list(self.asked)

    def conclude(self, known: Mapping[str, Reading]) -> Finding:
        held = [known.get(key_of(trial)) for trial in self.plan(known)]
        good = [reading for reading in held if reading is not None and reading.error is None]
        figures = (("good", float(len(good))), ("asked", float(len(held))))
        return Finding("how many are good", "none", figures, decided=len(good) == len(held))
