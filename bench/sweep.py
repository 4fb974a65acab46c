"""Measures what an exhaustive sweep costs against the naive protocol, in CPU time, interleaved, readings compared.

Usage: python bench/sweep.py [--samples N] [--workloads choices texts questions] [--out FILE]

The sweep is the clean run, the control of strength 0 and every window of three layers, one seed, 5 % noise. The naive
protocol runs the whole model on every batch of every trial and takes all logits. One model, one CPU thread.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

import noisescope as ns
from noisescope.core.records import Injection, Reading, Trial
from noisescope.measure.batches import Samples, prepare
from noisescope.measure.calling import logits_of
from noisescope.measure.scoring import collect, judge
from noisescope.measure.workload import demo_workload
from noisescope.model.load import load
from noisescope.sweep.bench import ModelBench
from noisescope.sweep.injecting import Injecting

METRICS = {"choices": "accuracy", "texts": "nll", "questions": "nll"}
WINDOW = 3
SCALE = 0.05


@dataclass
class Cost:
    """What a protocol took and what it read."""

    seconds: dict[Trial, float] = field(default_factory=dict)
    readings: dict[Trial, Reading] = field(default_factory=dict)

    def take(self, trial: Trial, measure: Callable[[Trial], Reading]) -> None:
        """Measure one trial."""
        start = time.process_time()
        self.readings[trial] = measure(trial)
        self.seconds[trial] = time.process_time() - start

    @property
    def total(self) -> float:
        """CPU seconds of all trials."""
        return sum(self.seconds.values())

    @property
    def windows(self) -> float:
        """CPU seconds of the windows alone, without the clean run and the control in front of them."""
        return sum(list(self.seconds.values())[2:])


def naive(model: nn.Module, samples: Samples, trial: Trial) -> Reading:
    """The whole model on every batch, and the logits of every token."""
    marks = []
    with ExitStack() as stack, torch.no_grad():
        for injection in trial.injections:
            stack.enter_context(Injecting(model, injection))
        for batch in samples.batches(trial.start, trial.stop):
            logits = logits_of(model(**batch.inputs))
            marks += judge(samples, batch, logits[batch.rows, batch.positions], None)
    scores = collect(samples, marks)
    return Reading(trial, scores.values, nonfinite=sum(scores.broken))


def trials_of(samples: Samples, layers: int) -> list[Trial]:
    """The clean run, the control, and all windows."""
    windows = [range(start, start + WINDOW) for start in range(layers - WINDOW + 1)]
    injections = [Injection.of(ns.noise(scale=SCALE), layers=window) for window in windows]
    control = Injection.of(ns.noise(scale=0.0))
    asked = [(), (control,), *[(one,) for one in injections]]
    return [Trial(one, samples.key, samples.metric.name) for one in asked]


def sweep(model: nn.Module, samples: Samples, layers: int) -> tuple[Cost, Cost, Cost, ModelBench]:
    """Every trial by the naive protocol, without the prefix and with it, in an order that rotates."""
    with_prefix, without = ModelBench(model, samples), ModelBench(model, samples, prefix_memory=0)
    ways = [lambda trial: naive(model, samples, trial), without.measure, with_prefix.measure]
    costs = [Cost(), Cost(), Cost()]
    naive(model, samples, Trial((), samples.key, samples.metric.name))
    for number, trial in enumerate(trials := trials_of(samples, layers)):
        print(f"\r  trial {number + 1} of {len(trials)}", end="", file=sys.stderr, flush=True)
        for way in [(number + shift) % 3 for shift in range(3)]:
            costs[way].take(trial, ways[way])
    print(file=sys.stderr)
    return costs[0], costs[1], costs[2], with_prefix


def row(name: str, samples: Samples, found: tuple[Cost, Cost, Cost, ModelBench]) -> str:
    """One line of the table; raises if a reading differs with and without the prefix, or the control does any harm."""
    full, scored, ours, bench = found
    clean, control, *windows = ours.readings.values()
    prefix = bench.prefix_of(samples)
    if prefix is None or prefix.off:
        raise SystemExit(f"{name}: nothing was skipped: {prefix and prefix.off}")
    if ours.readings != scored.readings:
        raise SystemExit(f"{name}: readings differ with and without the prefix")
    if control.values != clean.values:
        raise SystemExit(f"{name}: the control of strength 0 differs from the clean run")
    if all(window.values == clean.values for window in windows):
        raise SystemExit(f"{name}: no window did any harm, so equal readings prove nothing")
    batches = samples.batches()
    share = sum(len(b.targets) for b in batches) / sum(b.inputs["input_ids"].numel() for b in batches)
    pairs = [zip(r.values, ours.readings[t].values, strict=True) for t, r in full.readings.items()]
    apart = max(abs(a - b) for pair in pairs for a, b in pair)
    return (
        f"| {name}, {samples.metric.name} | {len(samples)} | {share:.0%} | {full.total:.0f} | "
        f"{scored.windows / full.windows:.3f} | {ours.windows / full.windows:.3f} | {ours.total / full.total:.3f} | "
        f"{apart:.0e} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int)
    parser.add_argument("--workloads", nargs="+", choices=METRICS, default=list(METRICS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load("demo")
    lines = [
        "| workload, metric | samples | tokens scored | naive, CPU s | windows, head on scored rows | and prefix "
        "| with clean run and control | values apart |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in asked.workloads:
        print(name, file=sys.stderr)
        samples = prepare(demo_workload(name, limit=asked.samples), loaded.tokenizer, METRICS[name])
        lines.append(row(name, samples, sweep(loaded.model, samples, loaded.model.config.num_hidden_layers)))
        print(lines[-1], file=sys.stderr, flush=True)
    print("\n".join(lines))
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
