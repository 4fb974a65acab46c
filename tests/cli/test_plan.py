"""The command `plan`: from a diagnosis and a comparison to steps whose commands really run and say what they should."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from letters import letters
from noisescope.cli.main import main
from noisescope.core.migration import Plan
from noisescope.sweep.store import Store

Capture = pytest.CaptureFixture[str]
SHAPE = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}


def saved(path: Path, *, spoiled: bool = False) -> Path:
    """A small model; spoiled, some of one weight is stale."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=4, max_position_embeddings=512))
    if spoiled:
        model.model.layers[2].mlp.up_proj.weight.data[:8] = 0.03
    model.save_pretrained(path)
    letters().save_pretrained(path)
    return path


def ask(line: str) -> int:
    return main(shlex.split(line))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A diagnosis of a small model, and the model before and after a conversion that went wrong."""
    place = tmp_path_factory.mktemp("plan")
    before = saved(place / "before")
    saved(place / "after", spoiled=True)
    words = "--data demo:texts --metric nll --samples 12 --window-size 1 --noise-scale 0.2"
    assert ask(f"diagnose {before} {words} --out {place / 'run'}") == 0
    return place


def held(folder: Path) -> Plan:
    found = Store(folder).load_finding("plan", Plan)
    assert found is not None
    return found


def test_the_whole_way_from_plan_to_validation(place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    assert ask("plan run --target cpu") == 0
    told = capsys.readouterr().out
    assert "There is no comparison" in told and "report: run/report.html" in told
    # A fragile layer compared in float16, so that there is something to validate.
    before = held(place / "run")
    assert before.steps and all(step.priority for step in before.steps)
    for command in (*before.prepare, *(step.command for step in before.steps)):
        assert main(shlex.split(command)[1:]) == 0, command
    assert ask("compare before after --samples 2 --data demo:texts --out run") == 1
    assert ask("plan run") == 0
    plan = held(place / "run")
    step = plan.steps[0]
    assert step.layers == (2,) and step.operators == ("linear",) and "up_proj" in step.reasons[0]
    assert step.command == "noisescope compare before after --samples 2 --data demo:texts --layers 2"
    assert main(shlex.split(step.command)[1:]) == 1
    saved(place / "after")
    assert main(shlex.split(step.command)[1:]) == 0, "repaired"
    assert step.command in (place / "run" / "plan.md").read_text()
    assert json.loads((place / "run" / "plan.json").read_text())["plan"]["steps"][0]["command"] == step.command
    page = (place / "run" / "report.html").read_text()
    assert "Migration plan" in page and step.command in page


def test_a_comparison_in_another_folder_counts(place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    saved(place / "bad", spoiled=True)
    assert ask("compare before bad --samples 2 --out beside --dtype bfloat16 --max-mape 1") == 1
    assert ask("plan run --comparison beside") == 0
    plan = held(place / "run")
    assert plan.steps[0].layers == (2,) and plan.target == "cpu"
    assert not any("not to the bit" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("plan nothing", "not a run folder"),
        ("plan beside-empty", "not a run folder"),
        ("plan run --comparison run-two", "not a run folder"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    line: str, complaint: str, place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    assert ask(line) == 2
    told = capsys.readouterr()
    assert not told.out and told.err.count("\n") == 1 and complaint in told.err


def test_a_run_without_a_diagnosis_says_which_command_makes_one(
    place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    assert ask("compare before before --samples 1 --out compared-only") == 0
    capsys.readouterr()
    assert ask("plan compared-only --model before --data demo:texts") == 2
    assert "holds no diagnosis; make one with noisescope diagnose" in capsys.readouterr().err
