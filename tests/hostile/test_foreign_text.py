"""Names, prompts and lines that want to be markup, commands or formulas: everywhere they are only text."""

from __future__ import annotations

import csv
import json
import os
import pickle
import re
import shlex
import unicodedata
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import noisescope as ns
from hostile.models import saved
from noisescope.cli.main import main
from noisescope.core.errors import BadInputError, NoisescopeError
from noisescope.core.foreign import plain
from noisescope.core.records import Reading, Trial
from noisescope.runs.reporting import report
from noisescope.sweep.store import About, Store
from report.reading import page, tables_of_markdown

# A terminal's title and colours, a false line of output, markup, a table's bar, a formula, writing turned round.
STEERING, TURNING = "\x1b]0;own\x07\x1b[2J\x9b31m\n", "\u202e\u2066\u200f\U000e0041"
ATTACK = f"{STEERING}Gate: PASS\r<img src=x onerror=alert(1)><script>|=cmd()|`x`{TURNING}"
SEEN = "Gate: PASS <img src=x onerror=alert(1)><script>|=cmd()|`x`"


class Hostile(nn.Module):
    """Layers whose names are attacks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList()
        for number in range(4):
            layer = nn.Module()
            layer.add_module(ATTACK, nn.Linear(8, 8))
            layer.number = number
            self.layers.append(layer)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.nn.functional.silu(getattr(layer, ATTACK)(x))
        return self.head(x)


def harmless(text: str) -> None:
    """Nothing in it steers a terminal or hides, and no line is one that we did not write."""
    bad = [c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\u200c\u200d"]
    assert not bad, bad
    assert not [line for line in text.splitlines() if line.startswith("Gate: PASS")]


def only_text(folder: Path) -> None:
    """Nothing of an attack became markup, in any format."""
    tree = page((folder / "report.html").read_text())
    assert not tree.all("img") and len(tree.all("script")) == 1
    assert not [name for tag in tree.every() for name in tag.attributes if name.startswith("on")]
    marked = (folder / "report.md").read_text()
    # Between fences nothing is markup; that they cannot be closed from inside is shown where they are made.
    assert "<" not in re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", marked)
    for _, rows in tables_of_markdown(marked):
        assert len({len(row) for row in rows}) == 1
    json.loads((folder / "report.json").read_text())
    for name in ("report.html", "report.md", "report.json"):
        harmless((folder / name).read_text().replace("\\n", ""))


def test_names_of_layers(tmp_path: Path) -> None:
    batches = [{"x": torch.randn(4, 8, generator=torch.Generator().manual_seed(n))} for n in range(3)]
    found = ns.diagnose(Hostile().eval(), batches, window_size=2, scale=0.3, out=tmp_path / "run")
    assert found.operators
    assert any(ATTACK in site.path for site in ns.sites(Hostile().eval(), batches[0]))
    report(tmp_path / "run")
    only_text(tmp_path / "run")
    located = ns.locate(Hostile().eval(), batches[:1], repeats=2)
    for line in (str(located), *map(str, located.suspects)):
        assert line is not None


def test_names_of_folders_and_models_and_lines_of_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = ATTACK.replace("/", "")
    model = saved(tmp_path / name)
    data = tmp_path / f"{name}.jsonl"
    lines = [json.dumps({"text": f"{ATTACK} number {number}", "kind": ATTACK}) for number in range(8)]
    data.write_text("\n".join(lines))
    out = tmp_path / "run"
    capsys.readouterr()
    asked = ["--data", str(data), "--samples", "4", "--seeds", "1", "--noise-scale", "0.2"]
    assert main(["diagnose", str(model), *asked, "--out", str(out)]) == 0
    assert main(["report", str(out)]) == 0
    more = ["--save-baseline", str(tmp_path / "b.json"), "--history", str(tmp_path / "h.jsonl"), "--label", ATTACK]
    assert main(["gate", str(model), *asked, "--out", str(tmp_path / "gate"), *more]) == 0
    for command in (
        ["status", str(out)],
        ["sites", str(model)],
        ["locate", str(model), "-n", "1", "--out", str(out)],
        ["plan", str(out)],
        ["smooth", str(model), "--data", str(data), "--alpha", "0.5", "--out", str(tmp_path / f"smooth {name}")],
    ):
        assert main(command) in (0, 1)
    told = capsys.readouterr()
    harmless(told.err)
    # The gate's own verdict is there, once, and is its own.
    verdicts = [line for line in told.out.splitlines() if line.startswith("Gate: ")]
    assert len(verdicts) == 1
    harmless(told.out.replace(verdicts[0], ""))
    assert main(["report", str(out)]) == 0
    only_text(out)


def test_fault_tests_of_a_foreign_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = [{"x": torch.randn(4, 8, generator=torch.Generator().manual_seed(n))} for n in range(3)]
    ns.diagnose(Hostile().eval(), batches, window_size=2, scale=0.3, out=tmp_path / "run")
    cases, table = tmp_path / "cases.json", tmp_path / "cases.csv"
    assert main(["faults", str(tmp_path / "run"), "--json", str(cases), "--csv", str(table)]) == 0
    held = json.loads(cases.read_text())
    for number, case in enumerate(held["plan"]["cases"]):
        case["name"], case["because"] = f"{ATTACK} {number}", f"={ATTACK}"
    cases.write_text(json.dumps(held))
    assert main(["faults", str(cases), "--json", str(cases), "--csv", str(table)]) == 0
    told = capsys.readouterr()
    for text in (told.out, told.err, cases.read_text(), table.read_text()):
        harmless(text)
    for row in csv.reader(table.read_text().splitlines()):
        assert not [cell for cell in row if cell.startswith(("=", "+", "@", "-"))]


def test_captures_of_a_foreign_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = [{"x": torch.randn(4, 8)}]
    paths = [ns.capture(Hostile().eval(), batches, tmp_path / name) for name in ("a.capture", "b.capture")]
    assert main(["compare", *map(str, paths), "--out", str(tmp_path / "run")]) in (0, 1)
    harmless("".join(capsys.readouterr()))
    assert main(["report", str(tmp_path / "run")]) == 0
    only_text(tmp_path / "run")


def test_run_folders_of_a_foreign_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = About("m", "w", ((ATTACK, ATTACK),), ATTACK, ((ATTACK, ATTACK),), ATTACK)
    with Store(tmp_path / "run", about) as store:
        store.append(Reading(Trial((), ATTACK, ATTACK, 0, 1), error=ATTACK))
    assert main(["status", str(tmp_path / "run")]) == 0
    assert main(["report", str(tmp_path / "run")]) == 2
    told = capsys.readouterr()
    harmless(told.out + told.err)
    assert len(told.err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["sites", f"/no/{ATTACK}"],
        ["diagnose", "demo", "--data", ATTACK],
        ["diagnose", "demo", "--metric", ATTACK, "--samples", "1"],
        ["status", ATTACK],
        ["compare", ATTACK, ATTACK],
        ["gate", "demo", "--baseline", ATTACK],
        ["bits", ATTACK],
    ],
    ids=lambda words: words[0],
)
def test_what_is_asked_comes_back_in_one_harmless_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    harmless(told)
    assert len(told.splitlines()) == 1 and "not foreseen" not in told


def test_every_error_of_ours_is_one_line_and_keeps_what_can_be_read() -> None:
    for kind in (NoisescopeError, BadInputError):
        assert str(kind(ATTACK)) == SEEN
        assert str(pickle.loads(pickle.dumps(kind(ATTACK)))) == SEEN
    assert len(str(BadInputError("x" * 100_000))) == 2000
    assert plain("a\tb  c") == "a b  c" and plain("Größe \u0645\u200c\u06cc") == "Größe \u0645\u200c\u06cc"


class Runs:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("name", ["w.pt", "w.bin", "w.ckpt", "old.pth", "bare.pt", "deep.pt", "folder", "shards"])
def test_a_pickle_that_would_run_code_runs_none(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, mark = saved(tmp_path / "model"), tmp_path / "mark"
    path = tmp_path / name
    evil = {"state_dict": {"lm_head.weight": Runs(mark)}, "epoch": 3}
    if name in ("folder", "shards"):
        (model / "model.safetensors").unlink()
        file = model / ("pytorch_model.bin" if name == "folder" else "pytorch_model-00001-of-00001.bin")
        torch.save({"lm_head.weight": Runs(mark)}, file)
        index = {"metadata": {}, "weight_map": {"lm_head.weight": file.name}}
        if name == "shards":
            (model / "pytorch_model.bin.index.json").write_text(json.dumps(index))
        words = ["sites", str(model)]
    else:
        if name == "bare.pt":
            path.write_bytes(pickle.dumps(Runs(mark), protocol=2))
        elif name == "deep.pt":
            torch.save({"model": {"a": [({"b": Runs(mark)},)]}}, path)
        else:
            torch.save(evil, path, _use_new_zipfile_serialization=name != "old.pth")
        words = ["sites", str(path), "--config-from", str(model)]
    capsys.readouterr()
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "would run code" in told and len(told.splitlines()) == 1
    assert not mark.exists()


def test_a_pickle_in_the_place_of_any_other_file_runs_none(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    data = pickle.dumps(Runs(mark))
    model = saved(tmp_path / "model")
    for victim in ("model.safetensors", "config.json", "tokenizer.json"):
        kept = (model / victim).read_bytes()
        (model / victim).write_bytes(data)
        assert main(["sites", str(model)]) == 2
        (model / victim).write_bytes(kept)
    for words in (
        "compare F F",
        "status F",
        "gate demo --baseline F",
        "diagnose demo --data F",
        "sites demo --config F",
    ):
        (tmp_path / "F").write_bytes(data)
        assert main(shlex.split(words.replace("F", str(tmp_path / "F")))) == 2
    assert not mark.exists()
