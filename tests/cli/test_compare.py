"""`capture` and `compare` as commands: what they answer, their exit statuses, and their one-line refusals."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from letters import letters
from noisescope.cli.main import main
from noisescope.diagnose.comparison import Comparison
from noisescope.measure.capture_file import read_capture
from noisescope.runs.reporting import view_of
from noisescope.sweep.store import Store

SHAPE = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}


def saved(path: Path, *, spoiled: bool = False) -> Path:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=3, max_position_embeddings=256))
    if spoiled:
        model.model.layers[1].mlp.up_proj.weight.data[:8] = 0.03
    model.save_pretrained(path)
    letters().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return saved(folder / "before"), saved(folder / "after", spoiled=True)


def ask(*words: object) -> int:
    return main([str(word) for word in words])


def test_captures_from_two_runs_are_compared(
    models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("a.capture", "b.capture", "c.capture")]
    for model, file in zip((models[0], models[0], models[1]), files, strict=True):
        more = ["--attention", "eager"] if file == files[1] else ["--full", "*.up_proj"]
        assert ask("capture", model, "--samples", 2, "--out", file, *more) == 0
    assert capsys.readouterr().out.splitlines() == [str(file) for file in files]
    assert read_capture(files[0]).manifest.name == str(models[0])
    assert ask("compare", files[0], files[1]) == 0
    assert capsys.readouterr().out.startswith("pass\n")
    assert ask("compare", files[0], files[2]) == 1
    told = capsys.readouterr().out
    assert told.startswith("fail\n  linear of layer 1 (model.layers.1.mlp.up_proj)")
    assert ask("compare", files[0], files[2], "--layers", "0") == 0


def test_two_checkpoints_are_compared_in_one_command_and_kept(
    models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("compare", *models, "--samples", 2, "--out", tmp_path / "run") == 1
    told = capsys.readouterr().out
    assert "linear of layer 1 (model.layers.1.mlp.up_proj)" in told and "was measured" in told
    found = Store(tmp_path / "run").load_finding("comparison", Comparison)
    assert found is not None and found.verdict == "fail"
    assert found.suspects[0].path == "model.layers.1.mlp.up_proj"
    assert ask("compare", models[0], models[0], "--dtype", "bfloat16", "--samples", 2, "--max-mape", 1) == 0


def test_a_limit_that_rounding_alone_breaks_is_something_to_do(models: tuple[Path, Path], tmp_path: Path) -> None:
    more = ["--dtype", "bfloat16", "--samples", 2, "--max-mape", 1e-6, "--out", tmp_path / "run"]
    assert ask("compare", models[0], models[0], *more) == 1
    (action,) = view_of(Store(tmp_path / "run")).actions
    assert action.issue.startswith("No operator is at fault") and "limit 1e-06" in action.evidence[0]


def test_a_checkpoint_is_compared_as_a_graph_and_in_int8(
    models: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("compare", *models, "--samples", 2, "--system", "onnx", "--layers", "1") == 1
    told = capsys.readouterr().out
    assert told.startswith("fail\n  linear of layer 1 (model.layers.1.mlp.up_proj)") and "onnx" in told
    assert ask("compare", models[0], models[0], "--samples", 2, "--system", "int8", "--max-mape", 5) == 1
    assert "linear of layer 0" in capsys.readouterr().out


def test_what_does_not_fit_is_refused_in_one_line(
    models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("capture", models[0], "--samples", 1, "--out", tmp_path / "a.capture") == 0
    capsys.readouterr()
    lines = [
        ("compare", tmp_path / "a.capture", models[0]),
        ("compare", tmp_path / "a.capture", tmp_path / "none.capture"),
        ("capture", models[0], "--samples", 1, "--max-size", 0.001, "--out", tmp_path / "b.capture"),
        ("capture", models[0], "--device", "npu", "--out", tmp_path / "b.capture"),
    ]
    for line in lines:
        assert ask(*line) == 2
        told = capsys.readouterr()
        assert not told.out and told.err.count("\n") == 1 and "not foreseen" not in told.err, told.err
