"""Harm in each metric's unit by hand, and how often verdicts that stop early are wrong."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from diagnose.synthetic import setting
from noisescope.core.errors import BadInputError
from noisescope.diagnose.harm import Measured, interval_of, judged, looks, p_values, shared, yardstick
from noisescope.diagnose.window import BANDS

SHAPES = {"accuracy": "choice"}


def of(metric: str, clean: list[float], *noisy: list[float]) -> float:
    by = yardstick(setting(metric=metric, shape=SHAPES.get(metric, "text")))
    return interval_of(by, Measured(tuple(clean), tuple(map(tuple, noisy))), 0.95).estimate


def test_harm_is_what_is_lost_of_the_clean_score() -> None:
    # 3 of 4 right, then 2 and 1: a mean of 1.5, half of what there was is lost.
    assert of("accuracy", [1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]) == pytest.approx(0.5)
    # (3.3 - 3) / 3 = 0.1.
    assert of("nll", [1, 2, 3, 6], [1.2, 2.2, 3.3, 6.5]) == pytest.approx(0.1)
    # Perplexities are averaged by their logarithms: each grows by a tenth.
    assert of("perplexity", [2, 30, 400], [2.2, 33, 440]) == pytest.approx(0.1)
    assert of("top1_agreement", [1, 1, 1, 1], [1, 0.5, 1, 0.9]) == pytest.approx(0.15)


def test_harm_of_a_metric_that_is_nothing_when_clean_is_the_value_itself() -> None:
    assert of("kl_to_clean", [0, 0, 0], [0.1, 0.2, 0.6]) == pytest.approx(0.3)
    assert not yardstick(setting(metric="kl_to_clean", shape="text")).is_share


def test_a_clean_score_of_nothing_is_refused_with_metrics_that_work() -> None:
    with pytest.raises(BadInputError, match=r"undefined.*nll"):
        yardstick(setting()).check_clean([0.0, 0.0])
    yardstick(setting(metric="kl_to_clean", shape="text")).check_clean([0.0, 0.0])


@pytest.mark.parametrize("metric", ["accuracy", "nll"])
@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("exhaustive", [True, False])
def test_all_looks_together_have_no_more_than_the_allowed_error(
    metric: str, seeds: tuple[int, ...], exhaustive: bool
) -> None:
    planned = looks(setting(metric=metric, shape=SHAPES.get(metric, "text"), seeds=seeds, exhaustive=exhaustive))
    fixed = [look.share for look in planned if not look.anytime]
    anytime = {look.share for look in planned if look.anytime}
    assert math.fsum(fixed) + math.fsum(anytime) <= 1.0 + 1e-12
    assert len(anytime) <= 1
    assert planned[-1].rounds == len(seeds)
    assert len(planned) == 1 or not exhaustive


def draw(metric: str, truth: float, samples: int, random: np.random.Generator) -> Measured:
    """Three rounds; a sample keeps much of its luck in all of them. The planted degradation is the truth."""
    if metric == "accuracy":
        clean, luck = (random.random(samples) < 0.8).astype(float), random.random(samples)
        own = [random.random(samples) < 0.7 for _ in range(3)]
        rows = [np.where(np.where(mine, luck, random.random(samples)) < truth, 0.0, clean) for mine in own]
    else:
        clean, weight = random.lognormal(0.5, 0.4, samples), random.lognormal(-0.5, 1.0, samples)
        rows = [clean * (1 + truth * weight * random.lognormal(-0.02, 0.2, samples)) for _ in range(3)]
    return Measured(tuple(clean.tolist()), tuple(tuple(row.tolist()) for row in rows))


def verdicts(metric: str, truth: float, samples: int, runs: int) -> Counter[str]:
    """How often each band is decided on, stopping at the first look that decides."""
    asked = setting(metric=metric, shape=SHAPES.get(metric, "text"), samples=samples, resamples=800)
    random, found = np.random.default_rng(11), Counter[str]()
    for _ in range(runs):
        measured = draw(metric, truth, samples, random)
        names = (judged(asked, measured, look, BANDS).name for look in looks(asked))
        found[next((name for name in names if name != "undecided"), "undecided")] += 1
    return found


@pytest.mark.parametrize(("metric", "samples"), [("accuracy", 100), ("accuracy", 200), ("nll", 100)])
@pytest.mark.parametrize("limit", [0.05, 0.15])
def test_a_verdict_that_stops_early_is_wrong_no_more_often_than_allowed(
    metric: str, samples: int, limit: float
) -> None:
    """On a limit both sides are wrong, which is as hard as it gets."""
    runs = 500
    found = verdicts(metric, limit, samples, runs)
    # 5 % and two and a half standard errors of a share of 5 % in 500 runs.
    assert runs - found["undecided"] <= (0.05 + 2.5 * math.sqrt(0.05 * 0.95 / runs)) * runs


@pytest.mark.parametrize(("metric", "truth", "name"), [("accuracy", 0.35, "critical"), ("nll", 0.01, "robust")])
def test_a_verdict_far_from_every_limit_is_reached(metric: str, truth: float, name: str) -> None:
    assert verdicts(metric, truth, 200, 50)[name] >= 45


def test_p_values_stay_valid_whichever_look_measuring_ends_at() -> None:
    """On the limit, a p-value below 0.025 is to be had in 2.5 % of runs at most, early looks included."""
    asked, random, runs = setting(samples=100, resamples=800), np.random.default_rng(5), 400
    small = 0
    for _ in range(runs):
        measured = draw("accuracy", 0.10, 100, random)
        small += p_values(asked, measured.part(100, 3), BANDS, 1)[1] <= 0.025
    assert small <= (0.025 + 2.5 * math.sqrt(0.025 * 0.975 / runs)) * runs


def test_p_values_of_great_harm_are_fine_enough_to_be_adjusted_for_many() -> None:
    asked, random = setting(metric="nll", shape="text", samples=100, resamples=100), np.random.default_rng(5)
    measured = draw("nll", 0.8, 100, random).part(50, 1)
    assert all(200 * p <= asked.alpha / 2 for p in p_values(asked, measured, BANDS, 200))


def test_what_is_paired_has_the_same_samples_and_rounds() -> None:
    long = Measured((1.0, 2.0, 3.0), ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)))
    short = Measured((1.0, 2.0), ((7.0, 8.0),))
    assert shared([long, short]) == [Measured((1.0, 2.0), ((1.0, 2.0),)), short]
