"""Plays the schedule of a diagnosis on many workers: how long it takes, and which share of their time is used.

Usage: python bench/schedule.py [--layers 80] [--samples 200] [--seconds 3] [--load 60] [--dispatch 0.002] [--out FILE]

The trials, their order and their rounds are those that the diagnosis really plans; only the readings are made up. What
the driver does alone is measured here and counted in: planning each round, and bringing each reading to the disk.
`--seconds` is what one trial takes that runs the whole model, `--load` what a worker takes to be ready, `--dispatch`
what Ray takes for one trial in the driver. A worker skips the layers below the first that is corrupted if it has run
the same samples up to there before.
"""

from __future__ import annotations

import argparse
import heapq
import math
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from noisescope.core.codec import encode, key_of
from noisescope.core.records import Reading, Trial
from noisescope.diagnose.setting import Setting
from noisescope.diagnose.whole import Question
from noisescope.diagnose.window import WindowQuestion
from noisescope.sweep.store import About, Store

WORKERS = (1, 8, 64, 512)
OPERATORS = ("linear", "matmul", "softmax", "silu", "rms_norm")


@dataclass(frozen=True)
class Round:
    """Trials that are asked for at once, and how long the driver thought about them."""

    trials: tuple[Trial, ...]
    seconds: float


def answer(trial: Trial) -> Reading:
    """A loss that grows with the noise, more in the middle layers, a little different for each sample."""
    start, stop = trial.start, trial.stop or 0
    harm = 0.0
    for one in trial.injections:
        layers = one.layers or tuple(range(80))
        depth = sum(0.002 * (1 + math.sin(0.1 * layer)) for layer in layers if layer is not None)
        harm += depth * (one.corruption.strength / 0.05) ** 2
    salt = zlib.crc32(encode(trial.injections).encode())
    values = (2.0 + 0.01 * i + harm * (1 + 0.3 * math.sin(i * 7.0 + salt % 1000)) for i in range(start, stop))
    return Reading(trial, tuple(values))


def played(question: Question) -> tuple[list[Round], float]:
    """All rounds of a diagnosis, and how many seconds the driver takes to keep one reading."""
    rounds, kept, known, about = [], 0.0, {}, About("made up", "made up")
    with tempfile.TemporaryDirectory() as folder, Store(folder, about) as store:
        while True:
            start = time.perf_counter()
            keyed = {key_of(trial): trial for trial in question.plan(known)}
            thought = time.perf_counter() - start
            pending = [trial for key, trial in keyed.items() if key not in known]
            if not pending:
                return rounds, kept / len(known)
            rounds.append(Round(tuple(pending), thought))
            readings = [answer(trial) for trial in pending]
            start = time.perf_counter()
            for reading in readings:
                store.append(reading)
            kept += time.perf_counter() - start
            known.update((key_of(reading.trial), reading) for reading in readings)


@dataclass
class Worker:
    """A worker and up to which layer it has run which samples."""

    reached: dict[tuple[int, int | None], int] = field(default_factory=dict)

    def share(self, trial: Trial, layers: int) -> float:
        """Which share of the model it has to run for a trial."""
        first = min((min(one.layers or (0,), key=lambda layer: layer or 0) or 0 for one in trial.injections), default=0)
        slice_ = (trial.start, trial.stop)
        skipped = min(first, self.reached.get(slice_, 0))
        self.reached[slice_] = max(first, self.reached.get(slice_, 0))
        return (layers - skipped) / layers


@dataclass(frozen=True)
class Costs:
    """Seconds: of a trial of the whole model, to be ready, of the driver for each trial."""

    trial: float
    load: float
    each: float


def wall_clock(rounds: Sequence[Round], count: int, layers: int, costs: Costs) -> float:
    """When the last reading is kept. One driver serves whoever is done first, and a round waits for the one before."""
    crew = [Worker() for _ in range(count)]
    now, ready_at = 0.0, costs.load
    for one in rounds:
        now += one.seconds
        waiting = deque(one.trials)
        at_work: list[tuple[float, int]] = []
        for number in range(min(count, len(waiting))):
            now += costs.each
            length = crew[number].share(waiting.popleft(), layers) * costs.trial
            heapq.heappush(at_work, (max(now, ready_at) + length, number))
        while at_work:
            done, number = heapq.heappop(at_work)
            now = max(now, done) + costs.each
            if waiting:
                length = crew[number].share(waiting.popleft(), layers) * costs.trial
                heapq.heappush(at_work, (now + length, number))
    return now


def question_of(layers: int, samples: int, *, exhaustive: bool) -> Question:
    """A diagnosis of operators and windows, as the command asks for it."""
    predicted = () if exhaustive else tuple(0.002 * (1 + math.sin(0.1 * layer)) for layer in range(layers))
    setting = Setting(
        "w", "nll", "text", samples, layers, OPERATORS, exhaustive=exhaustive, budget=None if exhaustive else 25.0
    )
    return Question(setting, windows=WindowQuestion(setting, predicted=predicted))


def table(name: str, question: Question, asked: argparse.Namespace) -> list[str]:
    """The lines on one kind of diagnosis."""
    rounds, keeping = played(question)
    trials = sum(len(one.trials) for one in rounds)
    costs = Costs(asked.seconds, asked.load, keeping + asked.dispatch)
    loaded = replace(costs, load=0.0)
    alone, alone_loaded = (wall_clock(rounds, 1, asked.layers, one) for one in (costs, loaded))
    lines = [
        f"{name}: {trials} trials in {len(rounds)} rounds; planning {sum(one.seconds for one in rounds):.1f} s in all, "
        f"keeping a reading {1000 * keeping:.1f} ms.",
        "",
        "| workers | wall clock | times as fast | efficiency | efficiency without loading |",
        "|---|---|---|---|---|",
    ]
    for count in WORKERS:
        took = wall_clock(rounds, count, asked.layers, costs)
        apart = alone_loaded / wall_clock(rounds, count, asked.layers, loaded) / count
        lines.append(f"| {count} | {said(took)} | {alone / took:.1f} | {alone / took / count:.1%} | {apart:.1%} |")
    return [*lines, ""]


def said(seconds: float) -> str:
    """A duration in the unit that fits."""
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--load", type=float, default=60.0)
    parser.add_argument("--dispatch", type=float, default=0.002)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines = [
        *table("Every window", question_of(asked.layers, asked.samples, exhaustive=True), asked),
        *table("The default", question_of(asked.layers, asked.samples, exhaustive=False), asked),
    ]
    print("\n".join(lines))
    if asked.out:
        asked.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
