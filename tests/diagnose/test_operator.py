"""Level 1 on made-up models: what is planted is named, and nothing else is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from diagnose.synthetic import OPERATORS, World, ask, setting
from noisescope.core.errors import BadInputError
from noisescope.core.records import Reading, Trial
from noisescope.diagnose.setting import Unit
from noisescope.diagnose.whole import Diagnosis, Question


def diagnosed(world: World, **changes: Any) -> Diagnosis:
    shape = "choice" if world.metric == "accuracy" else "text"
    return ask(Question(setting(metric=world.metric, shape=shape, samples=world.samples, **changes)), world)


def verdicts(found: Diagnosis) -> dict[str, str]:
    return {result.operator: result.verdict.name for result in found.operators}


@pytest.mark.parametrize("metric", ["accuracy", "nll", "perplexity", "top1_agreement"])
def test_a_planted_fragile_operator_is_critical_and_ranks_first(metric: str) -> None:
    found = diagnosed(World(metric=metric, operators={"silu": 0.32, "matmul": 0.01}, base=0.004))
    assert verdicts(found) == dict.fromkeys(OPERATORS, "ROBUST") | {"silu": "CRITICAL"}
    first = found.operators[0]
    assert (first.operator, first.rank.low, first.rank.high) == ("silu", 1, 1)
    assert found.findings[0].severity == "critical" and "silu" in found.findings[0].statement
    assert found.findings[0].evidence and found.risk.critical_operators == 1


@pytest.mark.parametrize("metric", ["accuracy", "nll"])
def test_where_nothing_is_planted_nothing_is_found_and_no_order_is_claimed(metric: str) -> None:
    for seed in range(5):
        found = diagnosed(World(metric=metric, base=0.003, seed=seed))
        assert set(verdicts(found).values()) == {"ROBUST"} and not found.findings and found.risk.level == "LOW"
    assert diagnosed(World(metric=metric, base=0.003)).ties


def test_the_score_is_the_degradation_over_the_scale() -> None:
    world = World(metric="nll", operators={"silu": 0.1})
    found = diagnosed(world, scale=0.1, exhaustive=True)
    asked = found.setting
    noisy = [
        np.concatenate([world.values(Unit(("silu",)).trial(asked, chunk, round_)) for chunk in range(len(asked.spans))])
        for round_ in range(3)
    ]
    clean = world.clean
    expected = (np.mean(noisy) - clean.mean()) / clean.mean() / 0.1
    silu = next(result for result in found.operators if result.operator == "silu")
    assert silu.score.estimate == pytest.approx(expected, rel=1e-12)


def test_on_a_limit_it_is_undecided_and_says_how_many_more_samples_would_decide() -> None:
    # A score of 3 at noise of 0.05 is a degradation of 0.15.
    found = diagnosed(World(operators={"silu": 0.15}, base=0.001))
    silu = next(result for result in found.operators if result.operator == "silu")
    assert silu.verdict.name == "undecided" and {"MODERATE", "CRITICAL"} <= set(silu.verdict.bands)
    assert silu.verdict.more_samples is None or silu.verdict.more_samples > 0
    statement = next(finding for finding in found.findings if "silu" in finding.statement)
    assert not statement.decided and "more samples" in statement.statement


def test_an_operator_is_asked_no_more_once_it_is_decided() -> None:
    found = diagnosed(World(metric="nll", operators={"silu": 0.5}, base=0.001))
    assert all(result.answer.decided_after == 100 and result.answer.rounds == 1 for result in found.operators)
    # Baseline, an eighth for the control, half a round for each of five operators, and what screening took.
    assert found.cost == pytest.approx(5 + 1 + 1 / 8 + 5 * 0.5)


def test_an_operator_with_a_failed_trial_is_undecided_and_not_ranked() -> None:
    world = World(operators={"silu": 0.4, "softmax": 0.2}, base=0.002)
    trial = Unit(("silu",)).trial(setting(), 0)
    world.failing = frozenset({key(trial)})
    found = diagnosed(world)
    silu = next(result for result in found.operators if result.operator == "silu")
    assert silu.verdict.name == "undecided" and silu.rank is None and silu.answer.harm is None
    assert found.operators[-1] is silu and "out of memory" in silu.answer.gaps[0]
    assert all(result.rank is not None for result in found.operators[:-1])
    assert any("out of memory" in finding.statement for finding in found.findings)


def key(trial: Trial) -> str:
    from noisescope.core.codec import key_of

    return key_of(trial)


class Shaky(World):
    """Zero noise changes one value by the last bit."""

    def values(self, trial: Trial) -> Any:
        found = super().values(trial)
        is_control = bool(trial.injections) and trial.injections[0].corruption.strength == 0.0
        return np.concatenate([[np.nextafter(found[0], 9.0)], found[1:]]) if is_control else found


def test_a_control_that_differs_in_the_last_bit_stops_the_study_with_an_error() -> None:
    world = Shaky(metric="nll", operators={"silu": 0.5})
    found = diagnosed(world)
    assert found.control.holds is False and found.control.largest > 0
    assert [finding.severity for finding in found.findings] == ["error"]
    assert "cannot be trusted" in found.findings[0].statement
    assert set(verdicts(found).values()) == {"undecided"} and found.risk.points == 0
    # The baseline and one slice of the control; no operator was asked about.
    assert world.cost(found.setting) == pytest.approx(1 + 1 / 8)


def test_a_clean_score_of_nothing_is_an_error_that_names_other_metrics() -> None:
    with pytest.raises(BadInputError, match=r"clean accuracy is 0.*nll"):
        diagnosed(World(accuracy=0.0))


def test_a_metric_without_bands_ranks_harm_in_its_own_unit_and_says_so() -> None:
    found = diagnosed(World(metric="kl_to_clean", operators={"silu": 0.4}, base=0.001))
    assert found.operators[0].operator == "silu" and found.operators[0].rank.high == 1
    assert found.operators[0].answer.harm.estimate == pytest.approx(0.4, rel=0.2)
    assert found.operators[0].score is None and found.risk.critical_operators == 0
    assert any("bands of degradation do not apply" in finding.statement for finding in found.findings)


class Broken(World):
    """Some outputs are not finite where noise is in the softmax."""

    def measure(self, trial: Trial) -> Reading:
        reading = super().measure(trial)
        if trial.injections and trial.injections[0].operators == ("softmax",):
            values = (math.nan, *reading.values[1:])
            return Reading(trial, values if self.metric == "accuracy" else reading.values, nonfinite=7)
        return reading


@pytest.mark.parametrize("metric", ["accuracy", "nll"])
def test_outputs_that_are_not_finite_are_counted_and_reported(metric: str) -> None:
    found = diagnosed(Broken(metric=metric, base=0.001))
    softmax = next(result for result in found.operators if result.operator == "softmax")
    assert softmax.answer.nonfinite == 7 * len(softmax.answer.trials)
    warning = next(finding for finding in found.findings if finding.severity == "warning")
    assert "NaN or infinite" in warning.statement and "softmax" in warning.statement


def test_values_that_are_not_finite_are_misses_by_hits_and_a_gap_otherwise() -> None:
    class Odd(World):
        def measure(self, trial: Trial) -> Reading:
            reading = super().measure(trial)
            is_silu = bool(trial.injections) and trial.injections[0].operators == ("silu",)
            values = (math.inf,) * len(reading.values) if is_silu else reading.values
            return Reading(trial, values)

    by_hits = diagnosed(Odd(base=0.001))
    assert verdicts(by_hits)["silu"] == "CRITICAL" and by_hits.operators[0].answer.nonfinite > 0
    by_nll = diagnosed(Odd(metric="nll", base=0.001))
    silu = next(result for result in by_nll.operators if result.operator == "silu")
    assert silu.verdict.name == "undecided" and "25 of 25 values are not finite" in silu.answer.gaps[0]
