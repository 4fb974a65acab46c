"""A localisation as a view: the verdict, the suspects with the evidence against each, and what could not be checked.

It judges nothing and uses the words of the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from noisescope.core.words import many
from noisescope.diagnose.localization import Evidence, Localization, Opinion, Suspect
from noisescope.report.grids import layer_name
from noisescope.report.judged import severity_of
from noisescope.report.origin import Origin, reproduce_section
from noisescope.report.view import (
    Action,
    Bar,
    Bars,
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
    Spacing,
    Table,
    Threshold,
    View,
)
from noisescope.report.wording import Format, label

FINGERPRINT = "fingerprint"
_ODD = "undecided"
# Above 1, a value is further off than rounding allows.
_LIMITS = (Threshold(1.0, "rounding", "undecided"),)
# The drawn suspects; the table holds all.
_MOST = 20
# Operators of layers that are to be tested on their own, and how many of their modules are named.
_FIRST, _NAMED = 3, 4
_NUMBERED = 8


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
            *_sureness(found),
        ),
        made_by=origin.made_by,
    )


def _sureness(found: Localization) -> tuple[Fact, ...]:
    if found.margin is None or found.confidence is None:
        return (Fact("above rounding, but not by enough", Figure(float(len(found.odd))), "count"),)
    return (
        Fact("lead over the next place, in correlation", Figure(found.margin)),
        Fact("share of the draws in which it leads", Figure(found.confidence), "percent"),
        Fact("second opinion", "none" if found.opinion is None else _place_of(found.opinion)),
    )


def _place_of(opinion: Opinion) -> str:
    return f"{opinion.operator} at {opinion.path} ({layer_name(opinion.layer)})"


def _verdict(found: Localization) -> str:
    if found.suspects and found.method == FINGERPRINT:
        first = found.suspects[0]
        return f"The two systems part at {first.path}: {_words(first)}. {' '.join(found.notes[:2])}"
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
    if found.method == FINGERPRINT:
        return _after_fingerprint(found)
    groups: dict[tuple[int | None, str], list[Suspect]] = {}
    for suspect in found.suspects:
        groups.setdefault((suspect.layer, suspect.operator), []).append(suspect)
    chosen = [_replace(group, priority) for priority, group in enumerate(list(groups.values())[:_FIRST], 1)]
    if found.would_decide:
        odd = tuple(f"{_place(suspect)}: {_words(suspect)}" for suspect in found.odd[:3])
        severity = Severity(found.verdict, "undecided")
        chosen.append(Action("measurement", found.would_decide, "The verdict is undecided.", severity, odd, 4))
    return tuple(chosen)


def _after_fingerprint(found: Localization) -> tuple[Action, ...]:
    """The operator that both point at, or what settles where they differ."""
    if not found.suspects:
        return ()
    first, second = found.suspects[0], found.opinion
    agree = second is not None and second.layer == first.layer
    action = (
        f"Test {second.operator} at {second.path} on the machine by itself, and run it elsewhere until it is cleared"
        if second is not None and agree
        else "Run `noisescope locate` without a reference on the suspect machine: it judges each operator by itself"
    )
    issue = "The second opinion agrees." if agree else "Fingerprint and activations do not point at one layer."
    evidence = (_words(first), *found.notes[:2])
    severity = severity_of(found.verdict)
    return (Action(first.path, found.would_decide or action, issue, severity, evidence, 1, (first.layer,), ()),)


def _replace(group: Sequence[Suspect], priority: int) -> Action:
    """What to do about an operator of a layer, for the evidence against its worst module."""
    worst = group[0]
    channels = f"channels {_channels(worst)}" if worst.channels else ""
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
    if found.method == FINGERPRINT:
        return (Section("suspects", "Suspects", (_likeness(found),), "The place of the fault first."),)
    blocks: list[Block] = [_dots(found), _table(found), *_confirmed(found), _evidence(found)]
    return (Section("suspects", "Suspects", tuple(blocks), "Worst first, with what speaks against each."),)


def _confirmed(found: Localization) -> tuple[Block, ...]:
    """What came of the run in which the suspects were replaced."""
    seen = found.confirmation
    if seen is None:
        return ()
    facts = [Fact("outcome", seen.outcome), Fact("operators replaced", Figure(float(seen.corrected)), "count")]
    if seen.moved is not None and seen.beside is not None:
        facts += [
            Fact("operators at which a check still fails", Figure(float(len(seen.left))), "count"),
            Fact("the end result moves by, as a share of its size", Figure(seen.moved)),
            Fact("replacing operators that hold moves it by", Figure(seen.beside)),
        ]
    if seen.recovered is not None:
        facts.append(Fact("of the distance to the healthy result is gone", Figure(seen.recovered), "percent"))
    return Note(seen.words), Facts("With what the host computes in their place", tuple(facts))


def _named(found: Localization) -> list[tuple[Suspect, Severity]]:
    if found.method == FINGERPRINT:
        rest = Severity("less alike", "none")
        return [(suspect, rest if rank else severity_of(found.verdict)) for rank, suspect in enumerate(found.suspects)]
    named = [(suspect, severity_of("fault")) for suspect in found.suspects]
    return named + [(suspect, severity_of(_ODD)) for suspect in found.odd]


def _likeness(found: Localization) -> Bars:
    """Of fingerprints: how alike each place's is to the divergence that was seen."""
    bars = tuple(
        Bar(suspect.path, Figure(suspect.score), severity, (), (suspect.layer,), (suspect.operator,))
        for suspect, severity in _named(found)
    )
    caption = (
        "Noise was put into each place of the good system, of another kind and seed than any fault; its trace at the "
        "borders of all layers is compared with where the suspect differs."
    )
    return Bars("Whose fingerprint it is", bars, "correlation with the divergence", "place", caption=caption)


