"""Fake quantization rounds what it says, and leaves nothing behind."""

from __future__ import annotations

import pytest
import torch

from cases import batch, make
from noisescope.core.precision import WeightFormat
from noisescope.inject.weights import rounded
from noisescope.model.linears import linear_groups, matrix_of
from noisescope.prescribe.applying import rounded_weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_inside_the_weights_are_rounded_and_afterwards_their_own(name: str, dtype: torch.dtype) -> None:
    model = make(name, dtype=dtype)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    paths = [linear.path for group in linear_groups(model).groups for linear in group.linears]
    formats = {path: ("int4", "int8")[i % 2] for i, path in enumerate(paths)}
    clean = model(**batch()).logits
    with rounded_weights(model, formats):
        for path, form in formats.items():
            own = matrix_of(model.get_submodule(path))
            weight = before[f"{path}.weight"]
            matrix = weight.T if name == "gpt2" else weight
            assert torch.equal(own, rounded(matrix, WeightFormat.of(form)))
        assert not torch.equal(model(**batch()).logits, clean)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(model(**batch()).logits, clean)


def test_an_exception_inside_leaves_the_weights_as_they_were() -> None:
    model = make("llama")
    path = "model.layers.0.mlp.up_proj"
    before = model.get_submodule(path).weight.clone()
    with pytest.raises(KeyError), rounded_weights(model, {path: "int4"}):
        raise KeyError
    assert torch.equal(model.get_submodule(path).weight, before)
