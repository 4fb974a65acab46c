"""Healthy models, the odd ones among them: none may be accused."""

import pytest
import torch
import transformers

from cases import CASES, GROUPED, batch, make
from noisescope.runs.localising import locate

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def assert_healthy(model, inputs):
    result = locate(model, [inputs])
    assert result.verdict == "no fault found", result
    assert not result.unchecked, result.unchecked


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_no_family_is_accused(name, dtype, attention):
    assert_healthy(make(name, attention, dtype), batch(3, 17))


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "float16"])
def test_outlier_channels_are_no_fault(dtype):
    model = make("llama", "sdpa", torch.float32)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight[3] *= 1000
            layer.input_layernorm.weight[5] *= 30
    assert_healthy(model.to(dtype), batch(3, 40))


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "float16"])
def test_padding_is_no_fault(dtype):
    inputs = batch(3, 16)
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, :9] = 0
    mask[1, :2] = 0
    for attention in ("eager", "sdpa"):
        assert_healthy(make("llama", attention, dtype), {**inputs, "attention_mask": mask})
        assert_healthy(make("bert", attention, dtype), {**inputs, "attention_mask": mask.flip(1)})


def test_automatic_casting_is_no_fault():
    for name in ("llama", "gpt2", "bert", "mixtral"):
        model = make(name, "sdpa")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = locate(model, [batch(3, 17)])
        assert result.verdict == "no fault found", result


def test_tiny_widths_single_tokens_and_tied_weights_are_no_fault():
    config = transformers.LlamaConfig(**{**GROUPED, "hidden_size": 8, "intermediate_size": 4}, tie_word_embeddings=True)
    for dtype in DTYPES:
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).to(dtype).eval()
        assert_healthy(model, batch(1, 1))
        assert_healthy(model, batch(2, 5))


def test_values_beyond_the_range_of_the_dtype_are_no_fault():
    model = make("llama", "eager", torch.float32)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight *= 1e7
    assert locate(model.to(torch.float16), [batch(2, 8)]).verdict == "no fault found"


def test_float64_is_no_fault():
    assert_healthy(make("llama", "eager", torch.float64), batch(2, 8))
