"""What a diagnosis takes of memory follows the model and not the samples, and trials leave nothing behind."""

from __future__ import annotations

import gc
import json
import shlex
from pathlib import Path

import pytest
import torch

import noisescope as ns
from cases import make
from contracts.checkpoints import SETTINGS, completions
from hostile.children import Asked, Children
from hostile.models import saved
from letters import letters
from noisescope.core.records import Injection, Trial
from noisescope.measure.batches import prepare
from noisescope.sweep.bench import ModelBench

LAYERS = 30


@pytest.mark.parametrize(
    ("few", "more"),
    # So few are less than a batch; what a backward pass keeps of them would be 90 MB.
    [pytest.param(4, 40, id="some"), pytest.param(16, 20, id="many", marks=pytest.mark.slow)],
)
def test_ten_times_the_samples_take_no_more_memory(children: Children, tmp_path: Path, few: int, more: int) -> None:
    saved(tmp_path / "model", LAYERS)
    taken = {}
    for count in (few, 10 * few):
        lines = [json.dumps({"text": f"{number} is the number of this text. " * 4}) for number in range(count)]
        (tmp_path / f"{count}.jsonl").write_text("\n".join(lines))
        asked = f"diagnose model --data {count}.jsonl --samples {count} --seeds 1 --noise-scale 0.3 --out {count}"
        told = children.run(Asked(str(tmp_path), shlex.split(asked)))
        assert told.status == 0, told.err
        taken[count] = told.megabytes
    print(taken)
    assert taken[10 * few] < taken[few] + more


def resident() -> float:
    """Megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def test_five_hundred_trials_leave_nothing_behind() -> None:
    model = make("llama")
    samples = prepare(completions(), letters(), "nll", SETTINGS)
    bench = ModelBench(model, samples)
    trials = [
        Trial((Injection.of(ns.noise(scale=0.1), layers=[seed % 2], seed=seed),), samples.key, "nll", 0, 2)
        for seed in range(600)
    ]
    seen = []
    for number, trial in enumerate(trials):
        bench.measure(trial)
        if number in (99, 599):
            gc.collect()
            tensors = sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
            hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
            seen.append((tensors, hooks, len(gc.get_objects()), resident()))
    (tensors, hooks, objects, megabytes), after = seen[0], seen[1]
    assert after[:2] == (tensors, hooks)
    assert after[2] - objects < 500, "less than one object for a trial"
    assert after[3] - megabytes < 5
