"""The linear layers of a model are found, with those that read one input together."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cases import CASES, batch, make
from noisescope.model.linears import linear_groups, matrix_of, set_matrix

# What reads one tensor in one parent, by hand.
PARTS = {
    "llama": ["q_proj+k_proj+v_proj", "o_proj", "gate_proj+up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc", "c_proj"],
    "gpt_neox": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "opt": ["q_proj+k_proj+v_proj", "out_proj", "fc1", "fc2"],
    "phi": ["q_proj+k_proj+v_proj", "dense", "fc1", "fc2"],
    "bert": ["query+key+value", "dense", "dense", "dense"],
    "mixtral": ["q_proj+k_proj+v_proj", "o_proj"],
}
PARTS |= dict.fromkeys(("qwen2", "qwen3", "gemma"), PARTS["llama"])


@pytest.mark.parametrize("name", CASES)
def test_what_reads_one_input_is_one_group(name: str) -> None:
    found = linear_groups(make(name))
    assert [group.part for group in found.groups] == PARTS[name] * 2
    assert [group.layer for group in found.groups] == sorted([0, 1] * len(PARTS[name]))
    assert bool(found.left_out) == (name == "mixtral")


def test_apart_every_layer_is_a_group() -> None:
    found = linear_groups(make("llama"), apart=True)
    assert len(found.groups) == 14 and all(len(group.linears) == 1 for group in found.groups)


def test_every_weight_of_the_layers_is_in_a_group() -> None:
    model = make("qwen2")
    weights = sum(w.numel() for n, w in model.named_parameters() if ".layers." in n and w.dim() == 2)
    assert sum(group.weights for group in linear_groups(model).groups) == weights


def test_what_is_shared_or_does_not_run_is_left_out_and_said() -> None:
    model = make("llama")
    model.model.layers[1].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    model.model.layers[1].spare = nn.Linear(32, 32)
    found = linear_groups(model)
    said = "\n".join(found.left_out)
    assert "layers.0.mlp.up_proj: another module" in said and "layers.1.mlp.up_proj: another module" in said
    assert "layers.1.spare: did not run" in said
    assert all("up_proj" not in group.name and "spare" not in group.name for group in found.groups)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_matrix_is_output_rows_by_input_columns(name: str) -> None:
    model = make(name)
    for group in linear_groups(model).groups:
        for linear in group.linears:
            module = model.get_submodule(linear.path)
            given = torch.randn(3, linear.columns)
            bias = module.bias if module.bias is not None else 0.0
            assert torch.allclose(module(given), given @ matrix_of(module).T + bias, atol=1e-5)
            set_matrix(module, torch.ones(linear.rows, linear.columns))
            assert torch.equal(module.weight, torch.ones_like(module.weight))


def test_a_batch_of_ones_own_shows_the_groups_as_well() -> None:
    assert linear_groups(make("llama"), batch()) == linear_groups(make("llama"))
