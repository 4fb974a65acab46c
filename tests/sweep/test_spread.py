"""A model in two parts, one of them on disk, gives what it gives as a whole, to the bit."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch

import noisescope as ns
from cases import CASES, batches, make, sharp
from contracts.checkpoints import SETTINGS, completions
from letters import letters
from noisescope.cli.main import main
from noisescope.core.errors import BadInputError
from noisescope.core.records import Injection, Trial
from noisescope.measure.batches import prepare
from noisescope.model.load import Loaded
from noisescope.model.load import load as load_model
from noisescope.model.placement import is_spread
from noisescope.sweep.bench import ModelBench
from noisescope.sweep.packed import packed


def saved(folder: Path, model: torch.nn.Module) -> Path:
    model.save_pretrained(folder)
    letters().save_pretrained(folder)
    return folder


def two_parts(folder: Path, model: torch.nn.Module, stack: str) -> str:
    """A map that leaves the first layers in memory, and the rest, embedding and head on disk: those may be tied."""
    top, layers = stack.rpartition(".")[0], len(model.get_submodule(stack))
    places = {f"{stack}.{i}": "cpu" if i < layers // 2 else "disk" for i in range(layers)}
    for prefix, parent in ((f"{top}.", model.get_submodule(top)), ("", model)):
        for name, _ in parent.named_children():
            path = f"{prefix}{name}"
            if path not in (top, stack):
                places[path] = "disk" if name in ("wte", "lm_head") or "embed" in name else "cpu"
    file = folder / "map.json"
    file.write_text(json.dumps(places))
    return str(file)


def both(folder: Path, model: torch.nn.Module, stack: str = "model.layers") -> tuple[Loaded, Loaded]:
    path = saved(folder / "model", model)
    return load_model(str(path)), load_model(str(path), device=two_parts(folder, model, stack))


STACKS = {"llama": "model.layers", "gpt2": "transformer.h", "gpt_neox": "gpt_neox.layers", "gemma": "model.layers"}


@pytest.mark.parametrize("name", STACKS)
def test_readings_are_those_of_the_whole_model_with_layers_skipped_and_without(name: str, tmp_path: Path) -> None:
    assert name in CASES
    whole, parts = both(tmp_path, make(name), STACKS[name])
    assert is_spread(parts.model) and not is_spread(whole.model)
    assert any(w.is_meta for w in parts.model.parameters()) and not all(w.is_meta for w in parts.model.parameters())
    assert parts.fingerprint == whole.fingerprint, "where a model lies does not make it another one"
    samples = prepare(completions(), letters(), "kl_to_clean", SETTINGS)
    noise = ns.noise(scale=0.1)
    asked = [
        Trial(injections, samples.key, "kl_to_clean")
        for injections in (
            (),
            (Injection.of(noise, layers=[0]),),
            (Injection.of(noise, layers=[1]),),
            (Injection.of(noise, layers=[1], operators="linear", seed=4),),
            (Injection.of(noise, layers=[None]),),
            (Injection.of(noise),),
        )
    ]
    expected = list(map(ModelBench(whole.model, samples, prefix_memory=0).measure, asked))
    bench = ModelBench(parts.model, samples)
    assert list(map(bench.measure, asked)) == expected
    assert list(map(bench.measure, asked)) == expected, "again, from what is kept"
    prefix = bench.prefix_of(samples)
    assert prefix is not None and prefix.off is None and prefix._checked, "layers were skipped"
    assert len({reading.values for reading in expected}) == len(asked)


def test_screening_and_diagnosis_are_those_of_the_whole_model(tmp_path: Path) -> None:
    whole, parts = both(tmp_path, sharp())
    of_whole, of_parts = (ns.screen(one.model, batches(16), scale=0.05) for one in (whole, parts))
    assert of_parts.harm == of_whole.harm and len(of_whole.harm) > 20


def test_the_command_answers_the_same_for_a_model_in_two_parts(tmp_path: Path) -> None:
    model = sharp()
    path = saved(tmp_path / "model", model)
    places = two_parts(tmp_path, model, "model.layers")
    asked = f"diagnose {path} --data demo:texts --samples 8 --seeds 1 --noise-scale 0.2 --out {tmp_path}"
    assert main(shlex.split(f"{asked}/whole")) == 0
    assert main(shlex.split(f"{asked}/parts --device {places}")) == 0
    found = [(tmp_path / run / "finding-diagnosis.json").read_text() for run in ("whole", "parts")]
    assert found[1].replace("/parts", "/whole").replace(f" --device {places}", "") == found[0]


def test_a_model_in_parts_is_not_packed(tmp_path: Path) -> None:
    whole, parts = both(tmp_path, make("llama"))
    assert packed(parts.model, parts.tokenizer, ()) is None
    assert packed(whole.model, whole.tokenizer, ()) is not None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("autos", "device 'autos'"),
        ("missing.json", "No such file"),
        ("list.json", "module paths with devices"),
        ("true.json", "module paths with devices"),
        ("bad.json", "not JSON"),
    ],
)
def test_maps_that_are_none_are_refused(text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "true.json").write_text('{"model": true}')
    (tmp_path / "bad.json").write_text("{" * 5)
    with pytest.raises(BadInputError, match=told):
        load_model(str(saved(tmp_path / "m", make("llama"))), device=text)


def test_a_file_of_weights_is_not_spread(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", make("llama"))
    with pytest.raises(BadInputError, match="only a Hugging Face folder"):
        load_model(str(folder / "model.safetensors"), config_from=str(folder), device="auto")
