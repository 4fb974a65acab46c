"""The sketch against the stored values: its error bound, and that order, cuts and merges do not matter."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from noisescope.core.errors import BadInputError
from noisescope.measure.quantiles import RELATIVE_ERROR, QuantileSketch

SHARES = (0.01, 0.25, 0.5, 0.9, 0.99, 1.0)


def order_statistic(values: Tensor, share: float) -> Tensor:
    """By column, the smallest value that at least this share of the values does not exceed."""
    rank = max(1, math.ceil(share * len(values) - 1e-9))
    return values.double().kthvalue(rank, dim=0).values


def sketched(values: Tensor, octaves: int = 16) -> QuantileSketch:
    sketch = QuantileSketch(values.shape[1], octaves)
    sketch.update(values)
    return sketch


def streams(rows: int = 3000) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    normal = torch.randn(rows, 4, generator=g).abs()
    return {
        "normal": normal,
        "scaled": normal * torch.tensor([1e-30, 1e-6, 1.0, 1e30]),
        "lognormal": (torch.randn(rows, 4, generator=g) * 1.5).exp(),
        "uniform": torch.rand(rows, 4, generator=g) + 1e-3,
        "cauchy": (normal / torch.rand(rows, 4, generator=g).clamp(min=1e-3)).clamp(max=1e4),
        "constant": torch.full((rows, 4), 3.7),
        "bf16": normal.bfloat16(),
    }


@pytest.mark.parametrize("name", list(streams(1)))
def test_every_quantile_is_within_the_bound(name: str) -> None:
    values = streams()[name]
    sketch = sketched(values)
    for share in SHARES:
        true = order_statistic(values, share)
        # Below 2**-16 of the largest value nothing is told from 0.
        far = true < values.double().amax(0) * 2.0**-15
        error = ((sketch.quantile(share) - true).abs() / true)[~far]
        assert (error <= RELATIVE_ERROR * (1 + 1e-6)).all(), (share, error)


def test_the_counts_depend_on_the_values_alone() -> None:
    values = torch.cat([streams(400)["lognormal"], streams(400)["cauchy"] * 100])
    whole = sketched(values)
    shuffled = sketched(values[torch.randperm(800, generator=torch.Generator().manual_seed(1))])
    cut = QuantileSketch(4)
    for piece in values.split(37):
        cut.update(piece)
    left, right = sketched(values[:300]), sketched(values[300:])
    left.merge(right)
    right.merge(sketched(values[:300]))
    for other in (shuffled, cut, left, right):
        assert torch.equal(other.counts, whole.counts)
        assert torch.equal(other.quantile(0.5), whole.quantile(0.5))


def test_what_lies_far_below_the_largest_counts_as_zero() -> None:
    values = torch.tensor([[1e-9], [1e-9], [1e-9], [1e3]])
    assert sketched(values).quantile(0.5).tolist() == [0.0]
    assert sketched(values, octaves=64).quantile(0.5).item() == pytest.approx(1e-9, rel=RELATIVE_ERROR)


def test_zeros_and_what_is_not_finite() -> None:
    values = torch.tensor([[0.0, math.nan, 2.0], [0.0, math.inf, math.nan], [0.0, math.nan, 2.0]])
    sketch = sketched(values)
    assert sketch.counts.sum(1).tolist() == [3, 0, 2]
    middle = sketch.quantile(0.5)
    assert middle[0] == 0.0
    assert middle[1].isnan()
    assert middle[2].item() == pytest.approx(2.0, rel=RELATIVE_ERROR)
    sketch.update(torch.empty(0, 3))
    assert sketch.counts.sum() == 5


def test_more_channels_than_are_moved_at_once() -> None:
    values = torch.rand(50, 2500, generator=torch.Generator().manual_seed(2)) + 0.5
    sketch = sketched(values[:25])
    sketch.update(values[25:] * torch.linspace(0.1, 10, 2500))
    scaled = torch.cat([values[:25], values[25:] * torch.linspace(0.1, 10, 2500)])
    error = (sketch.quantile(0.9) / order_statistic(scaled, 0.9) - 1).abs()
    assert error.max() <= RELATIVE_ERROR * (1 + 1e-6)


def test_sketches_of_other_channels_do_not_merge() -> None:
    with pytest.raises(BadInputError, match="same tensor"):
        QuantileSketch(3).merge(QuantileSketch(4))
