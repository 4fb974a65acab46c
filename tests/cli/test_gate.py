"""The command `gate` on a model in a folder: it passes itself, stops a brittle one, refuses what cannot be compared."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from letters import letters
from noisescope.cli.gate import TEMPLATES, template
from noisescope.cli.main import main, parsers

SMALL = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
MEASURED = "--metric kl_to_clean --samples 12 --seeds 2 --noise-scale 0.2"


def saved(path: Path, *, heads: float = 1.0, **changes: Any) -> Path:
    """A small model with its tokenizer; what leaves its head is multiplied, and with it what noise does to it."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(**{**SMALL, "num_hidden_layers": 2, "max_position_embeddings": 512, **changes})
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(heads)
    model.save_pretrained(path)
    letters().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, a more brittle one, one of another architecture, and a baseline of the first."""
    folder = tmp_path_factory.mktemp("gate")
    saved(folder / "first")
    saved(folder / "brittle", heads=2.5)
    saved(folder / "deeper", num_hidden_layers=3)
    assert ask(folder, "first", f"--save-baseline {folder}/baseline.json {MEASURED} --out {folder}/base") == 0
    return folder


def ask(folder: Path, name: str, more: str) -> int:
    return main(shlex.split(f"gate {folder}/{name} --history {folder}/history.jsonl {more}"))


def test_the_same_checkpoint_passes_and_measures_nothing_twice(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    line = f"--baseline {place}/baseline.json --out {place}/again --label same"
    assert ask(place, "first", line) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Gate: PASS") and "beyond" not in said.out.split("Cost")[0].replace("beyond a", "")
    before = {path.name: path.read_bytes() for path in (place / "again").glob("readings-*")}
    assert ask(place, "first", line) == 0
    assert {path.name: path.read_bytes() for path in (place / "again").glob("readings-*")} == before
    assert sum('"checkpoint":"same"' in text for text in (place / "history.jsonl").read_text().splitlines()) == 1


def test_a_brittle_checkpoint_is_stopped_and_the_trend_shows_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"--baseline {place}/base --out {place}/run --label step-2"
    assert ask(place, "brittle", line) == 1
    said = capsys.readouterr().out
    assert said.startswith("Gate: FAIL") and "beyond (baseline)" in said
    page = (place / "run" / "report.html").read_text()
    assert "step-2" in page and "Trend" in page
    (figure,) = (place / "run" / "figures").glob("trend-*.svg")
    assert figure.read_text().startswith("<svg")
    assert main(["report", str(place / "run"), "--format", "json,md"]) == 0
    table = (place / "run" / "report.md").read_text()
    assert re.search(r"step-2", table) and re.search(r"Operators at the gate", table)


def test_a_folder_a_file_and_a_report_in_its_folder_are_the_same_baseline(place: Path) -> None:
    answers = []
    assert main(["report", str(place / "base"), "--format", "json"]) == 0
    for baseline in ("baseline.json", "base", "base/report.json"):
        assert ask(place, "brittle", f"--baseline {place}/{baseline} --out {place}/shared") == 1
        found = json.loads((place / "shared" / "finding-gate.json").read_text())
        answers.append(found["finding"]["gate"])
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(
    ("model", "more", "seen"),
    [
        ("deeper", "", "architecture LlamaForCausalLM"),
        ("first", "--data demo:questions", "workload"),
        ("first", "--samples 10", "samples 12 there, 10 here"),
        ("first", "--metric nll", "metric kl_to_clean there, nll here"),
        ("first", "--seeds 3", "seeds 0, 1 there, 0, 1, 2 here"),
        ("first", "--noise-scale 0.1", "scale 0.2 there, 0.1 here"),
        ("first", "--dtype bfloat16", "dtype float32 there, bfloat16 here"),
    ],
)
def test_what_was_not_asked_the_same_is_refused_in_one_line(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, more: str, seen: str
) -> None:
    assert ask(place, model, f"--baseline {place}/baseline.json --out {tmp_path}/run {more}") == 2
    said = capsys.readouterr()
    errors = [line for line in said.err.splitlines() if line.startswith("noisescope: ")]
    assert said.out == "" and len(errors) == 1 and "cannot be compared" in errors[0] and seen in errors[0]


def changed(document: dict[str, Any], what: str) -> str:
    if what == "schema":
        document["schema"] = 99
    if what == "version":
        document["version"] = 99
    if what == "report":
        document["format"] = "noisescope report"
    if what == "missing":
        del document["baseline"]["fragility"]
    if what == "short":
        document["baseline"]["fragility"]["operators"][0]["rows"][0].pop()
    return json.dumps(document)[: 200 if what == "torn" else None]


@pytest.mark.parametrize(
    ("what", "seen"),
    [
        ("schema", "schema 99"),
        ("version", "version 99"),
        ("report", "no values by sample"),
        ("missing", "lacks fragility"),
        ("short", "not those of 12 samples"),
        ("torn", "not JSON"),
    ],
)
def test_a_file_that_is_no_whole_baseline_is_refused_before_the_model_is_loaded(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, seen: str
) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(changed(json.loads((place / "baseline.json").read_text()), what))
    assert main(["gate", "no-such-model", "--baseline", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and seen in said


def test_a_stopped_diagnosis_is_no_baseline(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = place / "half"
    shutil.copytree(place / "base", out)
    (readings,) = out.glob("readings-*")
    readings.write_bytes(b"".join(readings.read_bytes().splitlines(keepends=True)[:-1]))
    assert main(["gate", "no-such-model", "--baseline", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no whole baseline" in said and "missing" in said


def test_strict_fails_what_is_not_shown_and_a_baseline_has_to_be_named(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = f"--baseline {place}/baseline.json --factor 1"
    assert ask(place, "first", f"{more} --out {place}/near") == 0
    assert capsys.readouterr().out.startswith("Gate: UNDECIDED")
    assert ask(place, "first", f"{more} --strict --out {place}/near") == 1
    assert main(["gate", "no-such-model"]) == 2
    assert "--baseline is missing" in capsys.readouterr().err


def check_github(steps: list[dict[str, Any]], history: str) -> None:
    """The history is taken out of the cache and put back under the same key, also by a gate that failed."""
    (taken,) = [step for step in steps if "cache/restore@" in step.get("uses", "")]
    (kept,) = [step for step in steps if "cache/save@" in step.get("uses", "")]
    assert taken["with"]["path"] == kept["with"]["path"] == history and kept["if"] == "always()"
    assert taken["with"]["key"] == kept["with"]["key"] and kept["with"]["key"].startswith(taken["with"]["restore-keys"])
    gate = next(place for place, step in enumerate(steps) if step.get("run", "").startswith("noisescope "))
    assert steps.index(taken) < gate < steps.index(kept)
    # A cache of pip needs a file to go by: this one is there, because the job is in it.
    (python,) = [step["with"] for step in steps if "setup-python@" in step.get("uses", "")]
    assert python["cache-dependency-path"] in template("github")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_yaml_that_calls_the_command_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["gate", "--template", name])
    assert end.value.code == 0
    assert capsys.readouterr().out == template(name)
    plain = yaml.safe_load(template(name))
    job = plain["jobs"]["gate"] if name == "github" else plain["robustness-gate"]
    lines = [step.get("run", "") for step in job["steps"]] if name == "github" else job["script"]
    (called,) = [line for line in lines if line.startswith("noisescope ")]
    asked = parsers()[0].parse_args(shlex.split(called)[1:])
    assert (asked.model, asked.baseline) == ("$CHECKPOINT", Path("gate/baseline.json"))
    kept = job["steps"][-1]["with"]["path"].split() if name == "github" else job["artifacts"]["paths"]
    assert kept == [f"{asked.out}/report.html", f"{asked.out}/figures", str(asked.history)]
    if name == "gitlab":
        assert str(asked.history) in job["cache"]["paths"] and job["cache"]["when"] == "always"
    else:
        check_github(job["steps"], str(asked.history))
    assert "CHECKPOINT" in (plain["env"] if name == "github" else job["variables"])


@pytest.mark.parametrize(("name", "schema"), [("github", "github-workflows"), ("gitlab", "gitlab-ci")])
def test_a_template_fits_the_schema_of_where_it_runs(
    name: str, schema: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The schemas are those that come with check-jsonschema, so that nothing is fetched."""
    checker = pytest.importorskip("check_jsonschema")
    file = tmp_path / f"{name}.yml"
    for text, status in (
        (template(name), 0),
        (template(name).replace("image:", "imag:").replace("runs-on:", "on:"), 1),
    ):
        file.write_text(text)
        with pytest.raises(SystemExit) as end:
            checker.main(["--builtin-schema", f"vendor.{schema}", str(file)])
        assert end.value.code == status, capsys.readouterr().out


def test_an_unknown_template_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["gate", "--template", "gitlub"])
    assert end.value.code == 2
    assert "Did you mean 'gitlab'" in capsys.readouterr().err


def test_files_that_cannot_be_used_are_named_before_anything_is_measured(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, seen in ((f"--history {tmp_path}", "--history expects"), (f"--save-baseline {tmp_path}", "a folder")):
        words = f"gate {place}/first --baseline {place}/baseline.json --out {tmp_path}/run {more}"
        assert main(shlex.split(words)) == 2
        assert seen in capsys.readouterr().err.splitlines()[-1]
    assert not list((tmp_path / "run").glob("readings-*"))
