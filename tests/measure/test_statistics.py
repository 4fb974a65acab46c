"""Intervals against closed forms, slow loops and scipy, their coverage by simulation, and verdicts between limits."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from scipy import stats

from noisescope.core.errors import BadInputError
from noisescope.measure.statistics import (
    Interval,
    Resampling,
    degradation,
    difference,
    mean_interval,
    proportion,
    resampled_means,
)
from noisescope.measure.verdicts import UNDECIDED, Limits, judge

WINDOW = Limits((0.05, 0.10, 0.15), ("robust", "moderate", "high", "critical"))
OPERATOR = Limits((1.5, 3.0), ("robust", "moderate", "critical"))


def hits(generator: np.random.Generator, samples: int, accuracy: float, loss: float) -> tuple[np.ndarray, np.ndarray]:
    """Clean hits [samples] and noisy hits [3, samples]; some samples are fragile under every seed, most under none."""
    won = 0.03
    lost = (accuracy * loss + (1 - accuracy) * won) / accuracy
    clean = (generator.random(samples) < accuracy).astype(float)
    flips = np.where(
        clean > 0,
        generator.beta(0.5 * lost, 0.5 * (1 - lost), samples),
        generator.beta(0.5 * won, 0.5 * (1 - won), samples),
    )
    flipped = generator.random((3, samples)) < flips
    return clean, np.where(flipped, 1 - clean, clean)


def test_a_mean_interval_is_the_percentile_t_of_a_slow_loop() -> None:
    x = np.array([0.3, 1.9, 0.2, 5.0, 2.2, 0.7])
    plan = Resampling(confidence=0.9, resamples=500, seed=3)
    draws = np.random.Generator(np.random.Philox(key=3)).integers(0, 6, size=(500, 6))
    statistics = []
    for row in draws:
        y = x[row]
        if y.std(ddof=1) > 0:
            statistics.append((y.mean() - x.mean()) / (y.std(ddof=1) / math.sqrt(6)))
    error = x.std(ddof=1) / math.sqrt(6)
    low, high = np.quantile(statistics, [0.05, 0.95])
    found = mean_interval(x, plan=plan)
    assert (found.estimate, found.confidence, found.samples) == (x.mean(), 0.9, 6)
    assert found.low == pytest.approx(x.mean() - high * error)
    assert found.high == pytest.approx(x.mean() - low * error)


def test_a_degradation_is_the_percentile_t_of_a_slow_loop() -> None:
    clean, noisy = np.array([2.0, 3.0, 1.5, 4.0, 2.5]), np.array([2.2, 3.9, 1.4, 4.1, 3.3])
    plan = Resampling(resamples=300, seed=1)

    def ratio(c: np.ndarray, n: np.ndarray) -> tuple[float, float]:
        growth = n.mean() / c.mean() - 1
        residual = n - (1 + growth) * c
        return growth, residual.std(ddof=1) / math.sqrt(5) / c.mean()

    growth, error = ratio(clean, noisy)
    statistics = []
    for row in np.random.Generator(np.random.Philox(key=1)).integers(0, 5, size=(300, 5)):
        drawn, own = ratio(clean[row], noisy[row])
        if own > 1e-9:
            statistics.append((drawn - growth) / own)
    low, high = np.quantile(statistics, [0.025, 0.975])
    found = degradation(clean, noisy, higher_is_better=False, plan=plan)
    assert found.estimate == pytest.approx(growth)
    assert (found.low, found.high) == pytest.approx((growth - high * error, growth - low * error))


def test_resampled_means_have_the_distribution_of_all_resamples() -> None:
    x = np.array([1.0, 2.0, 4.0])
    exact = sorted(np.mean(draw) for draw in itertools.product(x, repeat=3))
    drawn = np.sort(resampled_means(x[:, None], Resampling(resamples=27_000))[:, 0])
    assert stats.wasserstein_distance(exact, drawn) < 0.02


def test_resampled_means_agree_with_scipy() -> None:
    x = np.random.default_rng(0).gamma(2.0, 1.0, 80)
    theirs = stats.bootstrap((x,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1))
    ours = np.quantile(resampled_means(x[:, None], Resampling(resamples=20_000)), [0.025, 0.975])
    assert ours == pytest.approx(list(theirs.confidence_interval), abs=0.02)


def test_blocks_of_resamples_do_not_show() -> None:
    x = np.arange(500.0)
    once = np.random.Generator(np.random.Philox(key=4)).integers(0, 500, size=(1000, 500))
    assert resampled_means(x[:, None], Resampling(resamples=1000, seed=4))[:, 0] == pytest.approx(x[once].mean(axis=1))


def test_paired_hits_follow_agresti_and_min_with_three_quarters_in_each_cell() -> None:
    clean, noisy = np.repeat([1.0, 1.0, 0.0, 0.0], (30, 6, 2, 12)), np.repeat([1.0, 0.0, 1.0, 0.0], (30, 6, 2, 12))
    total, lost, won = 53, 6.75, 2.75
    estimate = (lost - won) / total
    error = math.sqrt((lost + won) - (lost - won) ** 2 / total) / total
    found = difference(clean, noisy)
    half = stats.t.ppf(0.975, 49) * error
    assert found.estimate == pytest.approx(4 / 50)
    assert (found.low, found.high) == pytest.approx((estimate - half, estimate + half))


def test_a_mean_of_hits_follows_agresti_and_coull() -> None:
    z2 = stats.norm.ppf(0.975) ** 2
    total = 40 + z2
    share = (31 + z2 / 2) / total
    half = stats.t.ppf(0.975, 39) * math.sqrt(share * (1 - share) / total)
    found = mean_interval(np.repeat([1.0, 0.0], (31, 9)))
    assert (found.estimate, found.low, found.high) == pytest.approx((31 / 40, share - half, share + half))


@pytest.mark.parametrize(("count", "samples"), [(0, 20), (3, 20), (20, 20), (170, 200)])
def test_a_proportion_is_wilsons(count: int, samples: int) -> None:
    theirs = stats.binomtest(count, samples).proportion_ci(0.95, method="wilson")
    found = proportion(count, samples)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_degradation_by_hand() -> None:
    assert degradation([1, 1, 1, 1, 0], [[1, 1, 0, 1, 0], [1, 0, 0, 1, 0]]).estimate == pytest.approx(1 - 2.5 / 4)
    assert degradation([2.0, 4.0], [3.0, 4.5], higher_is_better=False).estimate == pytest.approx(0.25)
    assert degradation([2.0, 4.0], [3.0, 4.5]).estimate == pytest.approx(-0.25)


def test_what_is_better_turns_the_interval_round() -> None:
    generator = np.random.default_rng(2)
    clean = generator.gamma(4.0, 1.0, 60)
    noisy = clean * generator.normal(1.1, 0.2, (3, 60))
    worse = degradation(clean, noisy, higher_is_better=False)
    assert degradation(clean, noisy) == worse.scaled(-1.0)
    assert worse.low < worse.estimate < worse.high


def test_a_tiny_degradation_keeps_its_digits() -> None:
    clean = np.random.default_rng(3).gamma(4.0, 1.0, 60)
    moved = clean * np.random.default_rng(4).normal(1e-9, 2e-10, 60)
    large, small = (degradation(clean, clean + moved * k, higher_is_better=False) for k in (1e6, 1.0))
    assert [small.low, small.estimate, small.high] == pytest.approx(
        [v * 1e-6 for v in (large.low, large.estimate, large.high)], rel=1e-3
    )


def test_an_unchanged_figure_has_no_width() -> None:
    clean = np.random.default_rng(5).gamma(4.0, 1.0, 60)
    assert degradation(clean, np.stack([clean, clean])) == Interval(0.0, 0.0, 0.0, 0.95, 60)


def test_hits_that_all_stay_leave_room_for_rare_losses() -> None:
    for samples in (20, 50, 200):
        found = degradation(np.ones(samples), np.ones((3, samples)))
        # Of n samples none was lost: a share of 3 / n may be, at 95 %.
        assert found.low < 0.0 == found.estimate < 2 / samples < found.high < 4 / samples


def test_hits_that_are_all_lost_are_a_degradation_of_one() -> None:
    found = degradation(np.repeat([1.0, 0.0], (30, 20)), np.zeros((3, 50)))
    assert found.estimate == found.high == 1.0
    assert 0.85 < found.low < 1.0


def test_more_of_the_same_seed_is_not_more_evidence() -> None:
    clean, noisy = hits(np.random.default_rng(6), 100, 0.7, 0.1)
    assert degradation(clean, noisy[:1]) == degradation(clean, np.repeat(noisy[:1], 5, axis=0))


def test_few_samples_that_differ_get_an_interval_all_the_same() -> None:
    clean = np.linspace(1.0, 2.0, 30)
    noisy = clean.copy()
    noisy[3] = 2.0
    found = degradation(clean, noisy, higher_is_better=False)
    assert math.isfinite(found.low) and found.low < found.estimate < found.high < 0.2


def test_equal_seeds_give_equal_intervals_and_the_global_generator_is_left_alone() -> None:
    x = np.random.default_rng(7).gamma(1.0, 1.0, 50)
    np.random.seed(11)
    before = np.random.get_state()[1].copy()
    first, other = mean_interval(x, plan=Resampling(seed=5)), mean_interval(x, plan=Resampling(seed=-6))
    assert mean_interval(x, plan=Resampling(seed=5)) == first != other
    assert (np.random.get_state()[1] == before).all()


def test_a_clean_score_of_zero_names_metrics_that_work() -> None:
    with pytest.raises(BadInputError, match="KL to clean, NLL, or top-1 agreement"):
        degradation(np.zeros(20), np.zeros((3, 20)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_interval([1.0, math.nan, math.inf]), "2 of 3 values are not finite"),
        (lambda: mean_interval([1.0]), "expected at least 2"),
        (lambda: mean_interval([]), "at least one value"),
        (lambda: mean_interval(np.zeros((2, 2, 2))), "expected 1 or 2 dimension"),
        (lambda: degradation([1.0, 2.0], [1.0, 2.0, 3.0]), "clean has 2 samples and noisy 3"),
        (lambda: proportion(3, 2), "3 hits of 2"),
        (lambda: Resampling(confidence=95), "confidence 95"),
        (lambda: Resampling(resamples=10), "10 resamples"),
        (lambda: Limits((3.0, 1.5), ("a", "b", "c")), "rising"),
        (lambda: Limits((1.5, 3.0), ("a", "b")), "one more name"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        call()


@pytest.mark.parametrize(
    ("samples", "accuracy", "loss", "most"),
    [
        (50, 0.7, 0.2, 97),
        (50, 0.7, 0.4, 97),
        (200, 0.7, 0.05, 97),
        (200, 0.7, 0.2, 97),
        (200, 0.95, 0.1, 97),
        # Where two or three samples in all are expected to be lost, no interval can be both safe and tight.
        (50, 0.7, 0.03, 100),
        (50, 0.7, 0.1, 98),
        (50, 0.95, 0.05, 99),
    ],
)
def test_coverage_of_degradation_of_accuracy(samples: int, accuracy: float, loss: float, most: float) -> None:
    generator, covered = np.random.default_rng(8), 0
    for _ in range(2000):
        found = degradation(*hits(generator, samples, accuracy, loss))
        covered += found.low <= loss <= found.high
    assert 93 <= covered / 20 <= most


@pytest.mark.parametrize(("samples", "loss"), [(50, 0.05), (50, 0.06), (50, 0.1), (100, 0.03), (200, 0.02)])
def test_coverage_where_a_few_samples_are_lost_under_every_seed_and_none_is_won(samples: int, loss: float) -> None:
    generator, covered = np.random.default_rng(12), 0
    for _ in range(2000):
        clean = (generator.random(samples) < 0.7).astype(float)
        found = degradation(clean, clean * (generator.random(samples) >= loss))
        covered += found.low <= loss <= found.high
    assert covered / 20 >= 93


@pytest.mark.parametrize("samples", [50, 200])
def test_coverage_of_a_skewed_mean(samples: int) -> None:
    """KL per sample: most samples barely move, a few move far, and a sample's seeds resemble each other."""
    generator, covered = np.random.default_rng(9), 0
    for _ in range(1000):
        divergence = generator.gamma(1.0, 0.1, samples) * generator.lognormal(-0.125, 0.5, (3, samples))
        found = mean_interval(divergence, plan=Resampling(resamples=600))
        covered += found.low <= 0.1 <= found.high
    assert 93 <= covered / 10 <= 97


