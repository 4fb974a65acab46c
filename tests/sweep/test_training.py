"""Training under noise: what is learned from, where noise is and is not, and that silent noise is an error."""

from dataclasses import replace

import pytest
import torch

from cases import make
from noisescope.core.errors import NeverFiredError, NoEffectError
from noisescope.inject.schedule import Schedule
from noisescope.measure.batches import Settings, prepare
from noisescope.measure.word_problems import problems, texts, vocabulary
from noisescope.model.small import small_model
from noisescope.sweep.noisy_training import NoisePlan, noise_plan
from noisescope.sweep.training import Lessons, batch_of, examples_of, loss_of, orders, pace, train

LESSONS = Lessons(steps=5, rows=4, rate=1e-3, seed=3)
# Per layer seven linear layers, two products, a softmax, a silu and two norms; then the last norm and the head.
SITES = 2 * 13 + 2


def small(seed=0):
    return small_model(vocabulary(), width=16, layers=2, seed=seed)


@pytest.fixture(scope="module")
def examples():
    return examples_of(prepare(problems(60, 10, 10, 12).train, small().tokenizer, "nll", Settings(max_length=64)))


def weights(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_an_example_is_the_prompt_the_answer_and_its_end_and_only_these_are_learned(examples):
    tokenizer = small().tokenizer
    item = problems(60, 10, 10, 12).train.items[0]
    tokens, labels = examples[0]
    assert tokenizer.decode(list(tokens)) == f"{item.question} {item.answer}{tokenizer.eos_token}"
    learned = [token for token, label in zip(tokens, labels, strict=True) if label != -100]
    assert tokenizer.decode(learned) == f" {item.answer}{tokenizer.eos_token}"
    assert all(label in (-100, token) for token, label in zip(tokens, labels, strict=True))


def test_of_a_text_all_but_its_first_token_is_learned():
    loaded = small()
    prepared = prepare(texts(5, 2, 2).train, loaded.tokenizer, "nll", Settings(max_length=64))
    tokens, labels = examples_of(prepared)[0]
    assert labels == (-100, *tokens[1:]) and len(tokens) == 20


def test_the_loss_is_that_of_transformers_and_padding_changes_nothing(examples):
    model = small().model
    batch = batch_of(examples[:6], torch.device("cpu"))
    assert loss_of(model, batch).item() == pytest.approx(model(**batch).loss.item(), rel=1e-5)
    alone = [loss_of(model, batch_of([one], torch.device("cpu"))) * sum(x != -100 for x in one[1]) for one in examples]
    whole = loss_of(model, batch_of(examples, torch.device("cpu")))
    count = sum(x != -100 for _, labels in examples for x in labels)
    assert whole.item() == pytest.approx(sum(alone).item() / count, rel=1e-5)


def test_training_learns_and_equal_seeds_learn_the_same(examples):
    found = []
    for _ in range(2):
        model = small().model
        trained = train(model, examples, replace(LESSONS, steps=20, rows=16, rate=1e-2))
        found.append(weights(model))
        assert trained.losses[-1][1] < 0.7 * trained.losses[0][1] and not model.training
    assert torch.equal(*found)


def test_the_order_of_the_rows_is_the_seed_s():
    assert list(orders(50, LESSONS)) == list(orders(50, LESSONS)) != list(orders(50, replace(LESSONS, seed=4)))


@pytest.mark.parametrize("phases", [("forward",), ("backward",), ("forward", "backward")])
def test_noise_is_in_its_phases_at_every_site_and_step(examples, phases):
    trained = train(small().model, examples, LESSONS, noise_plan(0.05, phases=phases))
    assert trained.forward == (SITES * 5 if "forward" in phases else 0)
    assert trained.backward == (SITES * 5 if "backward" in phases else 0)
    assert dict(trained.realised).keys() == set(phases) and trained.scale == pytest.approx(0.05)
    assert all(found == pytest.approx(0.05, rel=0.1) for _, found in (*trained.realised, *trained.by_layer))


def test_backward_noise_leaves_the_first_loss_alone_and_forward_noise_does_not(examples):
    first = {}
    for name, plan in {
        "none": None,
        "forward": noise_plan(0.05, phases=["forward"]),
        "backward": noise_plan(0.05, phases=["backward"]),
    }.items():
        model = small().model
        first[name] = train(model, examples, LESSONS, plan).losses[0][1], weights(model)
    assert first["none"][0] == first["backward"][0] != first["forward"][0]
    assert not torch.equal(first["none"][1], first["backward"][1])


def test_nothing_is_left_on_the_model(examples):
    model = small().model
    train(model, examples, LESSONS, noise_plan(0.05))
    batch = batch_of(examples[:4], torch.device("cpu"))
    assert torch.equal(loss_of(model, batch), loss_of(model, batch))


def test_an_arm_in_which_no_noise_landed_is_an_error(examples):
    silent = NoisePlan(Schedule("step", levels=(0.0,)))
    with pytest.raises(NoEffectError, match="0 injections in forward"):
        train(small().model, examples, LESSONS, silent)


def test_noise_that_changes_nothing_and_noise_that_never_fires_are_errors(examples):
    with pytest.raises(NoEffectError):
        train(small().model, examples, LESSONS, noise_plan(1e-12))
    with pytest.raises(NeverFiredError, match="gelu"):
        train(small().model, examples, LESSONS, noise_plan(0.05, operators="gelu"))


def test_factors_of_layers_are_realised(examples):
    trained = train(small().model, examples, LESSONS, noise_plan(0.05, factors={0: 0.5, 1: 1.5}))
    assert dict(trained.by_layer) == pytest.approx({0: 0.025, 1: 0.075}, rel=0.1)


def test_the_rate_rises_and_falls():
    assert [pace(step, 100) for step in (0, 4, 9, 50, 99)] == pytest.approx([0.1, 0.5, 0.91, 0.5, 0.02])


def test_another_family_is_trained_as_well(examples):
    model = make("gpt2")
    assert train(model, examples, LESSONS, noise_plan(0.05)).forward > 0
