"""Ranks against slow loops and their error rate with many ties; correlations against scipy and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from noisescope.core.errors import BadInputError
from noisescope.measure.correlations import correlate, weighted_ranks
from noisescope.measure.ranks import decided_pairs, rank_units
from noisescope.measure.statistics import Resampling, resample_weights


def harms(generator: np.random.Generator, means: list[float], samples: int) -> np.ndarray:
    """Scores [units, samples] whose samples are hard or easy for all units alike."""
    return generator.normal(size=samples) + 0.7 * generator.normal(size=(len(means), samples)) + np.c_[means]


def test_pairs_are_decided_as_by_a_slow_loop() -> None:
    scores, plan = harms(np.random.default_rng(0), [0.0, 0.1, 1.0, 0.2], 25), Resampling(resamples=400, seed=2)
    pairs = list(itertools.combinations(range(4), 2))
    error = {(i, j): (scores[i] - scores[j]).std(ddof=1) / 5 for i, j in pairs}
    largest = []
    for row in np.random.Generator(np.random.Philox(key=2)).integers(0, 25, size=(400, 25)):
        moved = scores[:, row].mean(axis=1) - scores.mean(axis=1)
        largest.append(max(abs(moved[i] - moved[j]) / error[i, j] for i, j in pairs))
    limit = np.quantile(largest, 0.95)
    expected = np.zeros((4, 4), dtype=bool)
    for i, j in pairs:
        apart = scores[i].mean() - scores[j].mean()
        expected[(i, j) if apart > 0 else (j, i)] = abs(apart) > limit * error[i, j]
    assert expected.any() and not expected[np.triu_indices(4, 1)].all()
    assert (decided_pairs(scores, plan) == expected).all()


def test_a_planted_worst_unit_is_first_and_the_others_are_tied() -> None:
    ranking = rank_units(harms(np.random.default_rng(1), [0.0, 0.0, 2.0, 0.0, 0.0], 100))
    assert ranking.order[0] == 2
    assert ranking.maybe_first == (2,)
    assert [(u.rank, u.low, u.high) for u in ranking.units] == [(1, 1, 1)] + [(r, 2, 5) for r in range(2, 6)]
    assert ranking.groups == ((2,), ranking.order[1:])


def test_nothing_planted_leaves_one_group() -> None:
    ranking = rank_units(harms(np.random.default_rng(2), [0.0] * 6, 60))
    assert ranking.groups == (ranking.order,)
    assert {(u.low, u.high) for u in ranking.units} == {(1, 6)}


def test_groups_overlap_where_a_unit_is_tied_on_both_sides() -> None:
    # Unrelated patterns of +-1 make each difference over 40 samples uncertain by 0.23: 0.4 is within that, 0.8 not.
    patterns = [np.resize(np.repeat([1.0, -1.0], length), 40) for length in (1, 2, 4)]
    scores = np.stack([pattern + mean for pattern, mean in zip(patterns, (0.0, 0.4, 0.8), strict=True)])
    ranking = rank_units(scores)
    assert ranking.order == (2, 1, 0)
    assert ranking.groups == ((2, 1), (1, 0))
    assert [(u.low, u.high) for u in ranking.units] == [(1, 2), (1, 3), (2, 3)]


def test_equal_units_are_tied_and_constant_shifts_are_decided() -> None:
    x = np.random.default_rng(3).gamma(1.0, 1.0, 40)
    ranking = rank_units(np.stack([x, x, x + 0.5]))
    assert ranking.groups == ((2,), (0, 1))


def test_seeds_are_averaged_per_sample() -> None:
    scores = np.random.default_rng(4).gamma(1.0, 1.0, (4, 30, 3))
    assert rank_units(scores) == rank_units(scores.mean(axis=2))


def test_the_same_seed_gives_the_same_ranking_in_any_order_of_units() -> None:
    scores = harms(np.random.default_rng(5), [0.0, 0.4, 0.8, 0.1], 50)
    forward, backward = rank_units(scores), rank_units(scores[::-1])
    assert [(u.unit, u.low, u.high) for u in forward.units] == [(3 - u.unit, u.low, u.high) for u in backward.units]


@pytest.mark.parametrize("kind", ["normal", "skewed", "hits"])
@pytest.mark.parametrize("samples", [50, 200])
def test_all_ranks_hold_at_once_as_often_as_promised(kind: str, samples: int) -> None:
    generator, wrong = np.random.default_rng(6), 0
    means = np.array([0.0] * 6 + [0.2, 0.4, 0.4, 0.8])
    best, worst = [1 + (means > m).sum() for m in means], [10 - (means < m).sum() for m in means]
    for _ in range(300):
        scores = harms(generator, list(means), samples)
        if kind == "skewed":
            scores = np.exp(0.7 * (scores - np.c_[means])) + np.c_[means]
        if kind == "hits":
            scores = (generator.random((10, samples)) < 0.1 + np.c_[means]).astype(float)
        ranking = rank_units(scores, plan=Resampling(resamples=300))
        wrong += any(u.low > best[u.unit] or u.high < worst[u.unit] for u in ranking.units)
    assert wrong / 300 <= 0.075


@pytest.mark.parametrize("method", ["pearson", "spearman", "log_pearson"])
def test_coefficients_and_p_values_are_scipys(method: str) -> None:
    generator = np.random.default_rng(7)
    x = generator.gamma(2.0, 1.0, 30)
    y = x * generator.lognormal(0.0, 0.6, 30)
    theirs = {
        "pearson": stats.pearsonr(x, y),
        "spearman": stats.spearmanr(x, y),
        "log_pearson": stats.pearsonr(np.log(x), np.log(y)),
    }[method]
    found = correlate(x, y, method=method)
    assert (found.interval.estimate, found.p_value) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert -1 < found.interval.low < found.interval.estimate < found.interval.high < 1
    assert found == correlate(x, y, method=method)


@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_p_values_of_few_units_count_every_order(method: str) -> None:
    x, y = np.array([1.0, 2.0, 2.0, 5.0, 7.0, 3.0]), np.array([2.0, 1.0, 3.0, 9.0, 4.0, 3.5])
    measure = stats.pearsonr if method == "pearson" else stats.spearmanr
    seen = abs(measure(x, y).statistic)
    every = [abs(measure(x, np.array(order)).statistic) >= seen - 1e-9 for order in itertools.permutations(y)]
    assert correlate(x, y, method=method).p_value == pytest.approx(np.mean(every))


def test_ranks_in_a_resample_are_those_of_the_drawn_values() -> None:
    x = np.array([0.5, 2.0, 2.0, -1.0, 7.0, 0.5, 3.0])
    weights = next(resample_weights(7, Resampling(resamples=200)))
    found = weighted_ranks(weights, x)
    for row, ranks in zip(weights.astype(int), found, strict=True):
        units = np.repeat(np.arange(7), row)
        expected = stats.rankdata(x[units])
        assert ranks[units] == pytest.approx(expected)


@pytest.mark.parametrize(("method", "relation"), [("pearson", 0.6), ("spearman", 0.6), ("pearson", 0.95)])
def test_coverage_of_correlations(method: str, relation: float) -> None:
    generator, covered = np.random.default_rng(8), 0
    true = relation if method == "pearson" else 6 / np.pi * np.arcsin(relation / 2)
    for _ in range(600):
        x, y = generator.normal(size=(2, 40))
        interval = correlate(
            x, relation * x + np.sqrt(1 - relation**2) * y, method=method, plan=Resampling(resamples=300)
        ).interval
        covered += interval.low <= true <= interval.high
    assert 92 <= covered / 6 <= 98


def test_ranks_in_perfect_agreement_are_not_certain() -> None:
    found = correlate(np.arange(10.0), np.arange(10.0) ** 3)
    assert found.interval.estimate == found.interval.high == pytest.approx(1.0)
    assert 0.9 < found.interval.low < 0.99
    assert found.p_value < 1e-6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: correlate([1, 2, 3, 4], [5, 5, 5, 5]), "second: all 4 values are 5"),
        (lambda: correlate([1, 2, 3], [1, 2, 4]), "at least 4"),
        (lambda: correlate([1, 2, 3, 4], [1, 2, 3, 4, 5]), "4 and 5 units"),
        (lambda: correlate([0, 2, 3, 4], [1, 2, 3, 4], method="log_pearson"), "above 0"),
        (lambda: correlate([1, 2, 3, 4], [1, 2, 3, 4], method="spearmann"), "Did you mean 'spearman'"),
        (lambda: rank_units([[1.0, 2.0]]), "1 units and 2 samples"),
        (lambda: rank_units([1.0, 2.0]), "dimension"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        call()
