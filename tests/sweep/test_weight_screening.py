"""The predicted harm of rounded weights is that of the second-order law, and what rounding then really costs."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from cases import batch, batches, make, sharp
from noisescope.core.errors import BadInputError
from noisescope.core.precision import WeightFormat
from noisescope.inject.weights import rounded
from noisescope.model.linears import linear_groups, matrix_of, set_matrix
from noisescope.prescribe.applying import rounded_weights
from noisescope.sweep.weight_screening import screen_weights

FORMATS = ("int4", "int8")
ROUNDINGS = {name: partial(rounded, form=WeightFormat.of(name)) for name in FORMATS}


def modules(model: nn.Module) -> dict[str, nn.Module]:
    return {
        linear.path: model.get_submodule(linear.path)
        for group in linear_groups(model, apart=True).groups
        for linear in group.linears
    }


def kl(model: nn.Module, formats: dict[str, str], inputs: list[dict[str, Tensor]]) -> float:
    """Measured, per token."""
    found, tokens = 0.0, 0
    with torch.no_grad():
        for one in inputs:
            clean = model(**one).logits.double().log_softmax(-1)
            with rounded_weights(model, formats):
                noisy = model(**one).logits.double().log_softmax(-1)
            found += float((clean.exp() * (clean - noisy)).sum())
            tokens += clean[..., 0].numel()
    return found / tokens


def second_order(model: nn.Module, path: str, error: Tensor, one: dict[str, Tensor]) -> float:
    """1/2 dz^T (diag(p) - p p^T) dz per token, dz by central differences in float64."""
    weight = matrix_of(model.get_submodule(path)).clone()
    logits = []
    with torch.no_grad():
        for sign in (1, -1):
            set_matrix(model.get_submodule(path), weight + sign * 1e-4 * error)
            logits.append(model(**one).logits)
        set_matrix(model.get_submodule(path), weight)
        chances = model(**one).logits.softmax(-1)
    moved = (logits[0] - logits[1]) / 2e-4
    return 0.5 * float(((chances * moved**2).sum(-1) - (chances * moved).sum(-1) ** 2).mean())


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "gemma"])
def test_for_an_error_in_one_row_it_is_the_law_exactly(name: str) -> None:
    model = make(name).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0 if weight.dim() == 2 else 1.0)
    path = next(path for path in modules(model) if ".1." in path)
    error = torch.zeros_like(matrix_of(model.get_submodule(path)))
    error[3] = torch.randn(error.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    one = batch(rows=3, length=6)
    # Directions are sent back from all tokens at once, so that errors that add up over tokens are seen to.
    found = screen_weights(
        model, [one], {path: model.get_submodule(path)}, {"row": lambda w: w + error.to(w.dtype)}, draws=400
    )
    expected = second_order(model, path, error, one)
    assert found.predictions[path, "row"].harm == pytest.approx(expected, rel=0.15)
    assert found.tokens == 18


def test_prediction_and_measurement_agree_for_every_layer_and_format() -> None:
    model, inputs = sharp(4), batches(rows=24)
    found = screen_weights(model, inputs, modules(model), ROUNDINGS, draws=6)
    keys = [(path, name) for path in modules(model) for name in FORMATS]
    predicted = np.array([found.predictions[key].harm for key in keys])
    seen = np.array([kl(model, {path: name}, inputs) for path, name in keys])
    assert spearmanr(predicted, seen).statistic > 0.97
    assert 0.8 < np.median(predicted / seen) < 1.25
    assert np.std(np.log(predicted / seen)) < 0.35


def test_weights_that_a_format_holds_badly_are_found() -> None:
    """A large weight in every block makes the steps of all others coarse: of this layer and of no other."""
    model, inputs = sharp(4), batches(rows=8)
    planted = model.model.layers[2].self_attn.o_proj
    with torch.no_grad():
        planted.weight[:, 5] = 0.0
        # Its input is always 0, so that the model's answers stay what they are.
        model.model.layers[2].self_attn.v_proj.weight[5] = 0.0
        unspoilt = screen_weights(model, inputs, modules(model), ROUNDINGS).predictions
        planted.weight[:, 5] = 30 * planted.weight.abs().max()
    after = screen_weights(model, inputs, modules(model), ROUNDINGS).predictions
    growth = {key: after[key].harm / unspoilt[key].harm for key in after}
    worst = "model.layers.2.self_attn.o_proj"
    assert growth.pop((worst, "int4")) > 20 and growth.pop((worst, "int8")) > 20
    assert all(0.5 < other < 2.0 for other in growth.values())


def test_a_rounding_that_changes_nothing_harms_nothing() -> None:
    model = sharp(2)
    found = screen_weights(model, batches(rows=8), modules(model), {"same": lambda w: w})
    assert {one.harm for one in found.predictions.values()} == {0.0}


def test_the_error_is_that_of_other_sequences() -> None:
    """Over disjoint sets of sequences predictions scatter as their errors say."""
    model, inputs = sharp(2), batches(rows=128)
    path = "model.layers.1.mlp.up_proj"
    parts = [
        screen_weights(model, [one], {path: model.get_submodule(path)}, {"int4": ROUNDINGS["int4"]}, seed=i)
        for i, one in enumerate(inputs)
    ]
    harms = np.array([part.predictions[path, "int4"].harm for part in parts])
    errors = np.array([part.predictions[path, "int4"].error for part in parts])
    assert 0.6 < harms.std(ddof=1) / np.sqrt((errors**2).mean()) < 1.6


def test_weights_and_their_flags_are_as_before() -> None:
    model = sharp(2)
    before = {name: w.clone() for name, w in model.named_parameters()}
    screen_weights(model, batches(rows=8), modules(model), ROUNDINGS)
    assert all(torch.equal(w, before[name]) and w.requires_grad for name, w in model.named_parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_that_is_not_finite_is_refused() -> None:
    model = sharp(2)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(BadInputError, match="not finite"):
        screen_weights(model, batches(rows=8), modules(model), ROUNDINGS)
