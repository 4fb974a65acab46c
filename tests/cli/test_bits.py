"""The command `bits`: from a run folder to a map and files, in one line where it cannot."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from letters import letters
from noisescope.cli.main import main
from noisescope.core.precision import PrecisionMap
from noisescope.sweep.store import Store

Capture = pytest.CaptureFixture[str]


def saved(path: Path, seed: int = 0) -> Path:
    """A small model as it is saved, with its tokenizer."""
    shape = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=3, max_position_embeddings=512)).save_pretrained(path)
    letters().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A diagnosis of the layers of a small model."""
    place = tmp_path_factory.mktemp("bits")
    model, out = saved(place / "small"), place / "run"
    words = f"diagnose {model} --data demo:texts --mode layer --samples 12 --noise-scale 0.2 --out {out}"
    assert main(shlex.split(words)) == 0
    return out


def test_it_needs_only_the_run_folder_and_keeps_map_files_and_page(run: Path, capsys: Capture) -> None:
    assert main(["bits", str(run), "--target-avg-bits", "6", "-n", "12"]) == 0
    said = capsys.readouterr().out
    found = Store(run).load_finding("precision", PrecisionMap)
    assert found is not None and 5.5 < found.average_bits <= 6.0
    assert f"average {found.average_bits:.3f} bits, target 6" in said and "this map" in said
    assert str(run / "precision" / "llm-compressor.yaml") in said and "report.html" in said
    recipe = yaml.safe_load((run / "precision" / "llm-compressor.yaml").read_text())
    groups = recipe["quant_stage"]["quant_modifiers"]["QuantizationModifier"]["config_groups"]
    assert sum(len(group["targets"]) for group in groups.values()) == 21
    assert "Precision map" in (run / "report.html").read_text()


def test_thresholds_use_what_the_diagnosis_found(run: Path, capsys: Capture) -> None:
    assert main(["bits", str(run), "--rule", "thresholds", "--target-avg-bits", "9", "-n", "12", "--no-measure"]) == 0
    assert "measured" not in capsys.readouterr().out
    found = Store(run).load_finding("precision", PrecisionMap)
    assert found is not None and found.rule == "thresholds" and found.measured == ()


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ("--target-avg-bits 3", "the smallest formats take"),
        ("--formats int4,int7", "unknown weight format 'int7'"),
        ("--rule best", "unknown rule 'best'"),
        ("--data nothing.jsonl", "nothing.jsonl"),
    ],
)
def test_what_cannot_be_done_is_one_line(run: Path, more: str, complaint: str, capsys: Capture) -> None:
    try:
        status = main(["bits", str(run), "-n", "12", *shlex.split(more)])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert complaint in capsys.readouterr().err.splitlines()[-1]


def test_another_model_than_that_of_the_run_is_refused(run: Path, tmp_path: Path, capsys: Capture) -> None:
    other = saved(tmp_path / "other", seed=1)
    assert main(["bits", str(run), "--model", str(other), "-n", "12"]) == 2
    assert "is not the model of" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert main(["bits", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err
