"""The directions that are sent back have the Fisher information of the answer as their second moment."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from noisescope.inject.keyed import Draw
from noisescope.sweep.directions import fisher_direction

ROWS = 60_000


def second_moment(logits: Tensor, *, is_logits: bool = True) -> Tensor:
    """The mean of u u^T over many rows of the same output."""
    out = logits.expand(ROWS, -1)
    found = fisher_direction(out, torch.ones(ROWS), Draw(3), is_logits=is_logits).double()
    return found.T @ found / ROWS


@pytest.mark.parametrize(
    "logits",
    [
        torch.tensor([0.0, 1.0]),
        torch.tensor([2.0, -1.0, 0.5, 0.0, -9.0]),
        torch.linspace(0.0, 3.0, 40),  # more outcomes than are set apart
        torch.tensor([20.0, 0.0, -3.0]),
        torch.tensor([1.0]),
        torch.tensor([0.0, -float("inf"), 1.0]),
        torch.tensor([200.0] + [0.0] * 30),  # everything but one outcome underflows
    ],
)
def test_the_second_moment_is_the_covariance_of_an_answer(logits: Tensor) -> None:
    p = logits.double().softmax(-1)
    expected = torch.diag(p) - torch.outer(p, p)
    # A mean of products of standard deviations s_a s_b from so many rows is off by about s_a s_b / sqrt(rows).
    spread = expected.diag().sqrt()
    slack = 6.0 * torch.outer(spread, spread) / ROWS**0.5 + 1e-12
    assert ((second_moment(logits) - expected).abs() <= slack).all()


def test_two_outcomes_leave_nothing_to_chance() -> None:
    """For p and 1 - p every direction is +-sqrt(p (1 - p)) (1, -1), so its square has no spread."""
    logits = torch.tensor([0.3, -0.9])
    p = float(logits.softmax(-1)[0])
    found = fisher_direction(logits.expand(50, -1), torch.ones(50), Draw(0), is_logits=True)
    assert found[:, 0].abs() == pytest.approx(torch.full((50,), (p * (1 - p)) ** 0.5), rel=1e-5)
    assert found.sum(-1).abs().max() < 1e-6
    assert found[:, 0].min() < 0 < found[:, 0].max()


def test_without_logits_every_direction_is_of_unit_size_and_they_are_uncorrelated() -> None:
    moment = second_moment(torch.zeros(6), is_logits=False)
    assert moment.diag() == pytest.approx(torch.ones(6))
    assert (moment - torch.eye(6)).abs().max() < 6.0 / ROWS**0.5


def test_rows_that_are_not_judged_get_nothing_and_the_rest_keeps_its_dtype() -> None:
    out = torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(0)).bfloat16()
    judged = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    found = fisher_direction(out, judged, Draw(1), is_logits=True)
    assert found.dtype == torch.bfloat16
    assert torch.equal((found != 0).any(-1), judged.bool())
