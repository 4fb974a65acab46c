"""Faults of other kinds than the probes' noise, and of other seeds, are matched to the place where they are."""

import copy

import pytest
import torch

import noisescope as ns
from cases import batch, make

ROWS, LENGTH = 4, 12
INPUTS = [batch(ROWS, LENGTH)]


@pytest.fixture(scope="module")
def llama():
    return make("llama")


@pytest.fixture(scope="module")
def captured(llama, tmp_path_factory):
    return ns.capture(llama, INPUTS, tmp_path_factory.mktemp("good") / "good.capture")


@pytest.mark.parametrize("kind", ["dead_zone", "saturation", "stuck_channel", "low_precision_accumulation"])
def test_the_layer_is_named_with_a_good_model_beside_it(llama, kind):
    suspect = copy.deepcopy(llama)
    with ns.inject(suspect, ns.fault(kind, 0.3), layers=1, operators="linear", seed=4):
        result = ns.locate(suspect, INPUTS, method="fingerprint", reference=llama)
    assert (result.verdict, result.method, result.suspects[0].layer) == ("fault", "fingerprint", 1)
    assert result.margin > 0.02
    assert result.confidence > 0.95
    assert (result.opinion.layer, result.opinion.operator) == (1, "linear")


@pytest.mark.parametrize("layer", [0, 1])
def test_the_layer_is_named_with_a_capture_made_elsewhere(llama, captured, layer):
    suspect = copy.deepcopy(llama)
    with ns.inject(suspect, ns.fault("offset", 0.2), layers=layer, operators="rms_norm", seed=4):
        result = ns.locate(suspect, INPUTS, method="fingerprint", reference=captured)
    assert (result.verdict, result.suspects[0].layer, result.opinion.layer) == ("fault", layer, layer)
    assert "capture" in " ".join(result.notes)


@pytest.mark.parametrize("path", ["model.embed_tokens", "model.norm", "lm_head"])
def test_faults_outside_the_layers_are_matched_to_their_module(llama, path):
    suspect = copy.deepcopy(llama)
    suspect.get_submodule(path).register_forward_hook(lambda _m, _a, y: y.clamp(-y.abs().max() / 4, y.abs().max() / 4))
    result = ns.locate(suspect, INPUTS, method="fingerprint", reference=llama)
    assert (result.verdict, result.suspects[0].path) == ("fault", path)


def test_a_single_wrong_token_is_matched_to_its_layer_and_not_to_the_one_that_spreads_it(llama):
    suspect = copy.deepcopy(llama)

    def spoil(_module, _args, y):
        y = y.clone()
        y[:, 0] *= 1.5
        return y

    suspect.model.layers[0].mlp.down_proj.register_forward_hook(spoil)
    result = ns.locate(suspect, INPUTS, method="fingerprint", reference=llama)
    assert result.suspects[0].layer == 0


def test_a_healthy_system_is_not_accused_in_the_same_nor_in_a_shorter_dtype(llama, captured):
    same = ns.locate(copy.deepcopy(llama), INPUTS, method="fingerprint", reference=llama)
    assert (same.verdict, same.suspects) == ("no fault found", ())
    short = copy.deepcopy(llama).to(torch.bfloat16)
    for reference in (llama, captured):
        result = ns.locate(short, INPUTS, method="fingerprint", reference=reference)
        assert (result.verdict, result.suspects) == ("no fault found", ())


@pytest.mark.parametrize(("layer", "kind"), [(0, "saturation"), (1, "gain_drift")])
def test_a_fault_is_told_from_the_rounding_of_a_shorter_dtype(llama, captured, layer, kind):
    short = copy.deepcopy(llama).to(torch.bfloat16)
    for reference in (llama, captured):
        with ns.inject(short, ns.fault(kind, 0.3), layers=layer, operators="linear", seed=4):
            result = ns.locate(short, INPUTS, method="fingerprint", reference=reference)
        assert (result.verdict, result.suspects[0].layer) == ("fault", layer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_small_fault_is_told_from_the_rounding_of_other_kernels(dtype):
    good, suspect = make("llama", "eager", dtype), make("llama", "sdpa", torch.bfloat16)
    healthy = ns.locate(suspect, INPUTS, method="fingerprint", reference=good)
    assert (healthy.verdict, healthy.suspects) == ("no fault found", ())
    for layer in (0, 1):
        with ns.inject(suspect, ns.fault("gain_drift", 0.02), layers=layer, operators="linear", seed=4):
            result = ns.locate(suspect, INPUTS, method="fingerprint", reference=good)
        assert (result.verdict, result.suspects[0].layer) == ("fault", layer)
    assert next(good.parameters()).dtype is dtype


def test_what_is_no_reference_or_of_other_inputs_is_refused(llama, captured):
    with pytest.raises(ns.NoisescopeError, match="reference None: expected a healthy model"):
        ns.locate(llama, INPUTS, method="fingerprint")
    with pytest.raises(ns.NoisescopeError, match="made from other inputs"):
        ns.locate(llama, [batch(2, 5)], method="fingerprint", reference=captured)
    with pytest.raises(ns.NoisescopeError, match="a healthy system of the same model"):
        ns.locate(llama, INPUTS, method="fingerprint", reference=make("gpt2"))
