"""The files for other quantizers say what the map says, in words that those tools know."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from cases import make
from noisescope.core.precision import Choice, Group, Option, PrecisionMap, WeightFormat
from noisescope.inject.weights import rounded
from noisescope.model.linears import linear_groups
from noisescope.prescribe.recipes import reader_notes, recipes

FORMATS = ("bf16", "fp8", "int8", "int6", "int4", "int4:16", "uint4", "mxfp4")


def mapped(model: nn.Module) -> PrecisionMap:
    """Every format once."""
    groups = linear_groups(model).groups
    return PrecisionMap(6.0, "exact", tuple(map(choice, groups, FORMATS)), 1, 1)


def choice(group: Group, name: str) -> Choice:
    return Choice(group, name, (Option(name, group.size(WeightFormat.of(name)), 0.0),))


FOUND = mapped(make("llama"))
TEXTS = {recipe.name: recipe for recipe in recipes(FOUND)}


def read(name: str) -> Any:
    text = TEXTS[name].text
    return json.loads(text) if name.endswith(".json") else yaml.safe_load(text)


def test_there_is_a_file_for_every_tool() -> None:
    assert set(TEXTS) == {
        "llm-compressor.yaml",
        "compressed-tensors.json",
        "modelopt.yaml",
        "auto-round.json",
        "msmodelslim.yaml",
    }


@pytest.mark.parametrize("name", ["llm-compressor.yaml", "compressed-tensors.json"])
def test_compressed_tensors_accepts_it_and_applies_it_to_the_right_layers(name: str) -> None:
    quantization = pytest.importorskip("compressed_tensors.quantization")
    plain = read(name)
    inner = plain if "config_groups" in plain else plain["quant_stage"]["quant_modifiers"]["QuantizationModifier"]
    config = quantization.QuantizationConfig(config_groups=inner["config_groups"], ignore=inner["ignore"])
    model = make("llama")
    quantization.apply_quantization_config(model, config)
    for path, form in ((path, WeightFormat.of(name)) for path, name in FOUND.formats.items()):
        scheme = getattr(model.get_submodule(path), "quantization_scheme", None)
        assert (scheme is None) == (form.name == "bf16"), path
        if scheme is not None:
            own = scheme.weights
            assert own.num_bits == form.bits and (own.group_size or None) == form.block
            assert own.symmetric == (not form.zero_bits) and scheme.input_activations is None
            assert own.type == ("int" if form.number == "integer" else "float")
    assert getattr(model.lm_head, "quantization_scheme", None) is None


def alone(name: str) -> tuple[Any, Any, nn.Module]:
    """The recipe of a map with one group in one format, as compressed-tensors reads it, and one layer of the group."""
    quantization = pytest.importorskip("compressed_tensors.quantization")
    model = make("llama")
    group = linear_groups(model).groups[0]
    found = PrecisionMap(6.0, "exact", (choice(group, name),), 1, 1)
    plain = json.loads({recipe.name: recipe.text for recipe in recipes(found)}["compressed-tensors.json"])
    (scheme,) = plain["config_groups"].values()
    return quantization, quantization.QuantizationScheme(**scheme), model.get_submodule(group.linears[0].path)


def their_scales(weight: torch.Tensor, form: WeightFormat, arguments: Any) -> Any:
    helpers = pytest.importorskip("compressed_tensors.quantization.utils")
    blocks = weight.unflatten(1, (-1, form.block or weight.shape[1]))
    return helpers.calculate_qparams(blocks.amin(-1), blocks.amax(-1), arguments)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "bf16"])
def test_it_then_rounds_as_coarsely_as_was_measured(name: str) -> None:
    """Not to the bit: compressed-tensors has a code more below zero, so that its integer steps are a little finer."""
    quantization, scheme, layer = alone(name)
    weight, form = layer.get_parameter("weight").detach(), WeightFormat.of(name)
    scale, zero = their_scales(weight, form, scheme.weights)
    theirs = quantization.lifecycle.forward.fake_quantize(weight, scale, zero, scheme.weights)
    assert 0.8 < (theirs - weight).norm() / (rounded(weight, form) - weight).norm() < 1.25


@pytest.mark.parametrize("name", ["int8", "int6", "int5", "int4", "int4:16", "uint4"])
def test_integers_are_stored_in_as_many_bits_as_were_counted_and_read_back(name: str) -> None:
    quantization, scheme, layer = alone(name)
    packing = pytest.importorskip("compressed_tensors.compressors.pack_quantized.base").PackedQuantizationCompressor
    weight, form = layer.get_parameter("weight").detach().bfloat16(), WeightFormat.of(name)
    scale, zero = their_scales(weight, form, scheme.weights)
    kept = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    stored = packing.compress(kept, scheme)
    bits = sum(8 * stored[part].nbytes for part in stored if part != "weight_shape")
    assert bits == form.size(*weight.shape)
    theirs = quantization.lifecycle.forward.fake_quantize(weight, scale, zero, scheme.weights)
    assert packing.decompress(stored, scheme)["weight"].equal(theirs)


def test_integers_between_4_and_8_bits_come_with_who_runs_them_and_are_hinted_at_where_they_are_missing() -> None:
    def notes(names: tuple[str, ...], target: float = 6.0) -> tuple[str, ...]:
        group = linear_groups(make("llama")).groups[0]
        options = tuple(Option(name, group.size(WeightFormat.of(name)), 0.0) for name in names)
        return reader_notes(PrecisionMap(target, "exact", (Choice(group, names[0], options),), 1, 1))

    assert "int5: compressed-tensors" in notes(("int5", "int4", "int8"))[0]
    assert "--formats int4,int5,int6,int8,bf16" in notes(("int4", "int8", "bf16"))[0]
    # They are there and were not chosen; there is no room for them; there is no use for them.
    assert notes(("int4", "int5", "int8")) == notes(("int4", "int8"), 4.5) == notes(("fp8", "bf16"), 9.0) == ()


def test_blocks_that_do_not_fill_a_row_are_told_because_quantizers_refuse_them() -> None:
    quantization, scheme, layer = alone("int4:48")
    weight = layer.get_parameter("weight").detach()
    assert weight.shape[1] % 48
    with pytest.raises(ValueError, match="group_size 48"):
        quantization.lifecycle.forward.fake_quantize(weight, torch.ones(len(weight), 2), None, scheme.weights)
    group = linear_groups(make("llama")).groups[0]
    (note,) = reader_notes(PrecisionMap(6.0, "exact", (choice(group, "int4:48"),), 1, 1))
    assert note.startswith(f"int4:48: the rows of {group.linears[0].path} are {weight.shape[1]} long")
    assert reader_notes(PrecisionMap(6.0, "exact", (choice(group, "int4:32"),), 1, 1)) == ()


def test_modelopt_is_told_of_every_layer_that_it_has_words_for() -> None:
    plain = read("modelopt.yaml")
    assert plain["quant_cfg"][0] == {"quantizer_name": "*", "enable": False}
    named = {
        entry["quantizer_name"].removesuffix(".weight_quantizer"): entry["cfg"] for entry in plain["quant_cfg"][1:]
    }
    said = {path for path, name in FOUND.formats.items() if name not in ("bf16", "uint4")}
    assert set(named) == said and TEXTS["modelopt.yaml"].unsaid == ("uint4",)
    words = {FOUND.formats[path]: cfg for path, cfg in named.items()}
    assert words["int8"] == {"num_bits": 8, "axis": 0} and words["fp8"] == {"num_bits": [4, 3], "axis": 0}
    assert words["int4:16"] == {"num_bits": 4, "block_sizes": {-1: 16}}
    assert words["mxfp4"] == {"num_bits": [2, 1], "block_sizes": {-1: 32, "type": "dynamic", "scale_bits": [8, 0]}}


def test_auto_round_gets_bits_and_group_sizes_by_layer() -> None:
    words = {FOUND.formats[path]: cfg for path, cfg in read("auto-round.json")["layer_config"].items()}
    assert set(words) == set(FORMATS)
    assert words["bf16"] == {"bits": 16, "data_type": "float"}
    assert words["int8"] == {"bits": 8, "data_type": "int", "group_size": -1, "sym": True}
    assert words["uint4"] == {"bits": 4, "data_type": "int", "group_size": 32, "sym": False}
    assert words["mxfp4"]["data_type"] == "mx_fp"


def test_msmodelslim_gets_a_step_for_each_format_that_it_has() -> None:
    steps = {
        FOUND.formats[step["include"][0]]: step["qconfig"]["weight"]
        for step in read("msmodelslim.yaml")["spec"]["process"]
    }
    assert set(steps) == {"fp8", "int8", "int4", "int4:16", "uint4", "mxfp4"}
    assert TEXTS["msmodelslim.yaml"].unsaid == ("int6",)
    assert steps["int8"] == {"scope": "per_channel", "dtype": "int8", "symmetric": True, "method": "minmax"}
    assert steps["int4:16"]["ext"] == {"group_size": 16}
    assert steps["uint4"]["symmetric"] is False and steps["mxfp4"]["scope"] == "per_block"
