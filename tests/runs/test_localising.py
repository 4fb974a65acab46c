"""The fault-injector is the oracle: what is planted has to be named, and nothing planted must give nothing."""

import pytest
import torch
from torch import nn

import noisescope as ns
from cases import Unsteady, batch, make
from noisescope.core.vocabulary import FAULT_KINDS, KINDS
from noisescope.runs.localising import locate, repeats_for

ROWS, LENGTH = 3, 12


def found_at(result):
    assert result.verdict == "fault", result
    top = result.suspects[0]
    return top.layer, top.operator


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_every_kind_of_fault_is_found_in_every_operator_that_it_fits(kind, dtype):
    model = make("llama", "eager", dtype)
    operators = {site.operator for site in ns.sites(model)} & set(KINDS[kind].operators)
    for operator in sorted(operators):
        with ns.inject(model, ns.fault(kind, 0.3), layers=1, operators=operator, seed=5) as handle:
            handle.strict = False
            result = locate(model, [batch(ROWS, LENGTH)], seed=9)
        changed = sum(realised.changed for realised in handle.stats.by_site().values())
        if changed:
            assert found_at(result) == (1, operator), (operator, result)
            assert {(s.layer, s.operator) for s in result.suspects} == {(1, operator)}, result
        else:
            assert result.verdict == "no fault found", result


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("operator", ["matmul", "softmax", "attention"])
def test_the_parts_of_attention_are_told_apart_whether_or_not_it_is_fused(attention, operator):
    model = make("qwen2", attention)
    with ns.inject(model, ns.fault("gain_drift", 0.2), layers=0, operators=operator):
        assert found_at(locate(model, [batch(ROWS, LENGTH)])) == (0, operator)


@pytest.mark.parametrize("operator", ["matmul", "softmax", "attention"])
def test_what_differs_from_run_to_run_inside_attention_is_not_blamed_on_attention(operator):
    model = make("llama", "sdpa")
    with ns.inject(model, ns.fault("noise", 0.2), layers=0, operators=operator):
        result = locate(model, [batch(ROWS, LENGTH)])
    assert {(s.layer, s.operator) for s in result.suspects} == {(0, operator)}


def test_a_stuck_channel_is_named():
    model = make("gpt2")
    with ns.inject(model, ns.fault("stuck_channel", 0.5, channel=5), layers=1, operators="linear"):
        result = locate(model, [batch(ROWS, LENGTH)])
    assert {suspect.path for suspect in result.suspects} == {
        "transformer.h.1.attn.c_attn",
        "transformer.h.1.attn.c_proj",
        "transformer.h.1.mlp.c_fc",
        "transformer.h.1.mlp.c_proj",
    }
    assert all(suspect.channels == (5,) for suspect in result.suspects)


def test_a_fault_of_the_whole_tensor_names_no_channel():
    model = make("gpt2")
    with ns.inject(model, ns.fault("gain_drift", 0.1), layers=1, operators="linear"):
        assert all(not suspect.channels for suspect in locate(model, [batch(ROWS, LENGTH)]).suspects)


def test_faults_in_several_places_are_all_listed():
    model = make("llama")
    with (
        ns.inject(model, ns.fault("dead_zone", 0.4), layers=0, operators="silu"),
        ns.inject(model, ns.fault("saturation", 0.3), layers=1, operators="rms_norm"),
    ):
        result = locate(model, [batch(ROWS, LENGTH)])
    assert {(s.layer, s.operator) for s in result.suspects} == {(0, "silu"), (1, "rms_norm")}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_and_its_softmax_are_both_listed_where_both_are_faulty(attention):
    model = make("llama", attention)
    with (
        ns.inject(model, ns.fault("noise", 0.3), layers=1, operators="softmax"),
        ns.inject(model, ns.fault("offset", 0.3), layers=1, operators="attention"),
    ):
        result = locate(model, [batch(ROWS, LENGTH)])
    assert {(s.layer, s.operator) for s in result.suspects} == {(1, "softmax"), (1, "attention")}


def test_faults_outside_the_layers_are_found_as_such():
    model = make("llama")
    with ns.inject(model, ns.fault("offset", 0.1), layers=[None], operators="linear"):
        assert locate(model, [batch(ROWS, LENGTH)]).suspects[0].path == "lm_head"
    with ns.inject(model, ns.fault("offset", 0.1), layers=[None], operators="rms_norm"):
        assert locate(model, [batch(ROWS, LENGTH)]).suspects[0].path == "model.norm"


def spoil(module, change):
    """A fault that the engine does not know."""

    def hook(_module, _args, out):
        first = out[0] if isinstance(out, tuple) else out
        changed = change(first.clone())
        return (changed, *out[1:]) if isinstance(out, tuple) else changed

    return module.register_forward_hook(hook)


def swap_two_channels(y):
    y[..., [1, 2]] = y[..., [2, 1]]
    return y


def one_wrong_element(y):
    y[0, 3, 2] += 0.5 * y.abs().max()
    return y


def short_mantissa(y):
    return (y.float().view(torch.int32) & -65536).view(torch.float32).to(y.dtype)


STRANGE = [swap_two_channels, one_wrong_element, short_mantissa]


