"""The pre-test: noise in gradients and in activations, against figures by hand."""

import pytest
import torch

from noisescope.core.experiment import SAMPLING
from noisescope.measure.word_problems import vocabulary
from noisescope.model.small import small_model
from noisescope.sweep.gradients import disturbances


@pytest.fixture(scope="module")
def model():
    return small_model(vocabulary(), width=16, layers=2, seed=0).model


def some_batches(count=3):
    draw = torch.Generator().manual_seed(0)
    ids = [torch.randint(2, 40, (8, 12), generator=draw) for _ in range(count)]
    return [{"input_ids": one, "labels": one} for one in ids]


def by_phase(model, scale, batches):
    return {one.phase: one for one in disturbances(model, batches, scale, seed=7)}


def test_noise_is_as_strong_as_asked_in_both_phases_and_moves_the_gradient_in_proportion(model):
    weak, strong = (by_phase(model, scale, some_batches()) for scale in (0.01, 0.02))
    for phase in ("forward", "backward"):
        assert weak[phase].relative == pytest.approx(0.01, rel=0.05)
        assert strong[phase].error == pytest.approx(2 * weak[phase].error, rel=0.05)
        for one, two in zip(weak[phase].deviation, strong[phase].deviation, strict=True):
            assert two == pytest.approx(2 * one, rel=0.2)


def test_noise_in_gradients_is_as_small_as_they_are(model):
    whole = by_phase(model, 0.02, some_batches())
    assert whole["backward"].error < whole["forward"].error


def test_equal_rows_are_no_disturbance_and_others_are(model):
    one = some_batches(1)[0]
    same = by_phase(model, 0.02, [one, one])[SAMPLING]
    assert same.deviation == (0.0, 0.0) and same.cosine == pytest.approx((1.0, 1.0))
    assert min(by_phase(model, 0.02, some_batches())[SAMPLING].deviation) > 0.1


def test_deviation_and_cosine_are_those_of_the_whole_gradient(model):
    first, second = some_batches(2)
    found = by_phase(model, 0.02, [first, second])[SAMPLING]
    grads = []
    for batch in (first, second):
        model.zero_grad()
        model(**batch).loss.backward()
        grads.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    model.zero_grad()
    assert found.deviation[0] == pytest.approx(((grads[1] - grads[0]).norm() / grads[0].norm()).item(), rel=1e-4)
    assert found.cosine[0] == pytest.approx((grads[0] @ grads[1] / grads[0].norm() / grads[1].norm()).item(), rel=1e-4)


def test_no_gradient_is_left(model):
    by_phase(model, 0.02, some_batches(1) * 2)
    assert all(weight.grad is None for weight in model.parameters())
