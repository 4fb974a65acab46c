"""Files of every kind that is read, damaged in many ways: one line says what is wrong, and nothing is changed."""

from __future__ import annotations

import contextlib
import json
import pickle
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

import noisescope as ns
from cases import batch
from hostile.damage import BYTES, EITHER, MOST, assert_one_line, read_damaged
from hostile.models import saved
from model.test_gguf_file import DIGITS_APART, llama, write_gguf
from noisescope.cli.config import fill
from noisescope.cli.config import read as read_settings
from noisescope.cli.main import main, parsers, read_words
from noisescope.core.errors import NoisescopeError
from noisescope.measure.capture_file import read_capture
from noisescope.measure.workload import read_workload
from noisescope.model.load import load
from noisescope.model.placement import device_map_of
from noisescope.prescribe.baseline import read_baseline
from noisescope.prescribe.history import read_history
from noisescope.report.document import from_json
from noisescope.report.writing import write_report
from noisescope.runs.reporting import view_of
from noisescope.sweep.store import Store
from noisescope.verl.diagnostic import IntegratedDiagnostic


@pytest.fixture(params=[pytest.param(25, id="some"), pytest.param(MOST, id="many", marks=pytest.mark.slow)])
def examples(request: pytest.FixtureRequest) -> int:
    """In how many ways each file is damaged: a first look in the usual tests, a longer one in the slow ones."""
    return request.config.getoption("--examples") or request.param


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a diagnosis, a gate beside it that left a baseline and a history, and a report."""
    folder = tmp_path_factory.mktemp("runs")
    asked = "--data demo:texts --samples 4 --seeds 1 --noise-scale 0.2"
    assert main(shlex.split(f"diagnose {model} {asked} --out {folder}/run")) == 0
    assert main(["report", f"{folder}/run"]) == 0
    more = f"--history {folder}/history.jsonl --out {folder}/gate --save-baseline {folder}/baseline.json"
    assert main(shlex.split(f"gate {model} {asked} {more}")) == 0
    return folder


@pytest.fixture
def spare(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "model"))


@pytest.mark.parametrize(
    "line",
    [
        {"question": "1 + 1?", "answer": "#### 2"},
        {"prompt": "a", "completion": "b"},
        {"text": "some words"},
        {"prompt": "a", "choices": ["b", "c"], "answer": 1},
    ],
    ids=lambda line: next(iter(line)) + str(len(line)),
)
def test_items(line: dict[str, Any], tmp_path: Path, examples: int) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps(line))
    assert read_damaged(path, EITHER, examples, lambda: read_workload(path))


YAML = """diagnostic:
  enabled: true
  mode: full
  data: demo:texts
  operator: {noise-scale: 0.05}
  layer:
    window-size: 3
  formats: &f [a, b]
  seeds: 3
