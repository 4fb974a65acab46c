"""A model that was run on the side is as it was, and so is all that draws at random."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import cases
from noisescope.sweep.evaluating import undisturbed


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


def disturb(model: torch.nn.Module, weight: torch.nn.Parameter) -> None:
    with undisturbed(model):
        assert all(one.grad is None for one in model.parameters())
        drawn()
        weight.requires_grad = True
        model(**cases.batch(labels=True)).loss.backward()
        raise RuntimeError("planted")


def test_random_state_gradients_and_what_learns_are_afterwards_as_before() -> None:
    model = cases.make("llama")
    first, second, *_ = model.parameters()
    first.grad, second.requires_grad = torch.ones_like(first), False
    kept = first.grad
    with torch.random.fork_rng(devices=[]):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        expected = drawn()
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        with pytest.raises(RuntimeError, match="planted"):
            disturb(model, second)
        assert drawn() == expected
    assert first.grad is kept and torch.equal(kept, torch.ones_like(first))
    assert second.grad is None and not second.requires_grad
    assert all(weight.grad is None for weight in [*model.parameters()][1:])
