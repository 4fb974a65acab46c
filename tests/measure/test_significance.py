"""P-values against brute force, scipy and their own error rate under the hypothesis that they test."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from noisescope.core.errors import BadInputError
from noisescope.measure.significance import degradation_p, holm, mcnemar_p, seed_effect_p, sign_flip_p
from noisescope.measure.statistics import Resampling, degradation


def test_holm_is_the_closed_test_of_all_subsets() -> None:
    """Marcus, Peritz and Gabriel 1976: a hypothesis falls when every set that holds it falls, here by Bonferroni."""
    p = np.array([0.01, 0.2, 0.013, 0.04, 0.04])
    sets = [s for size in range(1, 6) for s in itertools.combinations(range(5), size)]
    brute = [max(min(1.0, len(s) * min(p[list(s)])) for s in sets if i in s) for i in range(5)]
    assert holm(p) == pytest.approx(brute)


def test_holm_by_hand() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])


def test_holm_keeps_its_error_over_many_hypotheses() -> None:
    generator = np.random.default_rng(0)
    wrong = sum((holm(np.append(generator.random(20), 1e-6))[:20] <= 0.05).any() for _ in range(4000))
    assert 0.03 < wrong / 4000 < 0.06


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
@pytest.mark.parametrize("samples", [7, 12])
def test_sign_flips_are_all_counted_for_few_samples(samples: int, alternative: str) -> None:
    x = np.random.default_rng(samples).gamma(2.0, 1.0, samples) - 1.2
    theirs = stats.permutation_test(
        (x,), np.mean, permutation_type="samples", alternative=alternative, n_resamples=np.inf
    )
    brute = [np.mean(np.array(s) * x) for s in itertools.product((1, -1), repeat=samples)]
    at_least = np.mean(np.array(brute) >= x.mean() - 1e-12)
    found = sign_flip_p(x, alternative=alternative)
    assert found == pytest.approx(theirs.pvalue)
    if alternative == "greater":
        assert found == pytest.approx(at_least)


def test_sign_flips_are_drawn_for_many_samples() -> None:
    x = np.random.default_rng(1).normal(0.2, 1.0, 100)
    assert sign_flip_p(x) == pytest.approx(stats.ttest_1samp(x, 0.0, alternative="greater").pvalue, abs=0.01)
    assert sign_flip_p(x, plan=Resampling(seed=1)) == sign_flip_p(x, plan=Resampling(seed=1))


def test_samples_that_did_not_move_say_nothing() -> None:
    assert sign_flip_p(np.zeros(30)) == 1.0
    assert sign_flip_p(np.append(np.zeros(50), [1.0, 1.0, 1.0])) == pytest.approx(1 / 8)


def test_a_sample_keeps_its_sign_under_all_seeds() -> None:
    x = np.random.default_rng(2).normal(0.3, 1.0, 10)
    assert sign_flip_p(np.stack([x, x, x])) == pytest.approx(sign_flip_p(x))


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_mcnemar_counts_lost_against_won(alternative: str) -> None:
    clean, noisy = np.repeat([1, 1, 0, 0], (20, 7, 2, 5)), np.repeat([1, 0, 1, 0], (20, 7, 2, 5))
    tail = sum(math.comb(9, k) for k in range(7, 10)) / 2**9
    other = sum(math.comb(9, k) for k in range(8)) / 2**9
    expected = {"greater": tail, "less": other, "two-sided": 2 * tail}[alternative]
    assert mcnemar_p(clean, noisy, alternative=alternative) == pytest.approx(expected)


def test_mcnemar_of_nothing_lost_or_won_is_one() -> None:
    assert mcnemar_p([1, 0, 1], [1, 0, 1]) == 1.0


def nll(generator: np.random.Generator, samples: int, loss: float) -> tuple[np.ndarray, np.ndarray]:
    clean = generator.gamma(4.0, 0.75, samples)
    return clean, clean * (1 + loss + generator.gamma(1.0, 0.1, (3, samples)) - 0.1)


@pytest.mark.parametrize("alternative", ["greater", "less"])
def test_a_degradation_at_its_limit_is_called_beyond_it_as_often_as_promised(alternative: str) -> None:
    generator, wrong = np.random.default_rng(3), 0
    for _ in range(1000):
        clean, noisy = nll(generator, 100, 0.1)
        p = degradation_p(
            clean, noisy, 0.1, higher_is_better=False, alternative=alternative, plan=Resampling(resamples=400)
        )
        wrong += p <= 0.05
    assert 0.03 <= wrong / 1000 <= 0.07


@pytest.mark.parametrize(("alternative", "shift"), [("greater", 0.1), ("less", -0.1)])
def test_hits_at_the_limit_are_called_beyond_it_no_more_often_than_promised(alternative: str, shift: float) -> None:
    generator, wrong, found = np.random.default_rng(4), 0, 0
    for _ in range(1500):
        clean = (generator.random(100) < 0.7).astype(float)
        kept = generator.random((3, 100)) < 0.85
        moved = generator.random((3, 100)) < 0.85 - 1.5 * shift
        wrong += degradation_p(clean, clean * kept, 0.15, alternative=alternative) <= 0.05
        found += degradation_p(clean, clean * moved, 0.15, alternative=alternative) <= 0.05
    assert wrong / 1500 <= 0.06
    assert found / 1500 >= 0.95


def test_p_values_and_intervals_agree() -> None:
    generator = np.random.default_rng(5)
    clean, noisy = nll(generator, 80, 0.1)
    interval = degradation(clean, noisy, higher_is_better=False)
    assert degradation_p(clean, noisy, interval.low, higher_is_better=False) == pytest.approx(0.025, abs=0.006)
    assert degradation_p(clean, noisy, interval.high, higher_is_better=False, alternative="less") == pytest.approx(
        0.025, abs=0.006
    )
    hit = (generator.random(80) < 0.8).astype(float)
    noisy_hit = hit * (generator.random((3, 80)) < 0.8)
    interval = degradation(hit, noisy_hit)
    assert degradation_p(hit, noisy_hit, interval.low) == pytest.approx(0.025, abs=0.006)


def test_an_unchanged_metric_is_no_degradation() -> None:
    clean = np.random.default_rng(6).gamma(4.0, 1.0, 40)
    assert degradation_p(clean, clean) == 1.0
    assert degradation_p(np.ones(40), np.ones((3, 40))) == pytest.approx(0.5)


def test_seeds_that_differ_are_seen_and_others_are_not() -> None:
    generator = np.random.default_rng(7)
    x = generator.normal(size=(3, 50)) + generator.normal(size=50)
    rows = x.T - x.mean(axis=0)[:, None]
    # The textbook table: sums of squares by seed and of what seed and sample leave over.
    by_seed = 50 * ((x.mean(axis=1) - x.mean()) ** 2).sum()
    left = (rows**2).sum() - by_seed
    assert seed_effect_p(x) == pytest.approx(stats.f.sf((by_seed / 2) / (left / 98), 2, 98))
    assert seed_effect_p(x + np.array([[0.0], [0.0], [1.0]])) < 0.001
    assert seed_effect_p(np.stack([x[0], x[0]])) == 1.0
    assert seed_effect_p(np.stack([x[0], x[0] + 1])) == 0.0
    wrong = sum(seed_effect_p(generator.random((3, 50)) < 0.7) <= 0.05 for _ in range(2000))
    assert 0.035 <= wrong / 2000 <= 0.065


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: holm([0.1, 1.2]), "between 0 and 1"),
        (lambda: mcnemar_p([1, 0], [0.5, 1]), "sign_flip_p"),
        (lambda: mcnemar_p([1, 0], [1, 0, 1]), "sign_flip_p"),
        (lambda: degradation_p([1.0, 2.0], [1.0, 2.0], alternative="two-sided"), "unknown alternative"),
        (lambda: sign_flip_p([1.0, 2.0], alternative="more"), "unknown alternative"),
        (lambda: degradation_p([0, 0], [0, 0]), "KL to clean"),
        (lambda: seed_effect_p([[1.0, 2.0]]), "2 seeds"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        call()
