"""Whole commands on a model in a folder: what they answer, and what is left of them when they are stopped."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from letters import letters
from noisescope.cli.main import main
from noisescope.diagnose.robustness import Robustness
from noisescope.diagnose.whole import Diagnosis
from noisescope.sweep.store import Store

SCRIPT = Path(sys.executable).with_name("noisescope")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model as it is saved, with its tokenizer."""
    path = tmp_path_factory.mktemp("models") / "small"
    shape = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=6, max_position_embeddings=512)).save_pretrained(path)
    letters().save_pretrained(path)
    return path


def ask(folder: Path, out: Path, more: str = "") -> list[str]:
    return shlex.split(f"diagnose {folder} --data demo:texts --samples 12 --noise-scale 0.2 --out {out} {more}")


def finding(out: Path) -> str:
    """What was concluded, but for where it is kept and by how many processes it was measured."""
    return (out / "finding-diagnosis.json").read_text().replace(str(out), "RUN").replace("RUN --workers 2", "RUN")


def lines(out: Path) -> list[str]:
    """Every trial that has a whole line, by its key."""
    found = [line for path in out.glob("readings-*") for line in path.read_bytes().split(b"\n")[:-1] if line]
    return [json.loads(line)["key"] for line in found]


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A diagnosis that nothing disturbed."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    assert main(ask(folder, out)) == 0
    return out


def test_a_diagnosis_answers_at_all_three_levels(
    folder: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = lines(finished)
    assert main(ask(folder, finished)) == 0
    told = capsys.readouterr()
    assert lines(finished) == before, "a repeated command measures nothing again"
    assert str(finished) in told.err
    found = Store(finished).load_finding("diagnosis", Diagnosis)
    assert found is not None and found.control.holds
    assert found.operators and found.windows and found.channels is not None
    for name in [one.operator for one in found.operators] + [one.name for one in found.windows]:
        assert name in told.out
    assert main(["status", str(finished)]) == 0
    said = capsys.readouterr().out
    assert f"readings  {len(before)}" in said and "finding-diagnosis.json" in said


def test_killed_and_repeated_it_says_the_same_to_the_byte(folder: Path, finished: Path, tmp_path: Path) -> None:
    out, stops = tmp_path / "run", (1, 4, 7)
    for stop in stops:
        process = subprocess.Popen([SCRIPT, *ask(folder, out)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while process.poll() is None and (not out.exists() or len(lines(out)) < stop):
            time.sleep(0.005)
        process.kill()
        process.wait()
        assert process.returncode == -signal.SIGKILL, "the kill came too late"
    assert main(ask(folder, out)) == 0
    assert finding(out) == finding(finished)
    assert sorted(lines(out)) == sorted(lines(finished)), "no trial is lost or run twice"


def test_ctrl_c_is_status_3_and_nothing_is_lost(folder: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen([SCRIPT, *ask(folder, out)], stderr=subprocess.PIPE, text=True)
    while process.poll() is None and (not out.exists() or len(lines(out)) < 5):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 3 and told.splitlines()[-1].startswith("noisescope: interrupted;")
    assert main(ask(folder, out)) == 0
    assert finding(out) == finding(finished)


def test_two_processes_on_one_folder_agree(folder: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    both = [subprocess.Popen([SCRIPT, *ask(folder, out)], stderr=subprocess.PIPE, stdout=subprocess.PIPE) for _ in "ab"]
    told = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert finding(out) == finding(finished)


def test_processes_read_what_one_reads(folder: Path, finished: Path, tmp_path: Path) -> None:
    assert main(ask(folder, tmp_path / "run", "--workers 2")) == 0
    assert finding(tmp_path / "run") == finding(finished)


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        ("--samples 13", "another run: workload"),
        ("--dtype bfloat16", "another run: model"),
        ("--device tpu", "device 'tpu'"),
    ],
)
def test_a_folder_of_another_run_is_refused(
    folder: Path, finished: Path, more: str, seen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert main(ask(folder, finished, more)) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and seen in told[0]
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_robustness_answers_level_by_level(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"robustness {folder} --data demo:texts -n 12 --noise-levels 0,0.1,0.3 --out {tmp_path / 'run'}"
    assert main(shlex.split(command)) == 0
    found = Store(tmp_path / "run").load_finding("robustness", Robustness)
    assert found is not None and [level.scale for level in found.levels] == [0.0, 0.1, 0.3]
    assert "0.3 " in capsys.readouterr().out
