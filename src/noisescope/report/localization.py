"""A localisation as a view: the verdict, the suspects with the evidence against each, and what could not be checked.

It judges nothing and uses the words of the record.
"""

from __future__ import annotations

from collections.abc import Sequence

from noisescope.core.words import many
from noisescope.diagnose.localization import Evidence, Localization, Suspect
from noisescope.report.grids import layer_name
from noisescope.report.judged import severity_of
from noisescope.report.origin import Origin, reproduce_section
from noisescope.report.view import (
    Action,
    Block,
    Column,
    Dot,
    Dots,
    Fact,
    Facts,
    Figure,
    Gap,
    Note,
    NotMeasured,
    Row,
    Section,
    Severity,
    Table,
    Threshold,
    View,
)
from noisescope.report.wording import label

_ODD = "undecided"
# Above 1, a value is further off than rounding allows.
_LIMITS = (Threshold(1.0, "rounding", "undecided"),)
# The drawn suspects; the table holds all.
_MOST = 20
# Operators of layers that are to be tested on their own, and how many of their modules are named.
_FIRST, _NAMED = 3, 4


def localization_view(found: Localization, origin: Origin) -> View:
    """The report of a localisation."""
    sections = (
        *(_suspects(found) if found.suspects or found.odd else ()),
        _checked(found),
        reproduce_section(origin, (("method", found.method),)),
    )
    return View(
        title=f"Fault localisation on {origin.model}",
        subject=", ".join(part for part in (origin.device, origin.workload) if part),
        verdict=f"{origin.remark} {_verdict(found)}".strip(),
        # Where a fault was planted, the answer is about the method: it accuses no machine.
        severity=Severity("validation", "none") if origin.remark else severity_of(found.verdict),
        sections=sections,
        actions=() if origin.remark else _actions(found),
        facts=(
            Fact("method", found.method),
            Fact("sites checked", Figure(float(found.checked)), "count"),
            Fact("suspects", Figure(float(len(found.suspects))), "count"),
            Fact("above rounding, but not by enough", Figure(float(len(found.odd))), "count"),
        ),
        made_by=origin.made_by,
    )


def _verdict(found: Localization) -> str:
    if found.suspects:
        return f"The operator {_place(found.suspects[0])} does not do what it should: {_words(found.suspects[0])}."
    if found.verdict == "undecided":
        return found.would_decide or "Something is odd, and nothing is certain."
    return f"No broken identity at any of the {found.checked:,} sites that were checked."


def _place(suspect: Suspect) -> str:
    where = "outside the layers" if suspect.layer is None else f"layer {suspect.layer}"
    return f"{suspect.operator} at {suspect.path or 'the model'} ({where})"


def _words(suspect: Suspect) -> str:
    return "; ".join(evidence.words for evidence in suspect.evidence) or "it does not agree with the rest"


def _actions(found: Localization) -> tuple[Action, ...]:
    groups: dict[tuple[int | None, str], list[Suspect]] = {}
    for suspect in found.suspects:
        groups.setdefault((suspect.layer, suspect.operator), []).append(suspect)
    chosen = [_replace(group, priority) for priority, group in enumerate(list(groups.values())[:_FIRST], 1)]
    if found.would_decide:
        odd = tuple(f"{_place(suspect)}: {_words(suspect)}" for suspect in found.odd[:3])
        severity = Severity(found.verdict, "undecided")
        chosen.append(Action("measurement", found.would_decide, "The verdict is undecided.", severity, odd, 4))
    return tuple(chosen)


def _replace(group: Sequence[Suspect], priority: int) -> Action:
    """What to do about an operator of a layer, for the evidence against its worst module."""
    worst = group[0]
    channels = f"channels {', '.join(map(str, worst.channels[:8]))}" if worst.channels else ""
    where = worst.path if worst.layer is None else f"layer {worst.layer}"
    rate = f"it fires in {label(worst.rate, 'percent')} of the runs"
    names = [".".join(suspect.path.split(".")[-2:]) for suspect in group]
    modules = many(len(group), "module")
    if len(group) > 1:
        modules += f": {', '.join(names[:_NAMED])}{' and more' if len(names) > _NAMED else ''}"
    return Action(
        _place(worst),
        f"Test {worst.operator} of {where} on the machine by itself, and run it elsewhere until it is cleared",
        f"It is off in {modules}.",
        severity_of("fault"),
        tuple(part for part in (*(e.words for e in worst.evidence), channels, rate) if part),
        priority,
        (worst.layer,),
        (worst.operator,),
    )


