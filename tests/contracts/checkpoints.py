"""A small checkpoint with a tokenizer, workloads for it, and a bench in a worker that gets killed."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from cases import make
from letters import letters
from noisescope.core.records import Reading, Trial
from noisescope.measure.batches import Settings
from noisescope.measure.workload import Choice, Completion, Question, Text, Workload
from noisescope.sweep.bench import BenchMaker, ModelBench, Task

# The small models have 64 positions; several batches, and rows of unequal length in them.
SETTINGS = Settings(tokens_per_batch=64, max_length=60, max_new_tokens=4)
WORDS = ("round", "square of two", "lost in the woods", "no", "yes or no", "a tree", "bread and butter", "one more")


def completions() -> Workload:
    return Workload.of("completions", [Completion(f"what is {word}?", f" {word} {i}") for i, word in enumerate(WORDS)])


def texts() -> Workload:
    return Workload.of("texts", [Text(f"{word}, and then {word[::-1]}") for word in WORDS])


def choices() -> Workload:
    return Workload.of("choices", [Choice(f"say {word}:", (word, "nothing", "I will not"), 0) for word in WORDS])


def questions() -> Workload:
    return Workload.of("questions", [Question(f"{i} + {i}?", str(2 * i)) for i in range(4)])


def save(folder: Path, name: str = "llama") -> str:
    """A model of the table as a folder, and its path."""
    make(name).save_pretrained(folder)
    letters().save_pretrained(folder)
    return str(folder)


def maker(folder: Path) -> BenchMaker:
    """A bench on a saved model, under two metrics of one workload."""
    tasks = tuple(Task(completions(), metric, SETTINGS) for metric in ("nll", "kl_to_clean"))
    return BenchMaker(save(folder), tasks)


@dataclass(frozen=True)
class DyingMaker:
    """Makes a bench whose process is killed in the middle of a trial, once."""

    maker: BenchMaker
    victim: Trial
    mark: str

    def __call__(self) -> DyingBench:
        return DyingBench(self.maker(), self.victim, Path(self.mark))


@dataclass(frozen=True)
class DyingBench:
    bench: ModelBench
    victim: Trial
    mark: Path

    def measure(self, trial: Trial) -> Reading:
        if trial == self.victim and not self.mark.exists():
            self.mark.touch()
            layer = self.bench.model.get_submodule("model.layers.1")
            layer.register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        return self.bench.measure(trial)
