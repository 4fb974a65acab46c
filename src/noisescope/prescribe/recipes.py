"""A precision map in the words of the quantizers that people already run: plain files, none of these tools is needed.

Only weights are spoken of; activations stay as they are. What a tool has no word for is said in the file's place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from noisescope.core.precision import PrecisionMap, WeightFormat

Plain = dict[str, Any]
_HEAD = "lm_head"
# Averages between which integers of 5 and 6 bits have something to give: the sizes of int4 and int8 with their scales.
_LEAST, _MOST = 4.6, 8.0


@dataclass(frozen=True)
class Recipe:
    """A file by name, its text, and the formats of the map that the tool has no word for."""

    name: str
    text: str
    unsaid: tuple[str, ...] = ()


def recipes(found: PrecisionMap) -> tuple[Recipe, ...]:
    """The map for llm-compressor, compressed-tensors, ModelOpt, auto-round and msModelSlim."""
    by_format: dict[str, list[str]] = {}
    for path, name in found.formats.items():
        by_format.setdefault(name, []).append(path)
    makers: tuple[Callable[[Mapping[str, list[str]]], Recipe], ...] = (
        _llm_compressor,
        _compressed_tensors,
        _modelopt,
        _auto_round,
        _msmodelslim,
    )
    return tuple(make(by_format) for make in makers)


def reader_notes(found: PrecisionMap) -> tuple[str, ...]:
    """What is to be known of formats that not everything that reads or runs these files has."""
    return (*_torn_blocks(found), *_between(found))


def _torn_blocks(found: PrecisionMap) -> Iterator[str]:
    """Blocks that do not fill the rows, which is fine by value and not for those who store them."""
    for name in dict.fromkeys(found.formats.values()):
        block = WeightFormat.of(name).block
        linears = [one for choice in found.choices if choice.format == name for one in choice.group.linears]
        torn = next((one for one in linears if block and one.columns % block), None)
        if torn is not None:
            yield (
                f"{name}: the rows of {torn.path} are {torn.columns} long, which is no whole number of blocks of "
                f"{block}; quantizers refuse that. Take a length that divides it"
            )


def _between(found: PrecisionMap) -> tuple[str, ...]:
    """Who runs integers of 5 and 6 bits, or what they would be good for."""
    names = [option.format for option in found.choices[0].options]
    between = [name for name in names if _is_between(WeightFormat.of(name))]
    used = [name for name in between if name in found.formats.values()]
    if used:
        return (
            f"{', '.join(used)}: compressed-tensors packs them since the middle of 2026, and vLLM runs them since then "
            "with its Humming kernels; before that, integers of 4 and 8 bits alone. auto-round packs and runs them",
        )
    if between or not {"int4", "int8"} <= set(names) or not _LEAST < found.target < _MOST:
        return ()
    return (
        "where what runs the model has integers of 5 and 6 bits, such a map may cost much less: "
        "--formats int4,int5,int6,int8,bf16",
    )


def _is_between(form: WeightFormat) -> bool:
    return form.number == "integer" and 4 < form.bits < 8


def _llm_compressor(paths: Mapping[str, list[str]]) -> Recipe:
    groups, ignored = _config_groups(paths)
    modifier = {"ignore": ignored, "config_groups": groups}
    plain = {"quant_stage": {"quant_modifiers": {"QuantizationModifier": modifier}}}
    return Recipe("llm-compressor.yaml", _yaml(plain))


def _compressed_tensors(paths: Mapping[str, list[str]]) -> Recipe:
    groups, ignored = _config_groups(paths)
    plain = {
        "quant_method": "compressed-tensors",
        "quantization_status": "frozen",
        "config_groups": groups,
        "ignore": ignored,
    }
    return Recipe("compressed-tensors.json", json.dumps(plain, indent=1) + "\n")


def _config_groups(paths: Mapping[str, list[str]]) -> tuple[Plain, list[str]]:
    groups: Plain = {}
    ignored = [_HEAD]
    for name, members in paths.items():
        form = WeightFormat.of(name)
        if form.scale_bits:
            groups[f"group_{len(groups)}"] = {"targets": members, "weights": _arguments(form)}
        else:
            ignored += members
    return groups, ignored


def _arguments(form: WeightFormat) -> Plain:
    """The words of compressed-tensors for a format of weights."""
    found: Plain = {
        "num_bits": form.bits,
        "type": "int" if form.number == "integer" else "float",
        "symmetric": not form.zero_bits,
        "strategy": "group" if form.block else "channel",
        "dynamic": False,
    }
    if form.block:
        found["group_size"] = form.block
    if form.number == "mxfp4":
        found |= {"scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
    return found


_FLOATS = {"fp8_e4m3": [4, 3], "mxfp4": [2, 1]}


def _modelopt(paths: Mapping[str, list[str]]) -> Recipe:
    entries: list[Plain] = [{"quantizer_name": "*", "enable": False}]
    unsaid = []
    for name, members in paths.items():
        form = WeightFormat.of(name)
        if form.zero_bits:
            unsaid.append(name)
        elif form.scale_bits:
            entries += [{"quantizer_name": f"{path}.weight_quantizer", "cfg": _attributes(form)} for path in members]
    return Recipe("modelopt.yaml", _yaml({"quant_cfg": entries, "algorithm": "max"}), tuple(unsaid))


def _attributes(form: WeightFormat) -> Plain:
    """The words of ModelOpt for a quantizer."""
    found: Plain = {"num_bits": _FLOATS.get(form.number, form.bits)}
    if form.block is None:
        return found | {"axis": 0}
    if form.number == "mxfp4":
        return found | {"block_sizes": {-1: form.block, "type": "dynamic", "scale_bits": [8, 0]}}
    return found | {"block_sizes": {-1: form.block}}


_AUTO_ROUND_TYPES = {"integer": "int", "fp8_e4m3": "fp8", "mxfp4": "mx_fp", "bf16": "float"}


def _auto_round(paths: Mapping[str, list[str]]) -> Recipe:
    found: Plain = {}
    for name, members in paths.items():
        form = WeightFormat.of(name)
        words: Plain = {"bits": form.bits, "data_type": _AUTO_ROUND_TYPES[form.number]}
        if form.scale_bits:
            words |= {"group_size": form.block or -1, "sym": not form.zero_bits}
        found |= dict.fromkeys(members, words)
    return Recipe("auto-round.json", json.dumps({"layer_config": found}, indent=1) + "\n")


_ASCEND_TYPES = {"integer": {4: "int4", 8: "int8"}, "fp8_e4m3": {8: "fp8_e4m3"}, "mxfp4": {4: "mxfp4"}}


def _msmodelslim(paths: Mapping[str, list[str]]) -> Recipe:
    process, unsaid = [], []
    for name, members in paths.items():
        form = WeightFormat.of(name)
        dtype = _ASCEND_TYPES.get(form.number, {}).get(form.bits)
        if dtype is not None:
            weight = _scheme(form, dtype)
            process.append({"type": "linear_quant", "qconfig": {"weight": weight}, "include": members})
        elif form.scale_bits:
            unsaid.append(name)
    plain = {"apiversion": "modelslim_v1", "spec": {"process": process}}
    return Recipe("msmodelslim.yaml", _yaml(plain), tuple(unsaid))


def _scheme(form: WeightFormat, dtype: str) -> Plain:
    """The words of msModelSlim for the weights of a linear_quant."""
    blocks = "per_block" if form.number == "mxfp4" else "per_group"
    scope = blocks if form.block else "per_channel"
    found: Plain = {"scope": scope, "dtype": dtype, "symmetric": not form.zero_bits, "method": "minmax"}
    return found | ({"ext": {"group_size": form.block}} if scope == "per_group" else {})


class _Dumper(yaml.SafeDumper):
    """Without anchors: quantizers read recipes by machine, people by eye."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(plain: Plain) -> str:
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, width=120)
