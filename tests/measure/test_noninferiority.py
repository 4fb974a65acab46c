"""Costs of two models against each other: by hand, against a slow loop, and by how often the test is wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from noisescope.core.errors import BadInputError
from noisescope.measure.noninferiority import Cost, beyond, excess
from noisescope.measure.statistics import Resampling, resample_weights

QUICK = Resampling(0.9, 200)


def costs(seed: int, samples: int, ratio: float, tail: float = 0.8) -> tuple[Cost, Cost]:
    """Two models on the same samples; noise costs the first `ratio` times what it costs the second, 5 % in the mean."""
    draw = np.random.default_rng(seed)
    clean, weight = draw.lognormal(0.5, 0.4, samples), draw.lognormal(-(tail**2) / 2, tail, samples)
    other = Cost(0.05 * weight * clean * (1 + 0.3 * draw.standard_normal(samples)), clean)
    mine = clean * draw.lognormal(0.0, 0.05, samples)
    return Cost(0.05 * ratio * weight * mine * (1 + 0.3 * draw.standard_normal(samples)), mine), other


def hits(seed: int, samples: int, ratio: float) -> tuple[Cost, Cost]:
    """As `costs`, of hits and misses under 3 seeds; of 60 % that are right, 10 % are lost."""
    draw = np.random.default_rng(seed)
    skill, luck = draw.standard_normal(samples), draw.standard_normal(samples)
    found = []
    for share in (0.1 * ratio, 0.1):
        clean = (math.sqrt(0.8) * skill + math.sqrt(0.2) * draw.standard_normal(samples) < stats.norm.ppf(0.6)) * 1.0
        own = [math.sqrt(0.5) * luck + math.sqrt(0.5) * draw.standard_normal(samples) for _ in range(3)]
        noisy = np.mean([np.where(one < stats.norm.ppf(share), 0.0, clean) for one in own], axis=0)
        found.append(Cost(clean - noisy, clean, hits=True))
    return found[0], found[1]


def test_the_excess_is_the_difference_of_the_shares() -> None:
    mine, other = Cost(np.array([1.0, 2.0, 3.0]), np.full(3, 10.0)), Cost(np.array([0.5, 0.5, 2.0]), np.full(3, 5.0))
    assert excess(mine, other, 1.5).interval.estimate == pytest.approx(0.2 - 1.5 * 0.2)
    assert beyond(mine, 0.15).interval.estimate == pytest.approx(0.05)


def test_of_logarithms_the_cost_is_that_of_the_geometric_mean() -> None:
    mine, other = (Cost(np.log([a, b]), np.ones(2), logarithmic=True) for a, b in ((1.2, 1.8), (1.1, 1.1)))
    assert excess(mine, other, 2.0).interval.estimate == pytest.approx(math.sqrt(1.2 * 1.8) - 1 - 2 * 0.1)


@pytest.mark.parametrize("logarithmic", [False, True])
def test_the_bootstrap_is_that_of_a_slow_loop(logarithmic: bool) -> None:
    draw, plan = np.random.default_rng(3), Resampling(0.9, 300)
    columns = [draw.lognormal(-1, 0.5, 30), draw.lognormal(0.5, 0.3, 30)] * 2
    columns = [column * draw.lognormal(0, 0.2, 30) for column in columns]
    if logarithmic:
        columns[1] = columns[3] = np.ones(30)

    def value(x: np.ndarray[Any, Any]) -> float:
        ratios = [x[0] / x[1], x[2] / x[3]]
        first, second = map(math.expm1, ratios) if logarithmic else ratios
        return first - 1.2 * second

    def studentised(rows: np.ndarray[Any, Any]) -> tuple[float, float]:
        mean = rows.mean(axis=0)
        steps = [1e-6 * np.eye(4)[i] for i in range(4)]
        slope = np.array([(value(mean + step) - value(mean - step)) / 2e-6 for step in steps])
        return value(mean), math.sqrt(slope @ np.cov(rows.T, bias=True) @ slope / (len(rows) - 1))

    rows = np.stack(columns, axis=1)
    seen, error = studentised(rows)
    pulls = []
    for weights in np.concatenate(list(resample_weights(30, plan))):
        at, spread = studentised(np.repeat(rows, weights.astype(int), axis=0))
        pulls.append((at - seen) / spread)
    found = excess(*(Cost(columns[i], columns[i + 1], logarithmic) for i in (0, 2)), 1.2, plan=plan)
    low, high = np.quantile(pulls, (0.05, 0.95))
    reach = stats.t.ppf(0.95, 29) * error
    assert found.interval.low == pytest.approx(seen - max(high * error, reach), rel=1e-4)
    assert found.interval.high == pytest.approx(seen + max(-low * error, reach), rel=1e-4)
    above = (1 + sum(pull >= seen / error for pull in pulls)) / 301
    assert found.p_above == pytest.approx(max(above, stats.t.sf(seen / error, 29)))


def test_a_model_is_not_worse_than_itself() -> None:
    mine, _ = costs(0, 50, 1.0)
    found = excess(mine, mine, 1.2, plan=QUICK)
    assert found.p_above > 0.99 and found.p_below <= 2 / 201
    nothing = Cost(np.zeros(50), np.ones(50))
    assert (excess(nothing, nothing, 1.2).p_above, excess(nothing, nothing, 1.2).p_below) == (1.0, 1.0)


@pytest.mark.parametrize(("make", "power"), [(costs, 0.9), (hits, 0.2)])
def test_a_model_at_its_limit_fails_as_often_as_allowed_and_twice_the_cost_is_seen(make: Any, power: float) -> None:
    # 400 draws of a rate of 0.05 are below 0.085 but for one case in a thousand.
    at_limit = [excess(*make(seed, 50, 1.2), 1.2, plan=QUICK) for seed in range(400)]
    assert np.mean([one.p_above <= 0.05 for one in at_limit]) < 0.085
    assert np.mean([one.p_below <= 0.05 for one in at_limit]) < 0.085
    twice = [excess(*make(seed, 50, 2.0), 1.2, plan=QUICK) for seed in range(100)]
    assert np.mean([one.p_above <= 0.05 for one in twice]) > power


def test_what_does_not_fit_is_refused() -> None:
    mine, other = costs(0, 50, 1.0)
    with pytest.raises(BadInputError, match="same samples"):
        excess(mine, Cost(other.harm[:40], other.clean[:40]), 1.2)
    with pytest.raises(BadInputError, match="needs one above 0"):
        Cost(np.ones(3), np.zeros(3))
    with pytest.raises(BadInputError, match="not finite"):
        Cost(np.array([1.0, math.nan]), np.ones(2))
