"""The files for other quantizers say what the map says, in words that those tools know."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from torch import nn

from cases import make
from noisescope.core.precision import Choice, Group, Option, PrecisionMap, WeightFormat
from noisescope.inject.weights import rounded
from noisescope.model.linears import linear_groups
from noisescope.prescribe.recipes import recipes

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


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "bf16"])
def test_it_then_rounds_as_coarsely_as_was_measured(name: str) -> None:
    """Not to the bit: compressed-tensors has a code more below zero, so that its integer steps are a little finer."""
    quantization = pytest.importorskip("compressed_tensors.quantization")
    helpers = pytest.importorskip("compressed_tensors.quantization.utils")
    model = make("llama")
    group = linear_groups(model).groups[0]
    found = PrecisionMap(6.0, "exact", (choice(group, name),), 1, 1)
    plain = json.loads({recipe.name: recipe.text for recipe in recipes(found)}["compressed-tensors.json"])
    (scheme,) = plain["config_groups"].values()
    own = quantization.QuantizationArgs(**scheme["weights"])
    weight = model.get_submodule(group.linears[0].path).weight.detach()
    form = WeightFormat.of(name)
    blocks = weight.unflatten(1, (-1, form.block or weight.shape[1]))
    scale, zero = helpers.calculate_qparams(blocks.amin(-1), blocks.amax(-1), own)
    theirs = quantization.lifecycle.forward.fake_quantize(weight, scale, zero, own)
    assert 0.8 < (theirs - weight).norm() / (rounded(weight, form) - weight).norm() < 1.25


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
