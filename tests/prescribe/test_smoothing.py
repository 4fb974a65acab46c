"""Factors are those of the formula, folding them changes no answer, and int8 is what it says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cases import CASES, batch, make
from noisescope.core.smoothing import ACTIVATIONS, TENSOR, TOKEN
from noisescope.model.folds import folds_of
from noisescope.model.linears import matrix_of
from noisescope.prescribe.eight_bits import eight_bits, input_peaks, rounded_input
from noisescope.prescribe.smoothing import Tried, candidates_of, factors_by_reader, fold_in, try_all


def answer(model: nn.Module) -> Tensor:
    with torch.no_grad():
        out = model(**batch(2, 16))
    return out.logits


def peaks_of(model: nn.Module) -> dict[str, Tensor]:
    return input_peaks(model, [path for fold in folds_of(model).folds for path in fold.readers], [batch(2, 16)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_a_smoothed_model_answers_as_the_original(name: str, dtype: torch.dtype) -> None:
    model = make(name, "sdpa", dtype)
    own, peaks = answer(model), peaks_of(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for fold in folds_of(model).folds:
        factors = candidates_of(model, fold, peaks, (0.5,))[1].factors
        # Other than the small models' own, which hardly differ.
        fold_in(model, fold, factors * 2.0 ** (torch.arange(len(factors)) % 4 - 2))
    assert sum(not torch.equal(value, before[key]) for key, value in model.state_dict().items()) >= 4
    if name == "gemma":
        # Its norms multiply by 1 + w, and w has no room for every power of two.
        assert torch.allclose(answer(model), own, atol=20 * torch.finfo(dtype).eps * float(own.abs().max()))
    else:
        assert torch.equal(answer(model), own)


def test_factors_are_those_of_the_formula_to_the_nearest_power_of_two() -> None:
    model = make("llama")
    fold = folds_of(model).folds[0]
    peaks = peaks_of(model)
    q, k, v = (model.get_submodule(path).weight.detach() for path in fold.readers)
    (none, half, most) = candidates_of(model, fold, peaks, (0.5, 0.9))
    assert none.alpha is None and bool((none.factors == 1).all())
    for alpha, one in ((0.5, half), (0.9, most)):
        for j in range(32):
            largest = max(float(w[:, j].abs().max()) for w in (q, k, v))
            exact = float(peaks[fold.readers[0]][j]) ** alpha / largest ** (1 - alpha)
            assert 2**-0.5001 <= float(one.factors[j]) / exact <= 2**0.5001
            assert float(one.factors[j].log2()) % 1 == 0


def test_a_channel_that_is_never_used_keeps_its_weights() -> None:
    model = make("llama")
    fold = folds_of(model).folds[0]
    peaks = {path: largest.clone() for path, largest in peaks_of(model).items()}
    peaks[fold.readers[0]][3] = 0.0
    assert float(candidates_of(model, fold, peaks, (0.5,))[1].factors[3]) == 1.0


def test_heads_that_share_values_share_factors() -> None:
    model = make("qwen2")
    fold = folds_of(model).folds[1]
    one = candidates_of(model, fold, peaks_of(model), (0.5,))[1]
    assert len(one.factors) == 16
    by_column = factors_by_reader([(fold, one)])[fold.readers[0]]
    assert torch.equal(by_column[:8], by_column[8:16]) and torch.equal(by_column[16:24], by_column[24:])


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_int8_as_if_folded_is_int8_of_the_folded_model(name: str, activations: str) -> None:
    model = make(name)
    peaks, chosen = peaks_of(model), []
    for fold in folds_of(model).folds:
        factors = 2.0 ** (torch.arange(max(fold.channels) + 1) % 5 - 2)
        one = candidates_of(model, fold, peaks, (0.5,))[1]
        chosen.append((fold, type(one)(0.5, one.factors * factors)))
    by = factors_by_reader(chosen)
    own = answer(model)
    with eight_bits(model, peaks, activations, by):
        expected = answer(model)
    assert torch.equal(answer(model), own)
    for fold, one in chosen:
        fold_in(model, fold, one.factors)
    with eight_bits(model, {path: largest / by[path] for path, largest in peaks.items()}, activations):
        assert torch.equal(answer(model), expected) and not torch.equal(expected, own)


def test_inputs_are_rounded_as_by_hand() -> None:
    x = torch.tensor([[1.0, -0.5, 0.013], [0.1, 0.05, -0.02]])
    one = torch.tensor([1.27, 0.0, 0.0])
    # A step of 0.01 throughout; by token 1/127 and 0.1/127.
    assert torch.allclose(rounded_input(x, one, TENSOR), torch.tensor([[1.0, -0.5, 0.01], [0.1, 0.05, -0.02]]))
    by_token = rounded_input(x, one, TOKEN)
    assert torch.allclose(by_token[0], torch.tensor([127.0, -64.0, 2.0]) / 127)
    assert torch.allclose(by_token[1], torch.tensor([127.0, 64.0, -25.0]) / 1270)
    # What is larger than what was seen before is clamped.
    assert float(rounded_input(torch.tensor([[9.0]]), one, TENSOR)) == pytest.approx(1.27)


def test_padding_has_no_part_in_peaks() -> None:
    model = make("llama")
    ids = batch(1, 8)["input_ids"]
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0]])
    path = "model.layers.0.mlp.down_proj"
    padded = input_peaks(model, [path], [{"input_ids": ids, "attention_mask": mask}])
    short = input_peaks(model, [path], [{"input_ids": ids[:, :5]}])
    assert torch.allclose(padded[path], short[path], atol=1e-6)
    assert not torch.allclose(input_peaks(model, [path], [{"input_ids": ids}])[path], short[path], atol=1e-6)


def test_the_error_of_a_candidate_is_that_of_its_readers_in_int8() -> None:
    model = make("llama")
    fold = folds_of(model).folds[3]
    (path,) = fold.readers
    peaks = peaks_of(model)
    tried = Tried(fold, candidates_of(model, fold, peaks, (0.5,)))
    try_all(model, [tried], peaks, [batch(2, 16)], TENSOR)
    module = model.get_submodule(path)
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    answer(model)
    handle.remove()
    x, clean = seen[0], seen[0] @ matrix_of(module).T
    for one, error in zip(tried.candidates, tried.errors, strict=True):
        with eight_bits(model, {path: peaks[path]}, TENSOR, factors_by_reader([(fold, one)])):
            rough = module(x).detach()
        assert error == pytest.approx(float((rough - clean).norm() / clean.norm()), rel=1e-4)
