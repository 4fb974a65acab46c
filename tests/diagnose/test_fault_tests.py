"""Fault tests judged: steps to recovery by hand, verdicts by interval, losses of planted faults, curves of bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diagnose.synthetic import World, ask, setting
from noisescope.core.codec import decode, encode, key_of
from noisescope.core.errors import BadInputError
from noisescope.core.records import Injection, fault
from noisescope.diagnose.bit_curve import BitCurves, bit_curves, bit_question, part_of, width
from noisescope.diagnose.fault_lines import curve_lines, outcome_lines
from noisescope.diagnose.fault_loss import LossQuestion
from noisescope.diagnose.fault_steps import recovery_steps, stepped
from noisescope.diagnose.fault_tests import (
    Accepted,
    FaultCase,
    FaultOutcome,
    FaultPlan,
    FaultTests,
    Located,
    Lost,
)
from noisescope.diagnose.fault_verdict import failed, outcome_of
from noisescope.measure.statistics import Interval

CASE = FaultCase(
    name="bit_flip linear",
    level="operator",
    kind="bit_flip",
    magnitude=1.0,
    rate=0.01,
    channels=None,
    operators=("linear",),
    layers=None,
    path="",
    side="",
    moment="always",
    accepted=Accepted(loss=0.05, nonfinite=0.001),
    is_critical=True,
    because="linear is CRITICAL",
)
STEP = replace(CASE, name="one", moment="one step", accepted=Accepted(loss=0.10, recovery=5))
FOUND, MISSED = Located("fault", 1, 1, 0), Located("no fault found", None, 0, 0)
ASKED = setting(metric="nll", shape="text", samples=50, resamples=500, budget=None)


def lost(low: float, high: float, *, nonfinite: int = 0, gaps: tuple[str, ...] = ()) -> Lost:
    return Lost(Interval((low + high) / 2, low, high, 0.95, 50), nonfinite, 10_000, gaps)


def steps(text: str) -> np.ndarray[Any, Any]:
    return np.array([letter == "x" for letter in text])


@pytest.mark.parametrize(
    ("seen", "first_good"),
    [
        ("x.......", 1),  # the very next token is right, and the two behind it
        ("........", 1),  # a fault that costs nothing
        ("xx......", 2),
        ("x.x.x...", 5),  # three in a row begin at step 5
        ("xxxxx..x", 8),  # two in a row at the end are not enough
        ("xxxxxxxx", 8),
        ("xxxxx...", 5),
    ],
)
def test_a_sequence_has_recovered_at_the_first_of_three_healthy_steps(seen: str, first_good: int) -> None:
    assert recovery_steps(steps(seen)) == first_good


def test_steps_of_all_seeds_and_samples_are_summed_up() -> None:
    seen = np.stack([[steps("xx......"), steps("x......."), steps("xxxxxxxx")]] * 2)
    found = stepped(seen, np.zeros_like(seen), 0.95)
    assert found.loss.estimate == pytest.approx((2 + 1 + 8) / 24)
    assert found.recovery.estimate == pytest.approx((2 + 1 + 8) / 3) and found.recovery.samples == 3
    assert (found.unrecovered, found.sequences, found.positions, found.nonfinite) == (2, 6, 48, 0)
    assert [round(one.estimate, 3) for one in found.lost[:3]] == [1.0, 0.667, 0.333]
    assert all(one.low <= one.estimate <= one.high for one in found.lost)


def test_no_first_good_step_is_said_to_come_before_the_first_one() -> None:
    seen = np.stack([[steps("x" + 15 * ".")] * 12])
    found = stepped(seen, np.zeros_like(seen), 0.95).recovery
    assert found.estimate == found.low == 1.0 < found.high < 1.5


@pytest.mark.parametrize(
    ("seen", "verdict", "word"),
    [
        (lost(0.01, 0.049), "pass", ""),
        (lost(0.051, 0.2), "fail", "accepted 5.0%"),
        (lost(0.03, 0.06), "undecided", "more samples would decide"),
        (lost(0.01, 0.02, nonfinite=11), "fail", "0.11% of the scored positions are not finite (11 of 10,000)"),
        (lost(0.01, 0.02, nonfinite=10), "pass", ""),
        (lost(0.01, 0.02, gaps=("out of memory",)), "error", "out of memory"),
        (Lost(), "error", "nothing was measured"),
    ],
)
def test_a_case_passes_or_fails_where_the_interval_shows_it(seen: Lost, verdict: str, word: str) -> None:
    found = outcome_of(CASE, seen, None)
    assert found.verdict == verdict and word in " ".join(found.reasons)
    assert bool(found.reasons) == (verdict != "pass")
    assert (found.more_samples is not None) == (verdict == "undecided")


def test_a_faulty_step_has_to_be_recovered_from_in_time() -> None:
    quick = stepped(np.stack([[steps("xx" + 14 * ".")] * 20]), np.zeros((1, 20, 16)), 0.95)
    late = stepped(np.stack([[steps("x....x..x" + 7 * ".")] * 20]), np.zeros((1, 20, 16)), 0.95)
    slow = stepped(np.stack([[steps("xxxxx" + 11 * ".")] * 20]), np.zeros((1, 20, 16)), 0.95)
    loose = replace(STEP, accepted=replace(STEP.accepted, loss=0.9))
    assert outcome_of(replace(STEP, accepted=replace(STEP.accepted, loss=0.2)), quick, None).verdict == "pass"
    assert outcome_of(loose, late, None).verdict == "pass"
    # Step 5 is too late where recovery has to come before step 5.
    found = outcome_of(loose, slow, None)
    assert found.verdict == "fail" and found.reasons == ("first good step 5 (5 to 5), accepted 5",)


def test_what_must_be_located_fails_where_locate_is_silent_or_looks_elsewhere() -> None:
    case = replace(CASE, accepted=Accepted(loss=0.15, located=True))
    fine = lost(0.01, 0.02)
    assert outcome_of(case, fine, FOUND).verdict == "pass"
    silent, elsewhere = outcome_of(case, fine, MISSED), outcome_of(case, fine, Located("fault", None, 2, 2))
    assert silent.verdict == elsewhere.verdict == "fail"
    assert "no fault found" in silent.reasons[0] and "no suspect at its place" in elsewhere.reasons[0]
    assert outcome_of(case, fine, None).verdict == "undecided"
    assert outcome_of(CASE, fine, MISSED).verdict == "pass"


class Faulty(World):
    """Faults cost what is planted for their operator, whatever their strength."""

    def harm(self, trial: Any) -> float:
        return sum(self.operators[one.operators[0]] for one in trial.injections)


def test_the_loss_is_the_one_that_was_planted_with_an_interval_that_holds_it() -> None:
    faults = tuple((name, Injection.of(fault("bit_flip", 1.0), operators=name)) for name in ("linear", "silu"))
    question = LossQuestion(ASKED, faults, 900)
    world = Faulty(samples=50, metric="nll", operators={"linear": 0.4, "silu": 0.02})
    found = ask(question, world)
    assert found["linear"].loss.low < 0.4 < found["linear"].loss.high
    assert found["silu"].loss.low < 0.02 < found["silu"].loss.high
    assert found["linear"].positions == 2700 and not found["linear"].gaps
    # Two chunks without a fault, and two of each of three seeds for each of two faults.
    assert len(world.asked) == 2 + 2 * 3 * 2
    failing = key_of(question.plan({})[-1])
    broken = ask(question, Faulty(samples=50, metric="nll", operators=world.operators, failing=frozenset([failing])))
    assert broken["silu"].loss is None and broken["silu"].gaps == ("out of memory",)
    assert broken["linear"].loss is not None


class Ruined(World):
    """A fault drives a share of the samples to the worst value there is, each draw of it other ones."""

    def values(self, trial: Any) -> np.ndarray[Any, Any]:
        clean = self.clean[trial.start : trial.stop]
        own = np.random.default_rng([self.seed, trial.start, *(one.seed for one in trial.injections)])
        hit = own.random(len(clean)) < self.base
        return np.where(hit, 100.0, clean) if trial.injections else clean


@pytest.mark.parametrize("share", [0.9, 0.98, 1.0])
def test_a_fault_that_ruins_nearly_all_samples_is_known_to_cost_much(share: float) -> None:
    asked = setting(metric="nll", shape="text", samples=12, resamples=500, budget=None, seeds=(0,))
    question = LossQuestion(asked, (("x", Injection.of(fault("bit_flip", 1.0))),), 1)
    held = []
    for seed in range(40):
        world = Ruined(samples=12, metric="nll", base=share, seed=seed)
        loss = ask(question, world)["x"].loss
        # Resampling alone would say that nothing is known of the loss of most of these.
        assert 0.3 < loss.low <= loss.estimate <= loss.high
        truth = share * (100.0 / world.clean.mean() - 1.0)
        held.append(loss.low <= truth * 1.02)
    assert sum(held) >= 36


@pytest.mark.parametrize(
    ("dtype", "bit", "part"),
    [
        ("float32", 31, "sign"),
        ("float32", 30, "exponent"),
        ("float32", 23, "exponent"),
        ("float32", 22, "mantissa"),
        ("bfloat16", 15, "sign"),
        ("bfloat16", 7, "exponent"),
        ("bfloat16", 6, "mantissa"),
        ("float16", 14, "exponent"),
        ("float16", 10, "exponent"),
        ("float16", 9, "mantissa"),
    ],
)
def test_bits_have_the_meaning_that_the_format_gives_them(dtype: str, bit: int, part: str) -> None:
    assert part_of(dtype, bit) == part
    # Flipping it does what its part does: turns the sign, changes the size by a power of two, or by less than that.
    torch = pytest.importorskip("torch")
    kinds = {"float32": torch.int32, "bfloat16": torch.int16, "float16": torch.int16}
    one = torch.tensor([1.5], dtype=getattr(torch, dtype))
    mask = -(1 << bit) if bit == width(dtype) - 1 else 1 << bit
    flipped = float((one.view(kinds[dtype]) ^ mask).view(one.dtype))
    if part == "sign":
        assert flipped == -1.5
    elif part == "mantissa":
        assert 0 < abs(flipped - 1.5) <= 0.5
    else:
        assert not np.isfinite(flipped) or np.log2(flipped / 1.5) == round(np.log2(flipped / 1.5)) != 0


class Bits(World):
    """A flipped exponent bit costs 0.5, the sign 0.1, any other bit nothing."""

    def harm(self, trial: Any) -> float:
        if not trial.injections:
            return 0.0
        bit = dict(trial.injections[0].corruption.params)["bit"]
        return {"sign": 0.1, "exponent": 0.5, "mantissa": 0.0}[part_of("bfloat16", bit)]


def test_the_curve_shows_what_was_planted_in_each_part() -> None:
    question = bit_question(ASKED, ("linear",), "bfloat16", 100, 1e-3)
    assert len(question.faults) == 16
    trial = next(trial for trial in question.plan({}) if trial.injections)
    assert dict(trial.injections[0].corruption.params) == {"bit": 0, "rate": 1e-3}
    (curve,) = bit_curves(ask(question, Bits(samples=50, metric="nll")), ("linear",), "bfloat16", "nll", 1e-3)
    expected = {"sign": 0.1, "exponent": 0.5, "mantissa": 0.0}
    assert [point.bit for point in curve.points] == list(range(16))
    for point in curve.points:
        assert point.loss.low <= expected[point.part] <= point.loss.high
    said = "\n".join(curve_lines([curve]))
    assert "sign      worst bit 15" in said and "exponent" in said
    kept = BitCurves(()).merged((curve,)).merged((replace(curve, metric="perplexity"),))
    assert len(kept.curves) == 1 and kept.curves[0].metric == "perplexity"
    assert decode(BitCurves, encode(kept)) == kept


def test_curves_of_what_is_not_there_are_refused() -> None:
    with pytest.raises(BadInputError, match="operator of this model 'gelu'"):
        bit_question(ASKED, ("gelu",), "float32", 1)
    with pytest.raises(BadInputError, match="float64"):
        bit_question(ASKED, ("linear",), "float64", 1)
    with pytest.raises(BadInputError, match="bit rate"):
        bit_question(ASKED, ("linear",), "float32", 1, 2.0)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"magnitude": 0.0}, "healthy machine"),
        ({"kind": "bit_flop"}, "Did you mean 'bit_flip'"),
        ({"operators": ("linaer",)}, "linear"),
        ({"rate": 2.0}, "share between 0 and 1"),
        ({"path": "model.layers.0"}, "both or neither"),
        ({"accepted": Accepted(loss=0.1, recovery=5)}, "nothing to recover from"),
    ],
)
def test_a_case_that_makes_no_sense_is_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(BadInputError, match=word):
        replace(CASE, **changes)


def test_accepted_limits_and_names_are_checked() -> None:
    with pytest.raises(BadInputError, match="accepted loss -1"):
        Accepted(loss=-1)
    with pytest.raises(BadInputError, match="bit_flip linear more than once"):
        FaultPlan("m", "f", (CASE, CASE))
    with pytest.raises(BadInputError, match="none"):
        FaultPlan("m", "f", ())


def of_verdicts(*verdicts: str) -> FaultTests:
    outcomes = tuple(FaultOutcome(replace(CASE, name=f"{i}"), verdict, ()) for i, verdict in enumerate(verdicts))
    return FaultTests(FaultPlan("m", "f", tuple(one.case for one in outcomes)), ASKED, outcomes)


def test_the_worst_case_is_the_verdict_and_all_is_kept_and_told() -> None:
    assert of_verdicts("pass", "undecided", "error", "fail").verdict == "fail"
    assert of_verdicts("pass", "undecided", "error").verdict == "error"
    assert of_verdicts("pass", "undecided").verdict == "undecided"
    assert of_verdicts("pass").verdict == "pass"
    whole = replace(
        of_verdicts("pass"), outcomes=(outcome_of(CASE, lost(0.1, 0.2), FOUND), failed(CASE, "no such layer"))
    )
    assert decode(FaultTests, encode(whole)) == whole
    said = "\n".join(outcome_lines(whole))
    assert "FAIL (1 fail, 1 error)" in said and "located at rank 1" in said and "no such layer" in said
