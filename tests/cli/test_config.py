"""Options from a YAML file: what they mean, what wins, and how a mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from noisescope.cli.main import main, read_words

PLAIN = """
model: some/folder
data: demo:texts
noise-scale: 0.02
exhaustive: true
out: runs/first
"""
BLOCK = """
model: some/folder
out: runs/first
diagnostic:
  enabled: true
  mode: layer
  layer:
    window_size: 4
    step_size: 2
  channel:
    outlier_threshold: 20
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "wanted.yaml"


def test_names_are_those_of_the_flags(file: Path) -> None:
    file.write_text(PLAIN)
    asked = read_words(["diagnose", "--config", str(file)])
    assert (asked.model, asked.data, asked.noise_scale, asked.exhaustive) == ("some/folder", "demo:texts", 0.02, True)
    assert asked.out == Path("runs/first") and asked.window_size == 3


def test_the_block_of_a_training_job_is_accepted(file: Path) -> None:
    file.write_text(BLOCK)
    asked = read_words(["diagnose", f"--config={file}"])
    assert (asked.mode, asked.window_size, asked.step_size, asked.outlier_threshold) == ("layer", 4, 2, 20.0)


@pytest.mark.parametrize("order", [0, 1])
def test_the_command_line_wins_wherever_it_stands(file: Path, order: int) -> None:
    file.write_text(PLAIN)
    named, said = ["--config", str(file)], ["other", "--noise-scale", "0.05"]
    asked = read_words(["diagnose", *(named + said if order else said + named)])
    assert (asked.model, asked.noise_scale) == ("other", 0.05)


def test_lists_are_what_the_flag_takes_with_commas(file: Path) -> None:
    file.write_text("noise-levels: [0, 0.1, 0.2]\nmodel: demo\nout: x\n")
    assert read_words(["robustness", "--config", str(file)]).noise_levels == (0.0, 0.1, 0.2)


def test_what_may_be_repeated_is_a_list(file: Path) -> None:
    file.write_text("full: ['*.q_proj', '*.o_proj']\n")
    asked = read_words(["capture", "demo", "--out", "x", "--config", str(file)])
    assert asked.full == ["*.q_proj", "*.o_proj"]


@pytest.mark.parametrize(
    ("text", "line", "seen"),
    [
        ("model: demo\nnoise-scal: 0.1\n", 2, "unknown option 'noise-scal'"),
        ("model: demo\n\nnoise-scale: -1\n", 3, "expected a finite number above 0"),
        ("seeds: [1, 2]\n", 1, "expected a whole number of at least 1"),
        ("exhaustive: 3\n", 1, "expected true or false"),
        ("seeds: true\n", 1, "expected a text or a number"),
        ("seeds: 3\nseeds: 4\n", 2, "already set at"),
        ("noise_scale: 0.1\nnoise-scale: 0.1\n", 2, "already set at"),
        ("diagnostic:\n  mode: layers\n", 2, "Did you mean 'layer'"),
        ("diagnostic:\n  layer: 3\n", 2, "under layer"),
        ("diagnostic:\n  enabled: false\n", 2, "switched off"),
        ("model: demo\nseeds: [1,\n", 3, "not YAML"),
        ("- model\n", 1, "expected settings"),
        ("config: other.yaml\n", 1, "unknown option 'config'"),
    ],
)
def test_a_mistake_is_told_with_its_line(
    file: Path, text: str, line: int, seen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert main(["diagnose", "demo", "--out", "x", "--config", str(file)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and f"{file}:{line}: " in told[0] and seen in told[0]


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"a: \x00"])
def test_what_cannot_be_read_is_told(file: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]) -> None:
    if content is not None:
        file.write_bytes(content)
    assert main(["diagnose", "demo", "--out", "x", "--config", str(file)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and str(file) in told[0]


def test_an_empty_file_sets_nothing(file: Path) -> None:
    file.write_text("# nothing yet\n")
    assert read_words(["diagnose", "demo", "--out", "x", "--config", str(file)]).samples == 100
