"""What is to blame is what the end result recovers without; what is not, is not."""

import math

import pytest
import torch

import noisescope as ns
from cases import Unsteady, batch, make
from noisescope.diagnose.localization import Suspect
from noisescope.runs.capturing import inputs_of
from noisescope.runs.confirming import Failed, answers_of, confirm, some_of
from noisescope.runs.localising import locate

ROWS, LENGTH = 3, 12
PLACES = [
    ("llama", "sdpa", "linear"),
    ("llama", "sdpa", "softmax"),
    ("llama", "eager", "softmax"),
    ("llama", "sdpa", "rms_norm"),
    ("llama", "eager", "matmul"),
    ("gpt2", "sdpa", "attention"),
    ("gpt2", "sdpa", "gelu"),
    # Experts are called as one product of groups.
    ("mixtral", "sdpa", "linear"),
]


@pytest.mark.parametrize(("name", "attention", "operator"), PLACES)
@pytest.mark.parametrize("kind", ["gain_drift", "noise", "saturation"])
def test_the_end_result_recovers_with_the_right_outputs_in_place(name, attention, operator, kind):
    model = make(name, attention)
    healthy = answers_of(model, [batch(ROWS, LENGTH)])
    with ns.inject(model, ns.fault(kind, 0.3), layers=1, operators=operator, seed=5):
        found = locate(model, [batch(ROWS, LENGTH)], reference=healthy).confirmation
    assert (found.outcome, found.left) == ("confirmed", ())
    assert found.moved > 1000 * found.beside
    assert found.recovered > 0.999


def spoil(module, change):
    """A fault that the engine does not know."""
    return module.register_forward_hook(lambda _m, _a, out: change(out.clone()))


def asked(model, path, operator="linear", layer=0, **more):
    """The confirmation of a site that somebody blames."""
    inputs = inputs_of(model, batch(ROWS, LENGTH))
    with torch.no_grad():
        before = some_of(model(**inputs))
    return confirm(model, [Suspect(layer, operator, path, 9.0)], Failed(inputs, before, **more), 0)


def test_an_operator_that_is_wrongly_blamed_is_not_confirmed():
    model = make("llama")
    (healthy,) = answers_of(model, [batch(ROWS, LENGTH)]).rows
    handle = spoil(model.model.layers[1].mlp.act_fn, lambda y: y * 1.5)
    wrong = asked(model, "model.layers.0.self_attn.q_proj", healthy=healthy)
    right = asked(model, "model.layers.1.mlp.act_fn", "silu", 1, healthy=healthy)
    handle.remove()
    assert (wrong.outcome, wrong.left) == ("not confirmed", ("silu at model.layers.1.mlp.act_fn",))
    assert wrong.moved < 1e-5 and abs(wrong.recovered) < 1e-3
    assert (right.outcome, right.left) == ("confirmed", ()) and right.recovered > 0.999


def test_one_of_two_faults_is_not_all():
    model = make("llama")
    handles = [spoil(layer.mlp.down_proj, lambda y: y * 1.5) for layer in model.model.layers[:2]]
    found = asked(model, "model.layers.0.mlp.down_proj")
    whole = locate(model, [batch(ROWS, LENGTH)]).confirmation
    for handle in handles:
        handle.remove()
    assert (found.outcome, found.left) == ("not confirmed", ("linear at model.layers.1.mlp.down_proj",))
    assert (whole.outcome, whole.corrected, whole.healthy) == ("confirmed", 2, 2)


def test_a_healthy_operator_has_no_effect():
    found = asked(make("llama"), "model.layers.0.mlp.up_proj")
    assert found.outcome == "no effect"


def test_a_fault_that_goes_nowhere_is_found_and_said_to_go_nowhere():
    model = make("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.zero_()
    handle = spoil(model.model.layers[1].mlp.gate_proj, lambda y: y * 1.5)
    result = locate(model, [batch(ROWS, LENGTH)])
    handle.remove()
    assert result.suspects[0].path == "model.layers.1.mlp.gate_proj"
    assert (result.confirmation.outcome, result.confirmation.moved) == ("no effect", 0.0)


def test_without_suspects_nothing_more_runs():
    model = make("llama")
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(0))
    assert locate(model, [batch(ROWS, LENGTH)], repeats=2).confirmation is None
    handle.remove()
    assert len(calls) == 2


def test_a_confirmation_takes_two_more_runs_of_one_batch_and_leaves_nothing_behind():
    model = make("llama", "sdpa", torch.bfloat16)
    answers = []
    handles = [
        model.register_forward_hook(lambda _m, _a, out: answers.append(out.logits.clone())),
        spoil(model.model.layers[0].mlp.up_proj, lambda y: y * 1.5),
    ]
    locate(model, [batch(ROWS, LENGTH), batch(2, 5)], repeats=2)
    with torch.no_grad():
        model(**batch(ROWS, LENGTH), use_cache=False)
    for handle in handles:
        handle.remove()
    assert len(answers) == 2 * 2 + 2 + 1
    assert torch.equal(answers[0], answers[-1])


def test_a_fault_that_comes_and_goes_recovers_in_a_run_in_which_it_was_seen():
    model = make("llama")
    healthy = answers_of(model, [batch(ROWS, LENGTH)])
    calls = []

    def now_and_then(y):
        calls.append(0)
        return y * 1.5 if len(calls) % 5 == 3 else y

    handle = spoil(model.model.layers[1].mlp.up_proj, now_and_then)
    found = locate(model, [batch(ROWS, LENGTH)], repeats=4, reference=healthy).confirmation
    handle.remove()
    assert found.outcome == "confirmed"
    assert found.recovered > 0.999


def test_an_end_result_that_was_not_finite_is_said_to_be_so():
    model = make("llama")
    healthy = make("llama")
    handle = spoil(model.model.layers[1].mlp.up_proj, lambda y: y * math.nan)
    found = locate(model, [batch(ROWS, LENGTH)], reference=healthy).confirmation
    handle.remove()
    assert (found.outcome, found.moved, found.recovered) == ("confirmed", math.inf, 1.0)
    assert "was not finite" in str(found)


def test_what_the_host_cannot_compute_is_not_confirmed_and_says_why():
    found = locate(Unsteady(), [{"x": torch.ones(2, 3, 4)}]).confirmation
    assert found.outcome == "impossible"
    assert "Wobbly" in str(found) and "no check computes its output" in str(found)
