"""Robustness by level against the planted law, and the breaking point against the scale worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from diagnose.synthetic import World, ask, setting
from noisescope.core.codec import key_of
from noisescope.core.errors import BadInputError
from noisescope.diagnose.robustness import Robustness, RobustnessQuestion, retention_of
from noisescope.measure.statistics import Interval


def measured(world: World, **changes: Any) -> Robustness:
    shape = "choice" if world.metric == "accuracy" else "text"
    asked = setting(metric=world.metric, shape=shape, samples=world.samples, layers=4, resamples=400)
    return ask(RobustnessQuestion(asked, **{"levels": (0.0, 0.05, 0.1), **changes}), world)


def test_score_degradation_and_retention_at_a_level_are_those_of_its_readings() -> None:
    world = World(operators={"silu": 0.2})
    found = measured(world, seeks_threshold=False)
    clean, mild, strong = found.levels
    assert clean.score.estimate == pytest.approx(world.clean.mean())
    assert (clean.retention.estimate, clean.tolerance, clean.grade) == (1.0, math.inf, "excellent")
    readings = [world.values(trial).sum() for trial in world.asked.values() if world.harm(trial) == pytest.approx(0.2)]
    assert len(readings) == 3 * 8
    assert mild.score.estimate == pytest.approx(sum(readings) / 3 / world.samples)
    assert mild.retention.estimate == pytest.approx(mild.score.estimate / clean.score.estimate)
    assert mild.tolerance == pytest.approx(1 / mild.degradation.estimate)
    assert strong.retention.high < mild.retention.low and strong.is_verified and strong.rounds == 3


def test_injections_are_counted_and_a_level_without_any_is_not_called_robust() -> None:
    found = measured(World(), seeks_threshold=False)
    assert [level.injections for level in found.levels] == [0, 24, 24]  # one a trial, eight chunks in three seeds
    quiet = measured(World(silent=True), seeks_threshold=False).levels[1]
    assert not quiet.is_verified and quiet.score is None and quiet.retention is None
    assert quiet.gaps == ("24 of 24 trials made no injection",)


def test_retention_of_a_loss_is_clean_over_noisy() -> None:
    asked = setting(metric="nll", shape="text")
    kept = retention_of(asked, Interval(0.25, 0.0, 1.0, 0.95, 9))
    assert (kept.estimate, kept.low, kept.high) == (0.8, 0.5, 1.0)


@pytest.mark.parametrize(("metric", "tolerance"), [("nll", 0.003), ("accuracy", 0.012)])
def test_the_scale_that_costs_a_tenth_is_found_and_the_sure_range_holds_it(metric: str, tolerance: float) -> None:
    # Harm is 0.2 (s / 0.05)^2, so a tenth is lost at 0.05 / sqrt(2).
    found = measured(World(metric=metric, operators={"silu": 0.2}))
    expected = 0.05 / math.sqrt(2.0)
    assert found.threshold.scale == pytest.approx(expected, abs=tolerance)
    assert found.threshold.scale - found.threshold.low <= 0.001 + 1e-12
    low, high = found.sure
    assert low < expected < high
    assert found.threshold.brittleness == "high"
    assert any("costs 10% of the" in finding.statement for finding in found.findings)


def test_the_search_begins_from_the_levels_that_are_known() -> None:
    def asked_for(levels: tuple[float, ...]) -> set[float]:
        world = World(metric="nll", operators={"silu": 0.2})
        measured(world, levels=levels)
        return {trial.injections[0].corruption.strength for trial in world.asked.values() if trial.injections}

    # A tenth is lost at 0.0354: with 0.03 and 0.04 known, halving 0.01 to 0.001 takes 4 steps; from 0 to 0.2 it is 9.
    assert len(asked_for((0.03, 0.04)) - {0.0, 0.03, 0.04}) == 4
    assert len(asked_for((0.0,)) - {0.0}) == 9


def test_a_model_that_nothing_breaks_has_no_such_scale() -> None:
    found = measured(World(metric="nll", operators={"silu": 0.001}))
    assert found.threshold.scale is None and found.sure == (0.2, None)
    assert any("costs less than 10%" in finding.statement for finding in found.findings)


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0])
def test_the_law_of_growth_is_the_planted_one(power: float) -> None:
    found = measured(World(metric="kl_to_clean", operators={"silu": 0.05}, power=power), levels=(0.02, 0.05, 0.1))
    assert found.law.exponent.estimate == pytest.approx(power, abs=0.1)
    assert found.threshold is None and all(level.degradation is None for level in found.levels)


def test_a_failed_trial_leaves_its_level_and_the_search_undecided() -> None:
    world = World(metric="nll", operators={"silu": 0.2})
    question = RobustnessQuestion(setting(metric="nll", shape="text", layers=4, resamples=400), levels=(0.05,))
    world.failing = frozenset({key_of(question.unit(0.05).trial(question.setting, 1, 2))})
    found = ask(question, world)
    (level,) = found.levels
    assert level.score is None and not level.is_verified and "out of memory" in level.gaps[0]
    assert any(finding.severity == "undecided" for finding in found.findings) and found.unmeasured


def test_a_control_that_differs_makes_nothing_known() -> None:
    class Shaky(World):
        def values(self, trial: Any) -> Any:
            found = super().values(trial)
            is_control = bool(trial.injections) and trial.injections[0].corruption.strength == 0.0
            # The last slice alone: a control on the first would not have seen it.
            return np.nextafter(found, 9.0) if is_control and trial.stop == self.samples else found

    found = measured(Shaky(metric="nll", operators={"silu": 0.2}))
    assert found.control.holds is False and all(level.score is None for level in found.levels)
    assert [finding.severity for finding in found.findings] == ["error"]


@pytest.mark.parametrize("levels", [(), (-0.1,), (0.1, 0.1), (math.nan,), (math.inf,)])
def test_levels_that_make_no_sense_are_refused(levels: tuple[float, ...]) -> None:
    with pytest.raises(BadInputError, match="noise levels"):
        RobustnessQuestion(setting(), levels=levels)