@dataclass(frozen=True)
class _Scale:
    """What the figures of a method's evidence are."""

    title: str
    measure: str
    column: str
    form: Format
    spacing: Spacing
    thresholds: tuple[Threshold, ...]
    caption: str


_SCALES = {
    "classic": _Scale(
        "What each probe adds to the score",
        "share of the score",
        "adds to the score",
        "plain",
        "linear",
        (),
        "Deviations from the other layers, weighted. They rank the layers of every model, a healthy one as well.",
    )
}
_ROUNDING = _Scale(
    "How far above rounding, by check",
    "error over what rounding allows",
    "error over rounding",
    "times",
    "log",
    _LIMITS,
    "The largest error of each check, in units of the largest that rounding can make.",
)


def _scale(found: Localization) -> _Scale:
    return _SCALES.get(found.method, _ROUNDING)


def _dots(found: Localization) -> Dots:
    scale = _scale(found)
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
        title=scale.title,
        groups=tuple(dict.fromkeys(_group(suspect) for suspect, _ in drawn)),
        dots=dots,
        measure=scale.measure,
        what="check",
        form=scale.form,
        spacing=scale.spacing,
        thresholds=scale.thresholds,
        caption=scale.caption,
    )


def _group(suspect: Suspect) -> str:
    """A suspect in few letters: its layer, its module, and the operator where the module does not say it."""
    module = suspect.path.rpartition(".")[2]
    kind = suspect.operator if suspect.operator not in ("linear", module) else ""
    return " ".join(part for part in (layer_name(suspect.layer), module, kind) if part)


def _table(found: Localization) -> Table:
    columns = (
        Column("rank", "figure", "count"),
        Column("verdict", "severity"),
        Column("layer"),
        Column("operator"),
        Column("module"),
        Column("score", "figure", _scale(found).form),
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
                _channels(suspect) or None,
            ),
            (suspect.layer,),
            (suspect.operator,),
        )
        for rank, (suspect, severity) in enumerate(_named(found), 1)
    )
    return Table("Suspects, worst first", columns, rows, "Channels are named where all errors are confined to them.")


def _channels(suspect: Suspect) -> str:
    more = len(suspect.channels) - _NUMBERED
    return ", ".join(map(str, suspect.channels[:_NUMBERED])) + (f" and {more} more" if more > 0 else "")


def _evidence(found: Localization) -> Table:
    scale = _scale(found)
    columns = (
        Column("module"),
        Column("check"),
        Column(scale.column, "figure", scale.form),
        Column("values off", "figure", "count"),
        Column("in words"),
    )
    rows = tuple(
        Row(_evidence_cells(suspect, evidence), (suspect.layer,), (suspect.operator,))
        for suspect in (*found.suspects, *found.odd)
        for evidence in suspect.evidence
    )
    return Table("Evidence by check", columns, rows, "n is the number of values that the check judged.")


def _evidence_cells(suspect: Suspect, evidence: Evidence) -> tuple[str | Figure, ...]:
    off = Figure(float(evidence.hits), samples=evidence.judged)
    return suspect.path, evidence.check, Figure(evidence.excess), off, evidence.words


def _checked(found: Localization) -> Section:
    blocks: list[Block] = [Note(text) for text in found.notes]
    blocks.append(Facts("Coverage", (Fact("sites checked", Figure(float(found.checked)), "count"),)))
    if found.unchecked:
        blocks.append(NotMeasured(tuple(_gap(text) for text in found.unchecked)))
    return Section("checked", "What was checked and what was not", tuple(blocks))


def _gap(text: str) -> Gap:
    what, _, why = text.partition(": ")
    return Gap(what, why or "could not be checked")