@pytest.mark.parametrize("samples", [50, 200])
def test_coverage_of_degradation_of_nll(samples: int) -> None:
    generator, covered = np.random.default_rng(10), 0
    for _ in range(1000):
        clean = generator.gamma(4.0, 0.75, samples)
        noisy = clean * (1 + generator.normal(0.1, 0.15, samples) * generator.lognormal(-0.125, 0.5, (3, samples)))
        found = degradation(clean, noisy, higher_is_better=False, plan=Resampling(resamples=600))
        covered += found.low <= 0.1 <= found.high
    assert 93 <= covered / 10 <= 97


@pytest.mark.slow
def test_ten_thousand_resamples_take_less_than_a_tenth_of_a_second() -> None:
    generator = np.random.default_rng(11)
    clean = generator.gamma(4.0, 0.75, 200)
    noisy = clean * generator.normal(1.1, 0.2, (3, 200))
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        degradation(clean, noisy, higher_is_better=False)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.1


@pytest.mark.parametrize(
    ("limits", "figure", "name"),
    [
        (WINDOW, -0.2, "robust"),
        (WINDOW, 0.0499, "robust"),
        (WINDOW, 0.05, "moderate"),
        (WINDOW, 0.10, "high"),
        (WINDOW, 0.15, "high"),
        (WINDOW, 0.1501, "critical"),
        (OPERATOR, 1.49, "robust"),
        (OPERATOR, 1.5, "moderate"),
        (OPERATOR, 3.0, "moderate"),
        (OPERATOR, 3.01, "critical"),
        (Limits((0.15,), ("passed", "failed")), 0.15, "passed"),
        (Limits((0.15,), ("passed", "failed")), 0.16, "failed"),
    ],
)
def test_a_figure_has_its_band(limits: Limits, figure: float, name: str) -> None:
    assert limits.name(figure) == name


