"""Tests that look after every sample: their error by simulation, their bets by a slow loop, and what they save."""

from __future__ import annotations

import math

import numpy as np
import pytest

from noisescope.core.errors import BadInputError
from noisescope.measure.sequential import (
    ACCURACY,
    Decision,
    MetricRange,
    confidence_sequence,
    decide,
    decide_band,
    decide_degradation,
    decide_subgaussian,
    evidence,
    subgaussian_sequence,
)
from noisescope.measure.significance import degradation_differences
from noisescope.measure.verdicts import UNDECIDED, Limits

RUNS = 2000
# Three standard errors of an error rate of 5 % over so many runs.
MOST_WRONG = 0.05 + 3 * math.sqrt(0.05 * 0.95 / RUNS)
WINDOW = Limits((0.05, 0.10, 0.15), ("robust", "moderate", "high", "critical"))
LOG_BAR = math.log(2 / 0.05)


def truncated(generator: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return np.minimum(generator.lognormal(-3.0, 1.2, size), 1.0)


# Values in [0, 1] with their mean: as they come in accuracies, divergences and worse.
BOUNDED = {
    "coin 0.5": (lambda g, s: (g.random(s) < 0.5).astype(float), 0.5),
    "coin 0.05": (lambda g, s: (g.random(s) < 0.05).astype(float), 0.05),
    "coin 0.98": (lambda g, s: (g.random(s) < 0.98).astype(float), 0.98),
    "skewed": (lambda g, s: g.beta(0.2, 2.0, s), 0.2 / 2.2),
    "skewed the other way": (lambda g, s: g.beta(2.0, 0.2, s), 2.0 / 2.2),
    "long tail": (truncated, float(truncated(np.random.default_rng(0), (1000, 2000)).mean())),
    "narrow": (lambda g, s: g.beta(50.0, 50.0, s), 0.5),
}


def losses(generator: np.random.Generator, runs: int, samples: int, loss: float) -> tuple[np.ndarray, np.ndarray]:
    """Clean hits [runs, samples] with accuracy 0.7, and noisy hits under three seeds that share fragile samples."""
    won = 0.03 if loss > 0.02 else 0.0
    lost = (0.7 * loss + 0.3 * won) / 0.7
    clean = (generator.random((runs, samples)) < 0.7).astype(float)
    flips = np.where(
        clean > 0,
        generator.beta(0.5 * lost, 0.5 * (1 - lost), clean.shape),
        generator.beta(0.5 * won, 0.5 * (1 - won), clean.shape) if won else 0.0,
    )
    return clean, np.where(generator.random((3, *clean.shape)) < flips, 1 - clean, clean)


def stops(above: np.ndarray, below: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per run the side first decided, +1, -1 or 0, and after how many samples, or how many there were."""
    never = above.shape[-1] + 1
    up, down = (np.where(e.any(-1), e.argmax(-1) + 1, never) for e in (above >= LOG_BAR, below >= LOG_BAR))
    return np.sign(down - up), np.minimum(np.minimum(up, down), never - 1)


def test_evidence_is_the_capital_of_a_slow_gambler() -> None:
    values, limit = np.random.default_rng(1).random(40) ** 2, 0.25
    above, below = evidence(values, limit, (0.0, 1.0))
    for sign, found, loss in ((1.0, above, 0.25), (-1.0, below, 0.75)):
        capital, total, squares = 1.0, 0.0, 0.25**2
        for t, value in enumerate(values):
            gain = sign * (value - limit)
            mean, square = total / (t + 1), squares / (t + 1)
            bet = min(max(mean / square, 0.0), 0.75 / loss) if t else 0.0
            capital *= 1 + bet * gain
            total, squares = total + gain, squares + gain**2
            assert found[t] == pytest.approx(math.log(capital))


@pytest.mark.parametrize("name", BOUNDED)
def test_a_mean_on_its_limit_is_seldom_called_above_or_below_though_one_looks_every_time(name: str) -> None:
    draw, mean = BOUNDED[name]
    sides, _ = stops(*evidence(draw(np.random.default_rng(2), (RUNS, 1000)), mean, (0.0, 1.0)))
    assert (sides != 0).mean() <= MOST_WRONG


@pytest.mark.parametrize("loss", [0.05, 0.15])
def test_a_degradation_on_its_limit_is_seldom_called_above_or_below(loss: float) -> None:
    clean, noisy = losses(np.random.default_rng(3), RUNS, 400, loss)
    differences = degradation_differences(clean, noisy.mean(axis=0), loss)
    sides, _ = stops(*evidence(differences, 0.0, ACCURACY.support(loss)))
    assert (sides != 0).mean() <= MOST_WRONG


def test_a_mean_beside_its_limit_is_almost_never_called_wrong_and_mostly_called_right() -> None:
    values = np.random.default_rng(4).beta(0.2, 2.0, (RUNS, 1000))
    for limit, right in ((0.06, 1), (0.13, -1)):
        sides, _ = stops(*evidence(values, limit, (0.0, 1.0)))
        assert (sides == -right).mean() <= 0.025
        assert (sides == right).mean() > 0.9


@pytest.mark.parametrize(("loss", "right", "most"), [(0.005, -1, 70), (0.3, 1, 120), (0.5, 1, 45), (0.9, 1, 20)])
def test_what_is_clear_is_decided_early(loss: float, right: int, most: int) -> None:
    """Against a limit of 15 % and a fixed evaluation of 200 samples."""
    clean, noisy = losses(np.random.default_rng(5), 500, 200, loss)
    differences = degradation_differences(clean, noisy.mean(axis=0), 0.15)
    sides, samples = stops(*evidence(differences, 0.0, ACCURACY.support(0.15)))
    assert (sides == right).mean() > 0.9
    assert (sides == -right).mean() < 0.025
    assert samples.mean() < most


def test_a_decision_stays_whatever_comes_after() -> None:
    clean, noisy = (x[..., 0, :] for x in losses(np.random.default_rng(6), 1, 120, 0.5))
    found = [decide_degradation(clean[:n], noisy[:, :n], 0.15) for n in range(2, 121)]
    at = next(d.samples for d in found if d.side == "above")
    assert 5 < at < 100
    assert found[: at - 2] == [Decision("undecided", n) for n in range(2, at)]
    assert set(found[at - 2 :]) == {Decision("above", at)}
    back = decide_degradation(np.append(clean, np.ones(500)), np.append(noisy[0], np.ones(500)), 0.15)
    assert back.side == "above"


@pytest.mark.parametrize(("loss", "name"), [(0.005, "robust"), (0.07, "moderate"), (0.3, "critical")])
def test_bands_are_decided_without_adding_up_their_errors(loss: float, name: str) -> None:
    clean, noisy = losses(np.random.default_rng(7), 150, 600, loss)
    verdicts = [decide_band(clean[r], noisy[:, r], WINDOW) for r in range(150)]
    assert np.mean([v.decided and v.name != name for v in verdicts]) <= 0.05
    if name != "moderate":
        assert np.mean([v.name == name for v in verdicts]) > 0.6
    assert all(name in v.bands or v.decided for v in verdicts)
    assert {v.more_samples for v in verdicts if v.name == UNDECIDED} <= {None}


@pytest.mark.slow
def test_a_figure_on_a_limit_between_bands_is_seldom_put_beyond_its_neighbours() -> None:
    """On a limit both neighbours are right, and only a band beyond them is wrong."""
    clean, noisy = losses(np.random.default_rng(8), RUNS, 400, 0.1)
    names = [decide_band(clean[r], noisy[:, r], WINDOW).name for r in range(RUNS)]
    assert np.mean([name in ("robust", "critical") for name in names]) <= 0.05


def test_undecided_names_the_bands_that_are_left() -> None:
    clean, noisy = losses(np.random.default_rng(9), 1, 30, 0.1)
    found = decide_band(clean[0], noisy[:, 0], WINDOW)
    assert (found.name, found.bands) == (UNDECIDED, WINDOW.names)
    clean, noisy = losses(np.random.default_rng(10), 1, 120, 0.2)
    found = decide_band(clean[0], noisy[:, 0], Limits((-0.5, 0.2), ("better", "same", "worse")))
    assert found.bands == ("same", "worse")


def test_losses_without_a_ceiling_can_be_called_above_and_never_below() -> None:
    generator = np.random.default_rng(11)
    clean = generator.gamma(4.0, 0.75, (RUNS, 300)).clip(0, 8)
    free = MetricRange(higher_is_better=False, clean=(0.0, 8.0), noisy=(0.0, math.inf))
    assert free.support(0.1) == (-8.8, math.inf)
    noisy = clean * generator.lognormal(math.log(1.1) - 0.5, 1.0, clean.shape)
    sides, _ = stops(
        *evidence(degradation_differences(clean, noisy, 0.1, higher_is_better=False), 0, free.support(0.1))
    )
    assert (sides > 0).mean() <= 0.025 + 3 * math.sqrt(0.025 / RUNS)
    assert not (sides < 0).any()
    assert decide_degradation(clean[0], 4 * clean[0], 0.1, free).side == "above"
    assert decide_degradation(clean[0], clean[0] / 4, 0.1, free).side == "undecided"


@pytest.mark.parametrize("name", BOUNDED)
def test_a_confidence_sequence_holds_the_mean_at_all_times(name: str) -> None:
    draw, mean = BOUNDED[name]
    low, high = confidence_sequence(draw(np.random.default_rng(12), (RUNS, 500)) * 3 - 1, (-1.0, 2.0))
    assert ((low > mean * 3 - 1) | (high < mean * 3 - 1)).any(axis=-1).mean() <= MOST_WRONG
    assert (np.diff(low) >= 0).all() and (np.diff(high) <= 0).all()
    assert (high - low)[:, -1].mean() < 0.5


def test_a_subgaussian_sequence_is_robbins_and_holds_the_mean_at_all_times() -> None:
    x = np.random.default_rng(13).normal(0.3, 2.0, (RUNS, 1000))
    low, high = subgaussian_sequence(x, 2.0)
    assert ((low > 0.3) | (high < 0.3)).any(axis=-1).mean() <= MOST_WRONG
    tuning = 200 / (2 * math.log(20) + math.log(1 + 2 * math.log(20)))
    half = math.sqrt((4 + tuning) * math.log((4 + tuning) / (tuning * 0.05**2)))
    assert (low[0, 0], high[0, 0]) == pytest.approx((x[0, 0] - half, x[0, 0] + half))
    assert decide_subgaussian(x[0], -0.5, 2.0).side == "above"
    assert decide_subgaussian(x[0], 1.2, 2.0).side == "below"
    assert decide_subgaussian(x[0, :20], 0.3, 2.0) == Decision("undecided", 20)


def test_a_limit_that_no_value_can_reach_needs_no_samples() -> None:
    assert decide([0.5, 0.5], 1.0, (0.0, 1.0)) == Decision("below", 0)
    assert decide([0.5, 0.5], 0.0, (0.0, 1.0)) == Decision("above", 0)
    # An operator score above 3 at scale 0.5 would be a loss of 150 %.
    assert decide_degradation([1.0, 1.0], [0.0, 0.0], 1.5) == Decision("below", 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decide([0.5, 1.5], 0.5, (0.0, 1.0)), "expected all of them in"),
        (lambda: evidence([0.5], 1.0, (0.0, 1.0)), "nothing to test"),
        (lambda: decide([0.5], 0.5, (0.0, 1.0), alpha=5), "alpha 5"),
        (lambda: decide([], 0.5, (0.0, 1.0)), "at least one value"),
        (lambda: confidence_sequence([0.5, 2.0], (0.0, 1.0)), "every value inside"),
        (lambda: decide_subgaussian([0.5], 0.5, 0.0), "spread 0.0"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        call()
