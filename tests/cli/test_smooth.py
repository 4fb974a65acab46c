"""The command `smooth`: a checkpoint that transformers loads, whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from letters import letters
from model.test_gguf_file import DIGITS_APART, llama, write_gguf
from noisescope.cli.main import main
from noisescope.core.smoothing import Smoothing
from noisescope.sweep.store import Store
from runs.test_smoothing import planted

Capture = pytest.CaptureFixture[str]
IDS = torch.arange(3, 40)[None]


def answer(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder).eval()(IDS).logits


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smooth") / "planted"
    planted().save_pretrained(folder)
    letters().save_pretrained(folder)
    return folder


def smooth(source: Path, out: Path, *more: str) -> int:
    return main(["smooth", str(source), "-n", "12", "--out", str(out), *more])


@pytest.fixture(scope="module")
def out(source: Path) -> Path:
    folder = source.parent / "runs" / "out"
    assert smooth(source, folder) == 0
    return folder


def test_the_folder_is_a_checkpoint_that_answers_as_the_original(source: Path, out: Path) -> None:
    assert torch.equal(answer(out), answer(source))
    assert AutoTokenizer.from_pretrained(out)("the thing")["input_ids"] == letters()("the thing")["input_ids"]
    found = Store(out).load_finding("smoothing", Smoothing)
    assert found is not None and found.after.estimate < 0.1 * found.before.estimate and len(found.folded) >= 6
    page = (out / "report.html").read_text()
    assert "Smoothing of" in page and "Cost of int8" in page
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_the_same_command_again_only_says_what_is_there(source: Path, out: Path, capsys: Capture) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    capsys.readouterr()
    assert smooth(source, out) == 0
    said = capsys.readouterr().out
    assert "moved no bit of the answers" in said and "before +" in said and str(out) in said
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert smooth(source, out, "--alpha", "0.5") == 2
    assert "alpha search there, 0.5 here" in capsys.readouterr().err


def test_the_report_can_be_made_again_from_the_folder(out: Path, capsys: Capture) -> None:
    assert main(["report", str(out), "--format", "md"]) == 0
    text = (out / "report.md").read_text()
    assert "### Folds" in text and r"model.layers.0.input\_layernorm" in text
    capsys.readouterr()


def test_one_alpha_is_kept_as_asked(source: Path, tmp_path: Path) -> None:
    assert smooth(source, tmp_path / "half", "--alpha", "0.5", "--activations", "token") == 0
    found = Store(tmp_path / "half").load_finding("smoothing", Smoothing)
    assert found is not None and found.alpha == 0.5 and {fold.alpha for fold in found.folded} == {0.5}
    assert torch.equal(answer(tmp_path / "half"), answer(source))


def test_what_is_in_the_way_is_not_touched(source: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert smooth(source, tmp_path) == 2
    assert "is there already" in capsys.readouterr().err
    assert smooth(source, tmp_path / "notes.txt") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_write_that_fails_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import PreTrainedTokenizerFast

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", full)
    assert smooth(source, tmp_path / "new" / "out") == 2
    assert list((tmp_path / "new").iterdir()) == []


def test_a_gguf_file_becomes_an_ordinary_folder(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", llama(len(DIGITS_APART[0])), *DIGITS_APART)
    assert smooth(file, tmp_path / "out") == 0
    with torch.no_grad():
        from noisescope.model.load import load

        ids = torch.arange(8)[None]
        assert torch.equal(load(str(tmp_path / "out")).model(ids).logits, load(str(file)).model(ids).logits)
    config = (tmp_path / "out" / "config.json").read_text()
    assert "quantization_config" not in config
    shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("alpha", ["1.5", "half", "nan"])
def test_a_strange_alpha_is_one_line(source: Path, tmp_path: Path, alpha: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        smooth(source, tmp_path / "out", "--alpha", alpha)
    assert "expected a share from 0 to 1" in capsys.readouterr().err.splitlines()[-1]