def test_an_interval_inside_one_band_is_decided() -> None:
    found = judge(Interval(0.12, 0.101, 0.149, 0.95, 100), WINDOW)
    assert (found.name, found.bands, found.more_samples, found.decided) == ("high", ("high",), 0, True)


def test_an_interval_across_a_limit_says_how_many_samples_are_lacking() -> None:
    # 0.10 +- 0.06 reaches past 0.05 until it is +- 0.05: (6 / 5)^2 * 100 = 144 samples.
    found = judge(Interval(0.08, 0.02, 0.0999, 0.95, 100), Limits((0.05,), ("robust", "moderate")))
    assert (found.name, found.bands, found.more_samples) == (UNDECIDED, ("robust", "moderate"), 300)
    assert judge(Interval(0.10, 0.04, 0.16, 0.95, 100), Limits((0.05,), ("a", "b"))).more_samples == 44


def test_the_nearest_straddled_limit_rules() -> None:
    wide = Interval(1.6, 1.0, 3.4, 0.95, 50)
    found = judge(wide, OPERATOR)
    assert found.bands == ("robust", "moderate", "critical")
    total = wide.samples + found.more_samples
    shrink = math.sqrt(wide.samples / total)
    assert judge(Interval(1.6, 1.6 - 0.6 * shrink, 1.6 + 1.8 * shrink, 0.95, total), OPERATOR).decided
    shrink = math.sqrt(wide.samples / (total - 1))
    assert not judge(Interval(1.6, 1.6 - 0.6 * shrink, 1.6 + 1.8 * shrink, 0.95, total), OPERATOR).decided


def test_an_estimate_on_a_limit_is_decided_by_no_number_of_samples() -> None:
    found = judge(Interval(0.05, 0.01, 0.09, 0.95, 100), WINDOW)
    assert (found.decided, found.more_samples) == (False, None)


def test_a_score_is_a_scaled_interval() -> None:
    assert Interval(0.1, 0.05, 0.2, 0.95, 9).scaled(20) == Interval(2.0, 1.0, 4.0, 0.95, 9)
    assert Interval(0.1, 0.05, 0.2, 0.95, 9).scaled(-1) == Interval(-0.1, -0.2, -0.05, 0.95, 9)
