"""The demo: its commands are real ones, it says what was found as it was found, and it runs to its end."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from noisescope.cli import demo
from noisescope.cli.main import main, read_words
from noisescope.diagnose.localization import Localization, Suspect
from noisescope.sweep.store import About, Store
from report import found


def kept(folder: Path, name: str, record: object) -> Store:
    store = Store(folder, About("model", "workload"))
    store.save_finding(name, record)
    return store


def test_every_command_of_the_demo_is_one_that_can_be_pasted() -> None:
    for step in demo.steps(Path("runs/demo")):
        asked = read_words(step.words)
        assert (asked.model, asked.out) == ("demo", Path("runs/demo"))


def test_what_is_fragile_is_said_by_level(tmp_path: Path) -> None:
    operators, layers, channels = demo._fragile(kept(tmp_path, "diagnosis", found.diagnosis()))
    worst = found.diagnosis().operators[0]
    assert operators.startswith(f"Operators: noise of 5 % in {worst.operator} costs ")
    assert layers.startswith("Layers: layers ") and "avalanche point" in layers
    assert channels.startswith("Channels: ") and "times as large as the median" in channels


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


def test_nothing_is_said_of_what_was_not_kept(tmp_path: Path) -> None:
    store = kept(tmp_path, "diagnosis", replace(found.diagnosis(), operators=(), windows=(), channels=None))
    assert list(demo._fragile(store)) == [] and list(demo._faulty(store)) == []


@pytest.mark.slow
@pytest.mark.real_model
def test_the_demo_runs_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["demo", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Fault: linear of layer 10 was found at rank 1 among" in said and "nothing else was accused" in said
    assert "The three things to do first" in said and str((out / "report.html").resolve()) in said
    assert "Operators: noise of 5 % in linear costs " in said
    for line in said.splitlines():
        if line.startswith("  $ noisescope "):
            assert read_words(shlex.split(line)[2:]).out == out
    assert "linear of layer 10" in (out / "report.html").read_text()
