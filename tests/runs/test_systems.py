"""Second systems that are real: formats, compiled layers, int8 linears by torchao, an ONNX graph by onnxruntime."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import noisescope as ns
from cases import make
from noisescope.measure.capture_file import read_capture
from noisescope.model.load import fingerprint
from noisescope.runs.capturing import Keeping, capture
from noisescope.runs.comparing import compare, compare_models
from noisescope.runs.systems import SYSTEMS, as_system
from porting import BUGS

# The first is tested by itself; onnxruntime has no products in bfloat16 on the CPU.
ELSEWHERE = ("stale shard", "rope applied in bfloat16")


def texts(rows: int = 4, length: int = 16, seed: int = 1) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, 120, (rows, length), generator=torch.Generator().manual_seed(seed))}


def padded() -> dict[str, torch.Tensor]:
    inputs = texts(3, 11, 2)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, :4] = 0
    return {**inputs, "attention_mask": mask}


@pytest.fixture(scope="module")
def exported() -> torch.nn.Module:
    """A healthy model as a graph; made once, because the exporter takes its time."""
    return as_system(make("llama", "sdpa"), "onnx")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int8_linears_are_named_and_nothing_else_is(dtype: torch.dtype) -> None:
    model = make("llama", "sdpa", dtype)
    before = fingerprint(model)
    other = as_system(model, "int8")
    found = compare_models(model, other, [texts()], max_mape=10.0)
    assert {row.operator for row in found.suspects} <= {"linear"}
    if dtype is torch.float32:
        assert found.verdict == "fail" and len(found.suspects) == 15
    assert fingerprint(model) == before, "the model itself is not changed"
    assert fingerprint(other) not in (before, fingerprint(as_system(make("qwen2", "sdpa", dtype), "int8")))
    assert fingerprint(other) == fingerprint(as_system(model, "int8"))


def test_what_torchao_has_nothing_to_do_with_is_refused() -> None:
    with pytest.raises(ns.NoisescopeError, match=r"no nn\.Linear|holds an nn\.Linear"):
        as_system(make("gpt2"), "int8")


def test_a_graph_is_the_model_at_every_place(exported: torch.nn.Module) -> None:
    model = make("llama", "sdpa")
    found = compare_models(model, exported, [texts(), texts(1, 5), padded()])
    assert found.verdict == "pass", found
    assert not found.only_in_reference and not found.only_in_other
    assert not all(row.contrast.identical for row in found.rows), "it is really computed elsewhere"
    assert "was estimated" in found.how and any("graph runs as a whole" in note for note in found.notes)


def test_a_capture_of_a_graph_says_what_it_is_of(exported: torch.nn.Module, tmp_path: Path) -> None:
    model = make("llama", "sdpa")
    files = [capture(one, [texts()], tmp_path / name) for one, name in ((model, "eager"), (exported, "onnx"))]
    manifest = read_capture(files[1]).manifest
    assert manifest.system == "onnx" and manifest.dithers == ()
    assert "onnxruntime" in dict(manifest.versions)
    assert compare(*files).verdict == "pass"


@pytest.mark.parametrize("name", ["stale shard"])
def test_a_bug_in_an_exported_model_is_named_by_layer_and_operator(name: str) -> None:
    bug = BUGS[name]
    healthy, spoiled = bug.pair()
    found = compare_models(healthy, as_system(spoiled, "onnx"), [texts()])
    assert found.verdict == "fail"
    assert {(row.layer, row.operator, row.path) for row in found.suspects} == {(bug.layer, "linear", bug.path)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, bug in BUGS.items() if bug.attention == "sdpa" and name not in ELSEWHERE]
)
def test_every_bug_is_named_in_an_exported_model(name: str) -> None:
    bug = BUGS[name]
    healthy, spoiled = bug.pair()
    found = compare_models(healthy, as_system(spoiled, "onnx"), [texts()])
    assert found.verdict == "fail"
    assert (found.suspects[0].layer, found.suspects[0].path) == (bug.layer, bug.path), found


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma", "gpt2", "gpt_neox", "opt", "phi", "bert"])
def test_graphs_of_other_families_are_healthy(family: str) -> None:
    model = make(family, "sdpa")
    found = compare_models(model, as_system(model, "onnx"), [texts()])
    assert found.verdict == "pass", found


@pytest.mark.parametrize(("system", "package"), [("onnx", "onnxruntime"), ("int8", "torchao.quantization")])
def test_a_package_that_is_missing_is_named_with_its_extra(
    system: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ns.NoisescopeError, match=rf"pip install 'noisescope\[{system}\]'"):
        as_system(make("llama"), system)


def test_a_graph_that_cannot_be_made_is_one_line() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) if float(x.sum()) > 0 else x

    with pytest.raises(ns.NoisescopeError, match="cannot be exported to ONNX") as problem:
        compare_models(Odd(), as_system(Odd(), "onnx"), [{"x": torch.ones(2, 4)}])
    assert "\n" not in str(problem.value)


def test_an_unknown_system_is_refused_with_the_nearest() -> None:
    with pytest.raises(ns.NoisescopeError, match="onnx"):
        as_system(make("llama"), "onxn")
    assert list(SYSTEMS) == ["eager", "compiled", "int8", "onnx"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shorter_formats_pass_by_capture_and_by_shadow(dtype: torch.dtype, tmp_path: Path) -> None:
    reference, other = make("qwen2", "sdpa"), make("qwen2", "sdpa", dtype)
    assert not compare_models(reference, other, [texts()], max_mape=10.0).suspects
    files = [
        capture(one, [texts()], tmp_path / str(i), keeping=Keeping(dither=not i))
        for i, one in enumerate((reference, other))
    ]
    found = compare(*files, max_mape=10.0)
    assert found.verdict == "pass" and found.other.dtype == str(dtype).removeprefix("torch.")
