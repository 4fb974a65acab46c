"""Fault tests and bit-sensitivity curves as lines for a terminal. They say what the records hold, and judge nothing."""

from __future__ import annotations

from collections.abc import Sequence

from noisescope.core.words import many
from noisescope.diagnose.bit_curve import BitCurve, BitPoint
from noisescope.diagnose.fault_tests import FaultCase, FaultOutcome, FaultPlan, FaultTests
from noisescope.diagnose.harm import percent
from noisescope.diagnose.setting import span_name

_PARTS = ("sign", "exponent", "mantissa")


def plan_lines(plan: FaultPlan) -> list[str]:
    """What would be planted, and what there is no case for."""
    lines = [f"{many(len(plan.cases), 'fault test')} from the diagnosis of {plan.model}"]
    for case in plan.cases:
        lines += [f"  {case.name}: {accepted_words(case)}", f"    because {case.because}"]
    return [*lines, *(f"  note: {note}" for note in plan.notes)]


def accepted_words(case: FaultCase) -> str:
    """What is planted and what it may cost, in words."""
    accepted = case.accepted
    limits = [f"loss up to {accepted.loss:.1%}"]
    limits += [] if accepted.nonfinite is None else [f"up to {accepted.nonfinite:.2%} not finite"]
    limits += [] if accepted.recovery is None else [f"recovered before step {accepted.recovery}"]
    limits += ["located"] if accepted.located else []
    rate = "" if case.rate is None else f", rate {case.rate:g}"
    return f"{case.kind} of magnitude {case.magnitude:g}{rate}, {place_words(case)}, {case.moment}; {', '.join(limits)}"


def place_words(case: FaultCase) -> str:
    """Where a case strikes, in words."""
    if case.path:
        few = ", ".join(map(str, (case.channels or ())[:5])) + (" and more" if len(case.channels or ()) > 5 else "")
        return f"channels {few} at the {case.side} of {case.path}"
    what = "all operators" if case.operators is None else ", ".join(case.operators)
    return f"{what} in {'all layers' if case.layers is None else span_name(case.layers)}"


def outcome_lines(tests: FaultTests) -> list[str]:
    """The verdict and a line for each case."""
    count = {
        word: sum(one.verdict == word for one in tests.outcomes) for word in ("fail", "error", "undecided", "pass")
    }
    told = ", ".join(f"{number} {word}" for word, number in count.items() if number)
    setting = tests.setting
    lines = [
        f"Fault tests: {tests.verdict.upper()} ({told})",
        f"{setting.metric} on {many(setting.samples, 'sample')}, {many(len(setting.seeds), 'seed')}",
    ]
    for outcome in tests.outcomes:
        lines += _outcome(outcome)
    return [*lines, *(f"  note: {note}" for note in tests.plan.notes)]


def _outcome(outcome: FaultOutcome) -> list[str]:
    lines = [f"  [{outcome.verdict}] {outcome.case.name}: {', '.join(figures_of(outcome)) or 'not measured'}"]
    if outcome.place:
        lines.append(f"    planted in {outcome.place}")
    return [*lines, *(f"    {reason}" for reason in outcome.reasons)]


def figures_of(outcome: FaultOutcome) -> list[str]:
    """What was measured of a case, in words."""
    found = []
    if outcome.loss is not None:
        found.append(f"loss {percent(outcome.loss)}")
    if outcome.nonfinite_rate is not None:
        found.append(f"{outcome.nonfinite_rate:.2%} not finite")
    if outcome.stepped is not None:
        recovery = outcome.stepped.recovery
        found.append(f"first good step {recovery.estimate:.2g} ({recovery.low:.2g} to {recovery.high:.2g})")
        if outcome.stepped.unrecovered:
            found.append(f"{outcome.stepped.unrecovered} of {outcome.stepped.sequences} not recovered")
    if outcome.located is not None:
        found.append(_located_words(outcome))
    return found


def _located_words(outcome: FaultOutcome) -> str:
    located = outcome.located
    if located is None or not located.is_found:
        return "not located"
    elsewhere = f", {located.elsewhere} of {located.suspects} suspects elsewhere" if located.elsewhere else ""
    return f"located at rank {located.rank}{elsewhere}"


def curve_lines(curves: Sequence[BitCurve]) -> list[str]:
    """For every curve and part of a number the bit that costs most."""
    return [line for curve in curves for line in _curve(curve)]


def _curve(curve: BitCurve) -> list[str]:
    head = f"bits of {curve.operator} in {curve.dtype}, flipped in a share of {curve.rate:g} of its outputs:"
    return [head, *(line for part in _PARTS for line in _part(curve, part))]


def _part(curve: BitCurve, part: str) -> list[str]:
    points = [point for point in curve.points if point.part == part]
    measured = [point for point in points if point.loss is not None]
    gaps = [f"  {part:<9} bit {point.bit} was not measured: {point.gaps[0]}" for point in points if point.gaps]
    if not measured:
        return gaps
    worst = max(measured, key=_loss)
    shown = "" if worst.loss is None else percent(worst.loss)
    return [f"  {part:<9} worst bit {worst.bit:>2}: loss {shown}, {worst.nonfinite:.1%} not finite", *gaps]


def _loss(point: BitPoint) -> float:
    return float("-inf") if point.loss is None else point.loss.estimate