@pytest.mark.parametrize("change", STRANGE)
@pytest.mark.parametrize(
    ("path", "operator"),
    [
        ("model.embed_tokens", "embedding"),
        ("model.layers.1", "residual"),
        ("model.layers.1.self_attn", "LlamaAttention"),
        ("model.layers.0.mlp", "LlamaMLP"),
        ("model.layers.0.mlp.act_fn", "silu"),
        ("model.layers.0.self_attn.k_proj", "linear"),
        ("model.norm", "rms_norm"),
        ("lm_head", "linear"),
    ],
)
def test_faults_that_the_engine_does_not_know_are_found_at_any_module(path, operator, change):
    model = make("llama", "sdpa")
    handle = spoil(model.get_submodule(path), change)
    try:
        result = locate(model, [batch(ROWS, LENGTH)])
    finally:
        handle.remove()
    assert [(s.path, s.operator) for s in result.suspects] == [(path, operator)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("bert", "bert.encoder.layer.0.attention.output.dense"),
        ("bert", "bert.encoder.layer.0.attention.self.key"),
        ("llama", "model.layers.0.self_attn.q_proj"),
        ("llama", "model.layers.0.mlp.down_proj"),
    ],
)
def test_what_overflows_behind_a_fault_is_not_blamed(name, path, attention, dtype):
    def overflowing(y):
        y[0, 2, 1] = 1e30
        return y

    model = make(name, attention, dtype)
    handle = spoil(model.get_submodule(path), overflowing)
    try:
        result = locate(model, [batch(ROWS, LENGTH)])
    finally:
        handle.remove()
    assert [s.path for s in result.suspects] == [path], result


def test_an_input_that_was_changed_on_its_way_is_found():
    model = make("llama")
    down = model.model.layers[1].mlp.down_proj
    handle = down.register_forward_pre_hook(lambda _m, args: (args[0] * 1.01,))
    try:
        assert locate(model, [batch(ROWS, LENGTH)]).suspects[0].path == "model.layers.1.mlp.down_proj"
    finally:
        handle.remove()


def test_a_forward_that_was_replaced_on_the_module_is_found():
    model = make("llama")
    norm = model.model.layers[0].input_layernorm
    right = norm.forward
    norm.forward = lambda x: right(x) * 1.02
    assert found_at(locate(model, [batch(ROWS, LENGTH)])) == (0, "rms_norm")


def test_a_fault_that_comes_and_goes_is_found_with_repeats():
    model = make("llama")
    calls = []

    def now_and_then(_m, _a, out):
        calls.append(0)
        return out * 1.5 if len(calls) % 10 == 7 else out

    handle = model.model.layers[1].mlp.up_proj.register_forward_hook(now_and_then)
    try:
        result = locate(model, [batch(ROWS, LENGTH)], repeats=repeats_for(0.1))
    finally:
        handle.remove()
    (suspect,) = result.suspects
    assert suspect.path == "model.layers.1.mlp.up_proj"
    assert "product" in {evidence.check for evidence in suspect.evidence}


def test_the_number_of_repeats_meets_the_asked_confidence():
    # 0.9 ** 28 = 0.0523 and 0.9 ** 29 = 0.0471
    assert repeats_for(0.1) == 29
    assert repeats_for(0.5, 0.99) == 7


def test_an_operator_that_is_not_known_but_not_repeatable_is_found():
    result = locate(Unsteady(), [{"x": torch.ones(2, 3, 4)}])
    assert (result.verdict, [s.layer for s in result.suspects]) == ("fault", [1])
    assert result.suspects[0].evidence[0].check == "repeat"


def test_nothing_seen_is_undecided_and_says_what_would_decide():
    class Opaque(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            return (x[..., None] * self.table).sum(-2)

    result = locate(Opaque(), [{"x": torch.ones(2, 3, 4)}])
    assert result.verdict == "undecided"
    assert "eager" in result.would_decide


def test_observation_changes_no_bit_and_leaves_nothing_behind():
    for name, attention in (("llama", "sdpa"), ("mixtral", "sdpa"), ("gpt2", "eager")):
        model = make(name, attention, torch.bfloat16)
        inputs = batch(ROWS, LENGTH)
        logits = []
        handle = model.register_forward_hook(lambda _m, _a, out, kept=logits: kept.append(out.logits.clone()))
        with torch.no_grad():
            model(**inputs, use_cache=False)
        before = {path: (len(m._forward_hooks), len(m._forward_pre_hooks)) for path, m in model.named_modules()}
        locate(model, [inputs])
        after = {path: (len(m._forward_hooks), len(m._forward_pre_hooks)) for path, m in model.named_modules()}
        handle.remove()
        assert all(torch.equal(logits[0], other) for other in logits[1:])
        assert before == after


def test_keyed_noise_is_the_same_with_the_observation_attached():
    model = make("llama")
    outs = []
    model.register_forward_hook(lambda _m, _a, out: outs.append(out.logits.clone()))
    for observed in (False, True):
        with ns.inject(model, ns.fault("noise", 0.1), layers=1, seed=4):
            if observed:
                locate(model, [batch(ROWS, LENGTH)], repeats=1)
            else:
                with torch.no_grad():
                    model(**batch(ROWS, LENGTH), use_cache=False)
    # Behind these come the runs in which the suspects are replaced.
    assert torch.equal(outs[0], outs[1])


@pytest.mark.parametrize("wrong", [{}, [], [torch.ones(2)], {"input_ids": torch.ones(1, 2)}])
def test_batches_that_are_none_are_refused(wrong):
    with pytest.raises(ns.NoisescopeError, match="list of at least one dict"):
        locate(make("llama"), wrong)


def test_an_unknown_method_is_refused_with_the_nearest():
    with pytest.raises(ns.NoisescopeError, match="srdd"):
        locate(make("llama"), [batch()], method="srd")


def test_the_classical_probes_answer_also_where_a_fault_leaves_nothing_finite():
    model = make("llama")
    model.model.layers[0].register_forward_hook(lambda _m, _a, out: out * float("nan"))
    assert locate(model, [batch(ROWS, LENGTH)], method="classic").suspects
