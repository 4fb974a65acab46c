"""The demo: its commands are real ones, it says what was found as it was found, and it runs to its end."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from noisescope.cli import demo
from noisescope.cli.main import main, read_words
from noisescope.core.migration import Plan, Step
from noisescope.core.precision import Choice, Group, Linear, Measured, Option, PrecisionMap, WeightFormat
from noisescope.diagnose.localization import Localization, Suspect
from noisescope.sweep.store import About, Store
from report import found


def kept(folder: Path, name: str, record: object) -> Store:
    store = Store(folder, About("model", "workload"))
    store.save_finding(name, record)
    return store


def folder_of_step(asked: argparse.Namespace) -> Path:
    return asked.run_folder if hasattr(asked, "run_folder") else asked.out


def test_every_command_of_the_demo_is_one_that_can_be_pasted() -> None:
    for step in demo.steps(Path("runs/demo")):
        asked = read_words(step.words)
        assert folder_of_step(asked) == Path("runs/demo") and asked.model in ("demo", None)


def test_what_is_fragile_is_said_by_level(tmp_path: Path) -> None:
    operators, layers, channels = demo._fragile(kept(tmp_path, "diagnosis", found.diagnosis()))
    worst = found.diagnosis().operators[0]
    assert operators.startswith(f"Operators: noise of 5 % in {worst.operator} costs ")
    assert layers.startswith("Layers: layers ") and "avalanche point" in layers
    assert channels.startswith("Channels: ") and channels.endswith("They make low-bit formats lossy.")
    assert "times as large as the median" in channels
    *_, calm = demo._fragile(kept(tmp_path / "calm", "diagnosis", found.healthy()))
    assert calm.startswith("Channels: 0 channels of ") and "lossy" not in calm


@pytest.mark.parametrize(
    ("suspects", "said"),
    [
        ([(10, "linear")], "was found at rank 1 among the 9 places that were checked, and nothing else was accused"),
        ([(3, "silu"), (10, "linear")], "was found at rank 2 among the 9 places that were checked, and 1 other place"),
        ([(3, "silu")], "was missed; the verdict is fault"),
    ],
)
def test_a_miss_and_a_wrong_suspect_are_admitted(suspects: list[tuple[int, str]], said: str, tmp_path: Path) -> None:
    record = Localization(
        "fault", tuple(Suspect(layer, name, f"m.{layer}", 9.0) for layer, name in suspects), checked=9
    )
    (line,) = demo._faulty(kept(tmp_path, "localization", record))
    assert said in line


def test_what_a_map_costs_is_said_beside_what_one_format_costs(tmp_path: Path) -> None:
    group = Group("a.q", 0, (Linear("a.q", 2, 32),))
    options = tuple(Option(name, group.size(WeightFormat.of(name)), 0.1) for name in ("int4", "int8"))
    measured = (
        Measured("this map", 4.5, 0.2, 0.1, 0.3),
        Measured("int4", 4.5, 0.4, 0.3, 0.5, (0.2, 0.1, 0.3)),
        Measured("evenly mixed", 4.4, 0.6, 0.5, 0.7, (0.4, 0.3, 0.5)),
    )
    record = PrecisionMap(6.0, "exact", (Choice(group, "int4", options),), 9, 2, measured=measured, samples=12)
    (line,) = demo._cheap(kept(tmp_path, "precision", record))
    assert "0.200 nats of KL per token, 0 being no change (95 % interval 0.100 to 0.300, 12 texts)" in line
    assert line.endswith("int4 everywhere (4.50 bits) costs 0.400.")
    assert list(demo._cheap(kept(tmp_path / "other", "precision", replace(record, measured=())))) == []


def test_the_steps_of_a_plan_are_counted_by_their_urgency(tmp_path: Path) -> None:
    steps = tuple(Step(priority, "layer 3", "do", "high", (), "noisescope ...", "pass") for priority in (1, 2, 2))
    record = Plan("demo", "npu", "nll", True, 0.05, steps, (), ())
    (line,) = demo._planned(kept(tmp_path, "plan", record))
    assert line == "Plan: 3 steps for the move to npu (validate first 1, spot-check 2), kept as plan.md."
    assert list(demo._planned(kept(tmp_path / "other", "plan", replace(record, steps=())))) == []


def test_nothing_is_said_of_what_was_not_kept(tmp_path: Path) -> None:
    store = kept(tmp_path, "diagnosis", replace(found.diagnosis(), operators=(), windows=(), channels=None))
    assert list(demo._fragile(store)) == [] and list(demo._faulty(store)) == []
    assert list(demo._cheap(store)) == list(demo._planned(store)) == []


@pytest.mark.slow
@pytest.mark.real_model
def test_the_demo_runs_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["demo", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Fault: linear of layer 10 was found at rank 1 among" in said and "nothing else was accused" in said
    assert "What to do first" in said and str((out / "report.html").resolve()) in said
    assert "Operators: noise of 5 % in linear costs " in said
    for line in said.splitlines():
        if line.startswith("  $ noisescope "):
            assert folder_of_step(read_words(shlex.split(line)[2:])) == out
    assert "Precision: a map of " in said and (out / "precision" / "llm-compressor.yaml").is_file()
    assert "Plan: " in said and (out / "plan.md").is_file()
    assert "linear of layer 10" in (out / "report.html").read_text()
