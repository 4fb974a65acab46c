"""The YAML file of a training run: what its blocks mean, and where a mistake in them stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from noisescope.core.errors import BadInputError
from noisescope.inject.schedule import PRESETS
from noisescope.runs.checkups import Checkups
from noisescope.runs.diagnosing import Wanted
from noisescope.runs.training_file import checkups_in, noise_in
from noisescope.sweep.noisy_training import noise_plan

BOTH = """
noise:
  schedule: exponential:0.05:0.001
  norms: qerl
  kind: relative_gaussian
  layers: [0, 1]
  operators: [linear, softmax]
  phases: forward
  factors: {0: 0.5, 1: 2}
  operator-factors: {softmax: 2}
  seed: 3
diagnostic:
  enabled: true
  mode: layer
  every: 100
  data: items.jsonl
  samples: 20
  metric: nll
  noise-scale: 0.02
  seeds: 2
  seed: 1
  history: gate/history.jsonl
  out: runs/here
  label: run 7
  layer:
    window_size: 4
    step_size: 2
  channel:
    outlier-threshold: 20
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "training.yaml"


def test_both_blocks_are_read(file: Path) -> None:
    file.write_text(BOTH)
    expected = noise_plan(
        "exponential:0.05:0.001",
        norms=PRESETS["qerl"],
        layers=[0, 1],
        operators=["linear", "softmax"],
        phases="forward",
        factors={0: 0.5, 1: 2},
        operator_factors={"softmax": 2},
        seed=3,
    )
    assert noise_in(file) == expected
    wanted = Wanted("layer", scale=0.02, window_size=4, step_size=2, outlier_threshold=20.0, seeds=2, seed=1)
    assert checkups_in(file) == Checkups(
        100,
        wanted,
        "items.jsonl",
        20,
        "nll",
        history=Path("gate/history.jsonl"),
        out=Path("runs/here"),
        label="run 7",
    )


def test_what_is_left_out_is_none_of_it(file: Path) -> None:
    file.write_text("noise:\n  norms: 0.01\n")
    plan = noise_in(file)
    assert plan.schedule is None and plan.norms is not None and checkups_in(file) is None
    file.write_text("diagnostic:\n  every: 3\n")
    assert checkups_in(file) == Checkups(3)
    file.write_text("diagnostic:\n  enabled: false\n  every: 3\n")
    assert checkups_in(file) is None


@pytest.mark.parametrize(
    ("text", "line", "seen"),
    [
        ("noise:\n  schedul: decay\n", 2, "Did you mean 'schedule'"),
        ("noise:\n  schedule: gentle\n", 2, "expected a scale such as 0.05"),
        ("noise:\n  schedule: [0.1]\n", 2, "expected a schedule"),
        ("noise:\n  schedule: decay\n  operators: liner\n", 3, "Did you mean 'linear'"),
        ("noise:\n  schedule: decay\n  layers: all\n", 3, "expected a layer number"),
        ("noise:\n  schedule: decay\n  factors: {0: -1}\n", 3, "finite numbers >= 0"),
        ("noise:\n  schedule: decay\n  seed: x\n", 3, "seed: number 'x'"),
        ("noise:\n  schedule: decay\n  schedule: 0.1\n", 3, "already set"),
        ("noise:\n  schedule: decay\nother:\n  x: 1\n", 3, "unknown block 'other'"),
        ("noise: 0.05\n", 1, "expected settings"),
        ("diagnostic:\n  every: 0\n", 2, "a whole number >= 1"),
        ("diagnostic:\n  every: 2\n  mode: layers\n", 3, "Did you mean 'layer'"),
        ("diagnostic:\n  every: 2\n  layer:\n    window: 2\n", 4, "unknown setting 'window'"),
        ("diagnostic:\n  every: 2\n  noise-scale: -1\n", 3, "above 0"),
        ("diagnostic:\n  every: 2\n  enabled: maybe\n", 3, "true or false"),
        ("diagnostic:\n  every: 2\n  data: 3\n", 3, "expected a text"),
        ("diagnostic:\n  every: [1,\n", 3, "not YAML"),
    ],
)
def test_a_mistake_is_told_with_file_and_line(file: Path, text: str, line: int, seen: str) -> None:
    file.write_text(text)
    with pytest.raises(BadInputError) as told:
        (checkups_in if text.startswith("diagnostic") else noise_in)(file)
    assert str(told.value).startswith(f"{file}:{line}: ") and seen in str(told.value)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("noise:\n  seed: 1\n", "no noise in it"),
        ("noise:\n  enabled: false\n  schedule: decay\n", "no noise in it"),
        ("# nothing\n", "no noise in it"),
        ("diagnostic:\n  mode: full\n", "without every"),
    ],
)
def test_what_is_missing_is_told(file: Path, text: str, seen: str) -> None:
    file.write_text(text)
    with pytest.raises(BadInputError, match=seen):
        (checkups_in if text.startswith("diagnostic") else noise_in)(file)
