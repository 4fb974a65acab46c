"""Holds what came of a fault against what is accepted: pass or fail where an interval shows it, else undecided.

It measures nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from noisescope.diagnose.fault_tests import (
    ERROR,
    FAIL,
    PASS,
    UNDECIDED,
    FaultCase,
    FaultOutcome,
    Located,
    Lost,
    Stepped,
)
from noisescope.measure.statistics import Interval
from noisescope.measure.verdicts import Limits, judge


@dataclass(frozen=True)
class Held:
    """One limit of a case: the verdict, in words if it is not kept, and how many more samples would decide it."""

    verdict: str
    words: str = ""
    more_samples: int | None = None


def outcome_of(case: FaultCase, seen: Lost | Stepped, located: Located | None, *, place: str = "") -> FaultOutcome:
    """The case with its verdict."""
    gaps = seen.gaps if isinstance(seen, Lost) else ()
    if gaps or seen.loss is None:
        return failed(case, gaps[0] if gaps else "nothing was measured", place)
    held = [*_kept(case, seen), *_location(case, located)]
    seen_verdicts = {one.verdict for one in held}
    verdict = next((word for word in (FAIL, UNDECIDED) if word in seen_verdicts), PASS)
    more = [one.more_samples for one in held if one.verdict == UNDECIDED]
    return FaultOutcome(
        case,
        verdict,
        tuple(one.words for one in held if one.words),
        seen.loss,
        seen.nonfinite,
        seen.positions,
        seen if isinstance(seen, Stepped) else None,
        located,
        place,
        max((n for n in more if n is not None), default=None) if verdict == UNDECIDED and None not in more else None,
        seen.trials if isinstance(seen, Lost) else (),
    )


def failed(case: FaultCase, why: str, place: str = "") -> FaultOutcome:
    """A case that could not be run; never a pass."""
    return FaultOutcome(case, ERROR, (why,), place=place)


def _kept(case: FaultCase, seen: Lost | Stepped) -> list[Held]:
    accepted = case.accepted
    found = [] if seen.loss is None else [_below("loss", seen.loss, accepted.loss, "{:.1%}")]
    rate = seen.nonfinite / seen.positions if seen.positions else 0.0
    if accepted.nonfinite is not None and rate > accepted.nonfinite:
        words = (
            f"{rate:.2%} of the scored positions are not finite ({seen.nonfinite:,} of {seen.positions:,}), accepted "
            f"{accepted.nonfinite:.2%}"
        )
        found.append(Held(FAIL, words))
    if accepted.recovery is not None and isinstance(seen, Stepped):
        # Before that step, so that the step itself is too late.
        limit = math.nextafter(accepted.recovery, 0.0)
        found.append(_below("first good step", seen.recovery, limit, "{:.3g}"))
    return found


def _below(what: str, interval: Interval, limit: float, form: str) -> Held:
    verdict = judge(interval, Limits((limit,), (PASS, FAIL)))
    if verdict.name == PASS:
        return Held(PASS)
    shown = f"{form.format(interval.estimate)} ({form.format(interval.low)} to {form.format(interval.high)})"
    words = f"{what} {shown}, accepted {form.format(limit)}"
    if verdict.decided:
        return Held(FAIL, words)
    more = "" if verdict.more_samples is None else f"; about {verdict.more_samples} more samples would decide"
    return Held(UNDECIDED, f"{words}: undecided{more}", verdict.more_samples)


def _location(case: FaultCase, located: Located | None) -> list[Held]:
    if not case.accepted.located:
        return []
    if located is None:
        return [Held(UNDECIDED, "it was not looked for with locate")]
    if located.is_found:
        return [Held(PASS)]
    seen = "no suspect at its place" if located.verdict == "fault" else f"the verdict is {located.verdict!r}"
    return [Held(FAIL, f"locate does not find it: {seen}")]
