"""Running channel statistics against the same figures of the stored rows."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from noisescope.core.errors import BadInputError
from noisescope.measure.channels import DELIMITER, FIRST, OTHER, ChannelStatistics, Tokens, sparsity
from noisescope.measure.outliers import ChannelSummary
from noisescope.measure.quantiles import RELATIVE_ERROR


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows(count: int = 700, channels: int = 30) -> Tensor:
    """Channels of unlike sizes and means, one of them mostly 0 and one a constant."""
    values = random(count, channels) * torch.logspace(-3, 3, channels) + torch.linspace(-5, 5, channels)
    values[:, 3] = values[:, 3].clamp(min=values[:, 3].quantile(0.8)) - values[:, 3].quantile(0.8)
    values[:, 4] = 2.5
    return values


def tokens(count: int, length: int = 10) -> Tokens:
    """Rows of a batch of texts of this length; every token with an id divisible by 7 is a delimiter."""
    position = torch.arange(count) % length
    token = torch.arange(count) * 13 % 50
    return Tokens.of(position, token, range(0, 50, 7))


def collected(values: Tensor, where: Tokens | None = None, cuts: int = 1) -> ChannelStatistics:
    seen = ChannelStatistics(values.shape[1])
    indices = torch.arange(len(values)).tensor_split(cuts)
    for some in indices:
        seen.update(values[some], None if where is None else where.rows(some))
    return seen


def check(summary: ChannelSummary, values: Tensor) -> None:
    """Every figure that does not depend on the place."""
    wide = values.double()
    sizes = wide.abs()
    assert list(summary.peaks) == sizes.amax(0).tolist()
    assert torch.tensor(summary.means).double().numpy() == pytest.approx(wide.mean(0).numpy(), rel=1e-6, abs=1e-9)
    assert torch.tensor(summary.deviations).numpy() == pytest.approx(wide.std(0, correction=0).numpy(), rel=1e-6)
    for listed, share in ((summary.medians, 0.5), (summary.q99, 0.99)):
        true = sizes.kthvalue(math.ceil(share * len(values)), dim=0).values
        assert ((torch.tensor(listed).double() - true).abs() <= RELATIVE_ERROR * true * (1 + 1e-6)).all()
    assert summary.sparsity == pytest.approx((sizes < 1e-6).double().mean().item())
    assert summary.tokens == len(values)


@pytest.mark.parametrize("cuts", [1, 9])
def test_statistics_match_the_stored_rows(cuts: int) -> None:
    values = rows()
    check(collected(values, cuts=cuts).summary(), values)


def test_statistics_match_on_real_widths_and_in_short_dtypes() -> None:
    values = random(300, 18944)
    values[:, 100] *= 80
    check(collected(values, cuts=3).summary(), values)
    short = rows().bfloat16()
    check(collected(short, cuts=2).summary(), short)


def test_the_mean_and_the_deviation_hold_far_from_zero() -> None:
    values = (random(4000, 2).double() + 3000).float()
    found = collected(values, cuts=40).summary()
    assert found.deviations == pytest.approx(values.double().std(0, correction=0).tolist(), rel=1e-9)


def test_where_the_largest_values_sit() -> None:
    values, where = rows(), tokens(700)
    seen = collected(values, where, cuts=6)
    found, sizes = seen.summary("a.b", "input"), values.abs()
    assert (found.path, found.side, found.unplaced) == ("a.b", "input", 0)
    at = sizes.argmax(0)
    for listed, known in ((found.peak_positions, where.position), (found.peak_tokens, where.token)):
        # The constant channel has its largest value at the first row of all.
        assert list(listed) == [int(known[i]) for i in at]
    for kind in (FIRST, DELIMITER, OTHER):
        assert list(found.place_peaks[kind]) == sizes[where.kind == kind].amax(0).tolist()
    assert (where.kind[where.position == 0] == FIRST).all()
    # One bin for each of 0 to 3, then 4 to 7 and 8 to 15.
    bins = [where.position == i for i in range(4)]
    bins += [(where.position >= 4) & (where.position < 8), where.position >= 8]
    assert list(found.position_peaks[:6]) == [sizes[some].amax().item() for some in bins]
    assert not any(found.position_peaks[6:])


def test_bins_of_positions_end_at_powers_of_two() -> None:
    for position, place in ((7, 4), (8, 5), (1023, 11), (1024, 12), (2**30, 32)):
        seen = ChannelStatistics(1)
        seen.update(torch.ones(1, 1), Tokens.of(torch.tensor([position]), torch.tensor([1]), ()))
        assert seen.position_peak.nonzero().flatten().tolist() == [place], position


def test_rows_without_a_place_are_counted() -> None:
    values = rows()
    seen = collected(values[:500], tokens(500))
    seen.update(values[500:] * 2)
    found = seen.summary()
    assert (found.tokens, found.unplaced) == (700, 200)
    better = (values[500:] * 2).abs().amax(0) > values[:500].abs().amax(0)
    assert better.any()
    assert (torch.tensor(found.peak_positions)[better] == -1).all()
    assert (torch.tensor(found.peak_positions)[~better] >= 0).all()


def test_merging_is_the_same_as_seeing_it_all() -> None:
    values, where = rows(), tokens(700)
    whole = collected(values, where)
    left, right = collected(values[:200], where.rows(slice(200))), collected(values[200:], where.rows(slice(200, None)))
    for part, some in ((whole, values), (left, values[:200]), (right, values[200:])):
        part.add_gradient(some * 2)
    left.merge(right)
    for name, value in dataclasses.asdict(whole.summary()).items():
        other = getattr(left.summary(), name)
        if name in ("means", "deviations", "squared_gradients"):
            assert other == pytest.approx(value, rel=1e-9, abs=1e-12), name
        else:
            assert other == value, name
    with pytest.raises(BadInputError, match="match the modules"):
        left.merge(ChannelStatistics(7))


def test_what_is_not_finite_is_counted_and_in_no_other_figure() -> None:
    values = rows()
    spoilt = torch.cat([values, values[:3]])
    spoilt[700, 0], spoilt[701, 0], spoilt[702, 1] = math.nan, math.inf, -math.inf
    found = collected(spoilt, cuts=4).summary()
    assert found.non_finite == (2, 1) + 28 * (0,)
    for i, column in ((0, torch.cat([values[:, 0], values[2:3, 0]])), (1, torch.cat([values[:, 1], values[:2, 1]]))):
        assert found.peaks[i] == column.abs().max()
        assert found.means[i] == pytest.approx(column.double().mean().item())
        assert found.deviations[i] == pytest.approx(column.double().std(correction=0).item())
        assert math.isfinite(found.q99[i])


def test_nothing_seen() -> None:
    found = ChannelStatistics(2).summary()
    assert (found.tokens, found.peaks, found.sparsity) == (0, (0.0, 0.0), 0.0)
    assert all(map(math.isnan, found.medians))


def test_squared_gradients_are_summed_over_rows() -> None:
    seen, gradients = ChannelStatistics(3), random(50, 3)
    assert seen.summary().squared_gradients == ()
    seen.add_gradient(gradients[:20])
    seen.add_gradient(gradients[20:])
    assert seen.summary().squared_gradients == pytest.approx(gradients.double().square().sum(0).tolist())


def test_sparsity() -> None:
    assert sparsity(torch.tensor([0.0, 1e-7, -1e-7, 1e-5, math.nan])) == 0.6
    assert sparsity(torch.tensor([0.0, 0.1]), below=0.2) == 1.0
    assert sparsity(torch.empty(0)) == 0.0
