"""The gate against planted harm: the same checkpoint passes, a brittle one is named by operator and limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diagnose.synthetic import OPERATORS, World, ask, setting
from noisescope.core.codec import decode, encode, key_of
from noisescope.core.errors import BadInputError
from noisescope.core.records import Reading
from noisescope.diagnose.gate import BEYOND, Fragility, Gate, GateQuestion, GateRules, fragility_of
from noisescope.diagnose.gate_lines import gate_lines
from noisescope.diagnose.gated import Checkpoint, Gated
from noisescope.diagnose.setting import Unit, slice_trial
from noisescope.measure.statistics import Interval

HARM = {"linear": 0.05, "matmul": 0.02, "softmax": 0.01, "silu": 0.03, "rms_norm": 0.04}
RULES = GateRules()
ASKED = setting(metric="nll", shape="text", samples=50, resamples=500)


class Other(World):
    """Another checkpoint: on the same samples, with draws and a clean score that are a little its own."""

    def values(self, trial: Any) -> np.ndarray[Any, Any]:
        own = np.random.default_rng([self.seed, 7, sum(key_of(trial).encode())])
        part = slice(trial.start, trial.stop)
        drift = np.random.default_rng([self.seed, 8]).lognormal(0.0, 0.05, self.samples)[part]
        clean = self.clean[part]
        lost = super().values(trial) - clean
        return clean * drift + lost * drift * own.lognormal(-0.005, 0.1, len(clean))


def baseline(seed: int = 0, **changes: Any) -> Fragility:
    asked, known = replace(ASKED, **changes), {}
    world = World(samples=asked.samples, metric=asked.metric, operators=HARM, seed=seed)
    while pending := [trial for trial in GateQuestion(asked).plan(known) if key_of(trial) not in known]:
        known.update({key_of(trial): world.measure(trial) for trial in pending})
    return fragility_of(asked, known)


def gated(times: dict[str, float], rules: GateRules = RULES, seed: int = 0, kind: Any = Other, **changes: Any) -> Gate:
    asked = replace(ASKED, **changes)
    operators = {name: harm * times.get(name, 1.0) for name, harm in HARM.items()}
    world = kind(samples=asked.samples, metric=asked.metric, operators=operators, seed=seed)
    return ask(GateQuestion(asked, rules, baseline(seed, **changes)), world)


def test_the_same_checkpoint_is_within_the_limits_of_its_own_baseline() -> None:
    found = gated({}, kind=World)
    assert found.verdict == "pass" and not found.findings
    assert all(one.harm == one.baseline and one.p_baseline == 1.0 for one in found.operators)
    assert found.clean_change.estimate == 0.0
    assert {one.operator: round(one.harm.estimate, 1) for one in found.operators} == {
        name: pytest.approx(round(harm, 1), abs=0.1) for name, harm in HARM.items()
    }


@pytest.mark.parametrize("planted", ["silu", "softmax"])
def test_twice_the_cost_in_one_operator_is_named_and_no_other(planted: str) -> None:
    found = gated({planted: 2.0})
    assert found.verdict == "fail"
    assert [one.operator for one in found.operators if one.verdict == BEYOND] == [planted]
    worst = found.operators[0]
    assert worst.beyond == ("baseline",) and worst.p_baseline < 0.05 < worst.p_maximum
    assert worst.harm.estimate / worst.baseline.estimate == pytest.approx(2.0, rel=0.15)
    assert worst.excess.low > 0.0
    assert found.findings[0].severity == "critical" and "1.2 times" in found.findings[0].statement


def test_a_cost_above_the_maximum_fails_without_any_baseline() -> None:
    world = World(samples=50, metric="nll", operators={**HARM, "linear": 0.4})
    found = ask(GateQuestion(ASKED), world)
    assert found.verdict == "fail" and found.operators[0].operator == "linear"
    assert found.operators[0].beyond == ("maximum",) and found.operators[0].p_baseline is None
    high = ask(GateQuestion(ASKED, GateRules(max_degradation=0.8)), world)
    assert high.verdict == "pass"


def test_what_is_near_its_limit_is_undecided_and_says_what_would_decide() -> None:
    found = gated(dict.fromkeys(OPERATORS, 1.15), samples=24)
    assert found.verdict == "undecided"
    open_ = [one for one in found.operators if one.verdict == "undecided"]
    assert open_ and all(one.more_samples is None or one.more_samples > 0 for one in open_)
    assert any(one.more_samples for one in open_)


@pytest.mark.slow
def test_a_checkpoint_at_all_of_its_limits_fails_as_seldom_as_promised() -> None:
    # Five operators at once; a rate of 0.05 over 80 checkpoints is at most 10 but for one case in a hundred.
    rules = GateRules(max_degradation=None)
    failed = sum(gated(dict.fromkeys(HARM, 1.2), rules, seed, resamples=1000).verdict == "fail" for seed in range(80))
    assert failed <= 10


def test_next_to_nothing_is_not_held_against_the_baseline_where_that_is_asked() -> None:
    # 2.5 % is more than twice what softmax cost, and below 4 %.
    assert gated({"softmax": 2.5}).verdict == "fail"
    assert gated({"softmax": 2.5}, GateRules(ignore_below=0.04)).verdict == "pass"


def test_a_gain_under_noise_is_no_limit_below_zero() -> None:
    known = baseline()
    turned = [
        replace(one, rows=tuple(tuple(2 * c - v for c, v in zip(known.clean, row, strict=True)) for row in one.rows))
        for one in known.operators
    ]
    better = replace(known, operators=tuple(turned))
    assert better.interval("linear", 0.95).high < 0.0
    world = World(samples=50, metric="nll", operators=dict.fromkeys(OPERATORS, 0.0))
    assert ask(GateQuestion(ASKED, GateRules(), better), world).verdict != "fail"


def test_a_worse_clean_score_is_told() -> None:
    class Worse(World):
        def values(self, trial: Any) -> np.ndarray[Any, Any]:
            return 1.3 * super().values(trial)

    found = gated({}, kind=Worse)
    assert found.verdict == "pass" and found.clean_change.high < 0.0
    assert [finding.severity for finding in found.findings] == ["warning"]


@pytest.mark.parametrize(
    ("metric", "shape"), [("kl_to_clean", "text"), ("perplexity", "text"), ("top1_agreement", "text")]
)
def test_every_kind_of_metric_can_be_gated(metric: str, shape: str) -> None:
    changes = {"metric": metric, "shape": shape, "samples": 100}
    assert gated({}, kind=World, **changes).verdict != "fail"
    found = gated({"linear": 6.0}, kind=World, **changes)
    assert found.verdict == "fail" and found.operators[0].operator == "linear"
    assert (found.operators[0].p_maximum is None) == (metric == "kl_to_clean")


def test_a_trial_that_failed_is_an_error_and_never_a_pass() -> None:
    failing = key_of(Unit(operators=("silu",)).trial(ASKED, 0, 1))
    world = World(samples=50, metric="nll", operators=HARM, failing=frozenset([failing]))
    found = ask(GateQuestion(ASKED, GateRules(), baseline()), world)
    assert found.verdict == "error" and not found.operators and "out of memory" in found.gaps[0]
    assert found.findings[0].severity == "error"


def test_a_control_that_differs_is_an_error() -> None:
    class Drifting(World):
        def values(self, trial: Any) -> np.ndarray[Any, Any]:
            return super().values(trial) * (1.001 if trial.injections else 1.0)

    assert gated({}, kind=Drifting).verdict == "error"


def test_readings_of_a_stopped_diagnosis_are_gaps_of_a_baseline() -> None:
    trial = slice_trial(ASKED, 0)
    found = fragility_of(ASKED, {key_of(trial): Reading(trial, (1.0,) * 25)})
    assert found.gaps and not found.operators


def test_a_gate_is_kept_and_read_back_and_told_in_lines() -> None:
    gate = gated({"silu": 2.0})
    whole = Gated(gate, Checkpoint("step-200", "f", "a", "float32"), "step-100")
    assert decode(Gated, encode(whole)) == whole
    said = "\n".join(gate_lines(whole))
    assert said.startswith("Gate: FAIL") and "step-100" in said and "silu" in said and "beyond (baseline)" in said


def test_a_full_column_of_the_table_ends_before_the_next_one() -> None:
    gate = gated({}, kind=World)
    long = Interval(0.000288, 0.000286, 0.000291, 0.95, 50)
    rows = tuple(replace(one, harm=long, baseline=long) for one in gate.operators)
    full = replace(gate, setting=replace(gate.setting, metric="kl_to_clean"), operators=rows)
    said = gate_lines(Gated(full, Checkpoint("step-200", "f", "a", "float32"), "step-100"))
    shown = "0.000288 (0.000286 to 0.000291)"
    assert sum(line.count(f"{shown} ") == 2 for line in said) == len(rows)


def test_rules_that_make_no_sense_are_refused() -> None:
    for wrong in ({"factor": 0.5}, {"max_degradation": 0.0}, {"ignore_below": -1.0}, {"confidence": 1.0}):
        with pytest.raises(BadInputError, match="expected"):
            GateRules(**wrong)
