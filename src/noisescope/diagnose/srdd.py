"""Concludes from broken identities who is at fault. It takes figures in and asks for no run.

Every check compares one operator's output with what its own inputs make it: an operator behind the fault sees wrong
inputs and makes of them what it should, so it is not accused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from noisescope.core.records import Site
from noisescope.core.words import many
from noisescope.diagnose.localization import Evidence, Localization, Suspect, Verdict, Witnessed
from noisescope.measure.judged import Judged, is_confined

# Up to 1 is what rounding allows. Above this it is no rounding of any order; between the two, it may be.
CERTAIN = 1.5
# Checks of code between operators: they say less than a check of an operator in the same module does.
_GLUE = "glue"
_WORDS = {
    "product": "its outputs are not the product of its inputs and weights",
    "oracle": "its outputs are not what its inputs give in float64",
    "replay": "its outputs are not what its own code makes of its inputs in float64",
    "glue": "what passes between its parts is not what its own code makes of their outputs",
    "lookup": "its rows are not the rows of its table",
    "repeat": "equal inputs gave unequal outputs",
}


@dataclass(frozen=True)
class Runs:
    """What was done: how often every batch ran, and at which confidence a rate of failure is excluded."""

    repeats: int
    confidence: float
    unchecked: tuple[str, ...] = ()


def conclude(found: Iterable[Witnessed], runs: Runs) -> Localization:
    """The verdict from everything that was witnessed."""
    seen = list(found)
    by_site: dict[Site, list[Witnessed]] = {}
    for one in seen:
        by_site.setdefault(one.site, []).append(one)
    broken = {site: group for site, group in by_site.items() if any(not one.judged.holds for one in group)}
    kept = {site: group for site, group in broken.items() if not _is_explained(site, group, broken)}
    suspects = sorted((_suspect(site, group) for site, group in kept.items()), key=_rank)
    certain = tuple(s for s in suspects if s.score >= CERTAIN)
    odd = tuple(s for s in suspects if s.score < CERTAIN)
    verdict: Verdict = "fault" if certain else "undecided" if odd or not seen else "no fault found"
    return Localization(
        verdict,
        certain,
        odd=odd,
        checked=len(by_site),
        unchecked=runs.unchecked,
        would_decide=_decides(verdict, odd),
        notes=tuple(_notes(runs)),
    )


def _rank(suspect: Suspect) -> tuple[bool, float]:
    glue = all(evidence.check == _GLUE for evidence in suspect.evidence)
    return (glue, -suspect.score)


def _is_explained(site: Site, group: Sequence[Witnessed], broken: dict[Site, list[Witnessed]]) -> bool:
    """Whether an accusation of a module's own code follows from that of an operator in it."""
    parts = [other for other in broken if other.path == site.path and other != site]
    return bool(parts) and all(one.judged.check == _GLUE for one in group if not one.judged.holds)


def _suspect(site: Site, group: Sequence[Witnessed]) -> Suspect:
    failed = [one for one in group if not one.judged.holds]
    worst = sorted(failed, key=lambda one: -one.judged.worst)
    checks = dict.fromkeys(one.judged.check for one in worst)
    evidence = tuple(_evidence(check, [one for one in failed if one.judged.check == check]) for check in checks)
    rate = len({(one.batch, one.run) for one in failed}) / max(len({(one.batch, one.run) for one in group}), 1)
    return Suspect(site.layer, site.operator, site.path, worst[0].judged.worst, evidence, _channels(failed), rate)


def _channels(failed: Sequence[Witnessed]) -> tuple[int, ...]:
    """The channels to which all failures are confined, taken together; empty where they are spread.

    An operator that is called with several widths, such as the two products of an attention, has to fail in the same
    channels of all.
    """
    told = [one.judged for one in failed if one.judged.width]
    found = [_confined([judged for judged in told if judged.width == width]) for width in {j.width for j in told}]
    widest = max(found, key=len, default=())
    return widest if all(channels and set(channels) <= set(widest) for channels in found) else ()


def _confined(told: Sequence[Judged]) -> tuple[int, ...]:
    """The channels of one width."""
    found = tuple(dict.fromkeys(channel for judged in told for channel in judged.channels))
    is_told = all(judged.channels for judged in told)
    hits = sum(judged.hits for judged in told)
    return found if is_told and is_confined(len(found), hits, told[0].width) else ()


def _evidence(check: str, failed: Sequence[Witnessed]) -> Evidence:
    worst = max(one.judged.worst for one in failed)
    hits, judged = sum(one.judged.hits for one in failed), sum(one.judged.judged for one in failed)
    size = "beyond all bounds" if math.isinf(worst) else f"up to {_times(worst)} times what rounding allows"
    note = next((one.judged.note for one in failed if one.judged.note), "")
    defect = max((one.judged for one in failed), key=lambda judged: judged.hits if judged.defect else 0).defect
    words = f"{_WORDS[check]}: {hits:,} of {judged:,} values checked are off, {size}{f' ({note})' if note else ''}"
    return Evidence(check, worst, hits, judged, f"{words}; {defect}" if defect else words)


def _times(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 100.0 else f"{factor:.3g}"


def _decides(verdict: Verdict, odd: tuple[Suspect, ...]) -> str:
    if verdict != "undecided":
        return ""
    if not odd:
        return (
            "No operator was seen, so nothing was checked: run the model uncompiled, with attn_implementation='sdpa' "
            "or 'eager' and without custom kernels."
        )
    return (
        f"{odd[0].operator} at {odd[0].path} lies up to {odd[0].score:.2g} times above what rounding allows, which is "
        "too little to call it a fault. More or longer batches, or the same run on a second machine, would decide it."
    )


def _notes(runs: Runs) -> list[str]:
    missed = 1 - (1 - runs.confidence) ** (1 / runs.repeats)
    notes = [
        f"{many(runs.repeats, 'run')} of every batch: a fault that fires in fewer than {missed:.0%} of the runs may "
        f"have been missed ({runs.confidence:.0%} confidence)."
    ]
    if runs.unchecked:
        notes.append(f"Not checked: {'; '.join(runs.unchecked)}.")
    return notes
