"""Means over items and training seeds: figures by hand, and intervals that hold as often as they say."""

import numpy as np
import pytest
from scipy import stats

from noisescope.core.errors import BadInputError
from noisescope.measure.crossed import crossed_mean, retained


def test_a_table_by_hand():
    # Means 2 and 4 of the seeds, 2, 3 and 4 of the items: MS of seeds 6, of items 2, nothing left over.
    found = crossed_mean([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]])
    assert found.estimate == 3.0
    assert found.error == pytest.approx(np.sqrt((6 + 2 - 0) / 6))
    assert found.freedom == pytest.approx(8**2 / (6**2 / 1 + 2**2 / 2))
    half = stats.t.ppf(0.975, found.freedom) * found.error
    assert (found.interval().low, found.interval().high) == pytest.approx((3 - half, 3 + half))
    assert found.interval().samples == 3


def test_p_values_and_limits_of_the_interval_are_of_one_mind():
    found = crossed_mean(np.random.default_rng(0).normal(0.3, 1.0, (3, 80)))
    interval = found.interval(0.95)
    assert found.p_above(interval.low) == pytest.approx(0.025) and found.p_below(interval.high) == pytest.approx(0.025)
    assert found.p_above(0.0) + found.p_below(0.0) == pytest.approx(1.0)


@pytest.mark.parametrize(("of_seeds", "of_items"), [(0.0, 0.0), (0.3, 0.0), (0.0, 1.0), (0.3, 1.0)])
def test_intervals_hold_for_other_seeds_and_other_items(of_seeds, of_items):
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        seeds, items = of_seeds * draw.normal(size=(3, 1)), of_items * draw.normal(size=(1, 60))
        held += (at := crossed_mean(seeds + items + draw.normal(size=(3, 60))).interval(0.95)).low < 0 < at.high
    assert held / 400 > 0.915


def test_an_interval_that_ignores_the_seeds_would_not_hold():
    """The reason for all this: with seeds that differ, items alone are far too sure."""
    draw = np.random.default_rng(2)
    values = [0.3 * draw.normal(size=(3, 1)) + draw.normal(size=(3, 200)) for _ in range(150)]
    naive = [abs(x.mean()) < 1.96 * x.mean(axis=0).std(ddof=1) / np.sqrt(200) for x in values]
    honest = [abs(x.mean()) < crossed_mean(x).interval().high - x.mean() for x in values]
    assert np.mean(naive) < 0.6
    assert np.mean(honest) > 0.9


def test_equal_arms_are_not_beyond_doubt():
    found = crossed_mean(np.zeros((3, 200)))
    assert found.estimate == 0.0 and found.error == pytest.approx(1 / 600) and found.freedom >= 2


def test_retention_is_a_ratio_of_means_and_turns_round_where_less_is_better():
    clean, noisy = [[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]], [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert retained(clean, noisy).mean() == pytest.approx(0.5)
    assert retained([[1.0, 2.0]], [[2.0, 4.0]], higher_is_better=False).mean() == pytest.approx(0.5)


def test_the_interval_of_a_retention_holds():
    draw = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        clean = (draw.random((3, 300)) < 0.8).astype(float)
        noisy = clean * (draw.random((3, 300)) < 0.7)
        at = crossed_mean(retained(clean, noisy)).interval()
        held += at.low < 0.7 < at.high
    assert held / 200 > 0.915


@pytest.mark.parametrize("values", [[[1.0, 2.0]], [[1.0], [2.0]], [1.0, 2.0], [[1.0, float("nan")], [1.0, 2.0]]])
def test_too_few_or_strange_values_are_refused(values):
    with pytest.raises(BadInputError):
        crossed_mean(values)


def test_nothing_is_a_share_of_nothing():
    with pytest.raises(BadInputError, match="share"):
        retained([[0.0, 0.0]], [[0.0, 0.0]])