"""


def test_settings(tmp_path: Path, examples: int) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(YAML.replace("  formats: &f [a, b]\n", ""))
    parser = parsers()[1]["diagnose"]
    for text in ("[" * 5000, "seed: 2001-99-99", "seed: !!int x"):
        path.write_text(text)
        with pytest.raises(NoisescopeError):
            fill(parser, path)
    path.write_text(YAML.replace("  formats: &f [a, b]\n", ""))
    assert read_damaged(path, BYTES, examples, lambda: fill(parser, path))


def test_maps_of_devices(tmp_path: Path, examples: int) -> None:
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"model": "cpu", "lm_head": 0}))
    assert read_damaged(path, EITHER, examples, lambda: device_map_of(str(path)))


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_models_whose_description_is_damaged(spare: Path, name: str, examples: int) -> None:
    assert read_damaged(spare / name, EITHER, examples, lambda: load(str(spare))) or name.startswith("gen")


def test_models_whose_weights_are_damaged(spare: Path, examples: int) -> None:
    assert read_damaged(spare / "model.safetensors", BYTES, examples, lambda: load(str(spare)))


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "old.pt"])
def test_checkpoints_of_bare_weights(spare: Path, name: str, tmp_path: Path, examples: int) -> None:
    path = tmp_path / "w" / name
    path.parent.mkdir()
    if name.endswith(".pt"):
        state = load(str(spare)).model.state_dict()
        torch.save(state, path, _use_new_zipfile_serialization=name != "old.pt")
    else:
        shutil.copy(spare / "model.safetensors", path)
    assert read_damaged(path, BYTES, examples, lambda: load(str(path), config_from=str(spare)))


def test_captures(tmp_path: Path, examples: int) -> None:
    path = ns.capture(
        LlamaForCausalLM.from_pretrained(saved(tmp_path / "m")).eval(), [batch()], tmp_path / "c" / "a.capture"
    )
    assert read_damaged(path, BYTES, examples, lambda: read_capture(path))


def report(folder: Path, where: Path) -> Callable[[], object]:
    """What a report of a run folder needs, written elsewhere."""
    return lambda: write_report(view_of(Store(folder)), where)


@pytest.mark.parametrize("name", ["about.json", "finding-diagnosis.json", "kept-profile.json", "blobs"])
def test_run_folders_that_are_reported(run: Path, name: str, tmp_path: Path, examples: int) -> None:
    folder = Path(shutil.copytree(run / "run", tmp_path / "run"))
    path = folder / name
    ways = EITHER
    if name == "blobs":
        mark = json.loads((folder / "kept-profile.json").read_text())["blob"]
        path, ways = path / f"{mark}.safetensors", BYTES
    assert read_damaged(path, ways, examples, report(folder, tmp_path / "pages"))


def test_baselines_and_what_a_gate_found(run: Path, tmp_path: Path, examples: int) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "runs"))
    assert read_damaged(folder / "baseline.json", EITHER, examples, lambda: read_baseline(folder / "baseline.json"))
    gate = folder / "gate"
    assert read_damaged(gate / "finding-gate.json", EITHER, examples, report(gate, tmp_path / "pages"))
    assert read_damaged(gate / "finding-gate.json", EITHER, examples, lambda: read_baseline(gate))


def test_histories_pass_over_what_is_damaged(run: Path, tmp_path: Path, examples: int) -> None:
    path = Path(shutil.copy(run / "history.jsonl", tmp_path))
    assert read_damaged(path, BYTES, examples, lambda: read_history(path)) == 0


def sections(model: Path, path: Path) -> Path:
    """What `save_report` writes."""
    loaded = load(str(model))
    diagnostic = IntegratedDiagnostic(loaded.model, [{"input_ids": batch()["input_ids"]}] * 2)
    diagnostic.run_full_diagnosis(noise_scale=0.2, window_size=2, seeds=1)
    path.parent.mkdir()
    return diagnostic.save_report(path)


def test_reports(model: Path, run: Path, tmp_path: Path, examples: int) -> None:
    path = sections(model, tmp_path / "a" / "sections.json")
    assert read_damaged(path, EITHER, examples, lambda: IntegratedDiagnostic.load_report(path))
    page = Path(shutil.copy(run / "run" / "report.json", tmp_path / "a" / "report.json"))
    assert read_damaged(page, EITHER, examples, lambda: from_json(page.read_text("utf-8", "replace")))


def test_gguf(tmp_path: Path, examples: int) -> None:
    tokens, merges = DIGITS_APART
    (folder := tmp_path / "g").mkdir()
    path = write_gguf(folder / "small.gguf", llama(len(tokens)), tokens, merges)
    assert read_damaged(path, BYTES, examples, lambda: load(str(path)))


@pytest.mark.parametrize("kept", ["profile", "channels", "law"])
def test_what_was_kept_of_a_run_that_is_gone_on_with(
    model: Path, run: Path, tmp_path: Path, kept: str, examples: int
) -> None:
    """Arrays of another kind, with names and checksums that are right, come from a foreign hand or another version."""
    folder = Path(shutil.copytree(run / "run", tmp_path / "run"))
    store, note = Store(folder), json.loads((folder / f"kept-{kept}.json").read_text())
    arrays = store.load_blob(note["blob"])
    asked = shlex.split(f"diagnose {model} --data demo:texts --samples 4 --seeds 1 --noise-scale 0.2 --out {folder}")
    names = sorted(arrays)
    wrong = [
        {},
        {name: arrays[name] for name in names[1:]},
        {name: arrays[name] for name in names[:-1]},
        {name: arrays[name][:-1] for name in names},
        {**arrays, names[-1]: np.full(3, np.nan)},
        {name: np.zeros((2, 0), np.int8) for name in names},
        dict(zip(names, [arrays[name] for name in reversed(names)], strict=True)),
    ]
    for one in wrong if examples > 100 else wrong[:1] + wrong[3:]:
        store.keep(kept, note["key"], one)
        order = read_words(asked)
        with contextlib.suppress(NoisescopeError):
            order.run(order)


def test_files_of_one_kind_in_the_place_of_another(model: Path, run: Path, tmp_path: Path) -> None:
    described = str(model)
    readers = {
        **READERS,
        "weights": (lambda path: load(str(path), config_from=described), ".safetensors"),
        "pickle": (lambda path: load(str(path), config_from=described), ".pt"),
    }
    (place := tmp_path / "place").mkdir()
    blob = next((run / "run" / "blobs").iterdir())
    held = {path.name: path.read_bytes() for path in (run / "run").iterdir() if path.is_file()}
    held |= {path.name: path.read_bytes() for path in (model / "config.json", model / "model.safetensors", blob)}
    held |= {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    held["pickle.pt"] = pickle.dumps({"a": 1})
    for name, data in held.items():
        for reader, ending in readers.values():
            path = place / f"file{ending}"
            path.write_bytes(data)
            try:
                reader(path)
            except NoisescopeError as problem:
                assert_one_line(str(problem))
            assert path.read_bytes() == data, name
            path.unlink()


READERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "items": (read_workload, ".jsonl"),
    "settings": (read_settings, ".yaml"),
    "map": (lambda path: device_map_of(str(path)), ".json"),
    "capture": (read_capture, ".capture"),
    "baseline": (read_baseline, ".json"),
    "history": (read_history, ".jsonl"),
    "report": (IntegratedDiagnostic.load_report, ".json"),
    "gguf": (lambda path: load(str(path)), ".gguf"),
}