def _suspects(found: Localization) -> tuple[Section, ...]:
    blocks: list[Block] = [_dots(found), _table(found), _evidence([*found.suspects, *found.odd])]
    return (Section("suspects", "Suspects", tuple(blocks), "Worst first, with what speaks against each."),)


def _named(found: Localization) -> list[tuple[Suspect, Severity]]:
    named = [(suspect, severity_of("fault")) for suspect in found.suspects]
    return named + [(suspect, severity_of(_ODD)) for suspect in found.odd]


def _dots(found: Localization) -> Dots:
    drawn = _named(found)[:_MOST]
    dots = tuple(
        Dot(
            _group(suspect),
            f"{evidence.check} of {suspect.path or 'the model'}",
            Figure(evidence.excess),
            severity,
            (suspect.layer,),
            (suspect.operator,),
        )
        for suspect, severity in drawn
        for evidence in suspect.evidence
    )
    return Dots(
        title="How far above rounding, by check",
        groups=tuple(dict.fromkeys(_group(suspect) for suspect, _ in drawn)),
        dots=dots,
        measure="error over what rounding allows",
        what="check",
        form="times",
        spacing="log",
        thresholds=_LIMITS,
        caption="The largest error of each check, in units of the largest that rounding can make.",
    )


def _group(suspect: Suspect) -> str:
    return f"{suspect.operator} {layer_name(suspect.layer)}"


def _table(found: Localization) -> Table:
    columns = (
        Column("rank", "figure", "count"),
        Column("verdict", "severity"),
        Column("layer"),
        Column("operator"),
        Column("module"),
        Column("score", "figure", "times"),
        Column("fires in", "figure", "percent"),
        Column("channels"),
    )
    rows = tuple(
        Row(
            (
                Figure(float(rank)),
                severity,
                layer_name(suspect.layer),
                suspect.operator,
                suspect.path,
                Figure(suspect.score),
                Figure(suspect.rate),
                ", ".join(map(str, suspect.channels)) or None,
            ),
            (suspect.layer,),
            (suspect.operator,),
        )
        for rank, (suspect, severity) in enumerate(_named(found), 1)
    )
    return Table("Suspects, worst first", columns, rows, "Channels are named where all errors are confined to them.")


def _evidence(suspects: Sequence[Suspect]) -> Table:
    columns = (
        Column("module"),
        Column("operator"),
        Column("check"),
        Column("error over rounding", "figure", "times"),
        Column("values off", "figure", "count"),
        Column("in words"),
    )
    rows = tuple(
        Row(_evidence_cells(suspect, evidence), (suspect.layer,), (suspect.operator,))
        for suspect in suspects
        for evidence in suspect.evidence
    )
    return Table("Evidence by check", columns, rows, "n is the number of values that the check judged.")


def _evidence_cells(suspect: Suspect, evidence: Evidence) -> tuple[str | Figure, ...]:
    off = Figure(float(evidence.hits), samples=evidence.judged)
    return suspect.path, suspect.operator, evidence.check, Figure(evidence.excess), off, evidence.words


def _checked(found: Localization) -> Section:
    blocks: list[Block] = [Note(text) for text in found.notes]
    blocks.append(Facts("Coverage", (Fact("sites checked", Figure(float(found.checked)), "count"),)))
    if found.unchecked:
        blocks.append(NotMeasured(tuple(_gap(text) for text in found.unchecked)))
    return Section("checked", "What was checked and what was not", tuple(blocks))


def _gap(text: str) -> Gap:
    what, _, why = text.partition(": ")
    return Gap(what, why or "could not be checked")
