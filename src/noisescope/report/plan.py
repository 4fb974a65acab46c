"""A migration plan as a section of a report, as a report of its own, as JSON, and as lines for a terminal.

It ranks nothing; the order and the words are those of the record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from noisescope.core.codec import to_plain
from noisescope.core.migration import PRIORITIES, Plan, Step
from noisescope.core.words import many
from noisescope.report.judged import filled_table, harm_unit, severity_of
from noisescope.report.origin import Origin, reproduce_section
from noisescope.report.view import (
    Action,
    Block,
    Column,
    Fact,
    Figure,
    Note,
    Reproduce,
    Row,
    Section,
    Severity,
    Table,
    View,
)

FORMAT, VERSION = "noisescope plan", 1


def plan_view(found: Plan, origin: Origin) -> View:
    """The report of a plan."""
    return View(
        title=f"Plan for moving {found.model} to {found.target}",
        subject=", ".join(part for part in (f"target {found.target}", origin.workload) if part),
        verdict=_verdict(found),
        severity=Severity("plan", "none"),
        sections=(plan_section(found), reproduce_section(origin)),
        actions=tuple(_action(step) for step in found.steps if step.priority == 0),
        facts=(Fact("steps", Figure(float(len(found.steps))), "count"),),
        made_by=origin.made_by,
    )


def _verdict(found: Plan) -> str:
    counts = {
        word: sum(step.priority == number for step in found.steps) for number, word in enumerate(PRIORITIES.values())
    }
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"{many(len(found.steps), 'step')}: {told}." if told else "Nothing is to be done before the move."


def _action(step: Step) -> Action:
    return Action(
        step.component,
        step.action,
        f"Validate it with: {step.command}",
        severity_of(step.severity),
        step.reasons,
        step.priority,
        step.layers,
        step.operators,
    )


def plan_section(found: Plan) -> Section:
    """Every step with its reasons and its command, what has to be run before, and the rank of every layer."""
    blocks: list[Block] = [Note(text) for text in found.notes]
    if found.prepare:
        blocks += [Note("Before all steps, on the reference machine and on the target:"), Reproduce(found.prepare)]
    blocks.append(_overview(found))
    for number, step in enumerate(found.steps, start=1):
        because = "; ".join(step.reasons)
        blocks += [Note(f"Step {number}. {step.action}. Because: {because}."), _told(step)]
    if found.layers:
        blocks.append(_ranks(found))
    intro = (
        "Ranked by how far the target diverges times what noise costs there; both high comes first. Without a "
        "comparison the rank is by what noise costs."
    )
    return Section("plan", "Migration plan", tuple(blocks), intro)


def _told(step: Step) -> Reproduce:
    facts = (Fact("priority", PRIORITIES[step.priority]), Fact("holds if", step.accept))
    return Reproduce((step.command,), facts)


def _overview(found: Plan) -> Table:
    columns = (Column("step", "figure", "count"), Column("priority"), Column("severity", "severity"), Column("what"))
    rows = tuple(
        Row(
            (Figure(float(number)), PRIORITIES[step.priority], severity_of(step.severity), step.action),
            step.layers,
            step.operators,
        )
        for number, step in enumerate(found.steps, start=1)
    )
    return Table("Steps", columns, rows)


def _ranks(found: Plan) -> Table:
    unit = harm_unit(found.metric)
    columns = (
        Column("layer", "figure", "count"),
        Column("priority"),
        Column("severity", "severity"),
        Column(unit.name, "figure", unit.form, unit.unit),
        Column("divergence", "figure", "percent"),
        Column("divergence x sensitivity", "figure", unit.form, unit.unit),
        Column("because"),
    )
    rows = [
        Row(
            (
                Figure(float(rank.layer)),
                PRIORITIES[rank.priority],
                severity_of(rank.severity),
                *(None if x is None else Figure(x) for x in (rank.harm, rank.divergence, rank.product)),
                rank.reason,
            ),
            (rank.layer,),
        )
        for rank in found.layers
    ]
    caption = (
        f"Harm is that of the least harmful window with the layer at noise of {found.scale:g}; divergence is the "
        "largest mean relative error in it that is not inherited."
    )
    return filled_table("Layers by rank", columns, rows, caption)


def plan_json(found: Plan) -> str:
    """The plan for other programs."""
    document = {"format": FORMAT, "version": VERSION, "plan": to_plain(found)}
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def plan_lines(found: Plan) -> Iterator[str]:
    """What a reader of a terminal needs."""
    yield _verdict(found)
    yield from found.notes
    if found.prepare:
        yield ""
        yield "before all steps:"
        yield from (f"  {command}" for command in found.prepare)
    for number, step in enumerate(found.steps, start=1):
        yield ""
        yield f"{number}. [{PRIORITIES[step.priority]}] {step.action}"
        yield from (f"   because {reason}" for reason in step.reasons)
        yield f"   {step.command}"
        yield f"   holds if: {step.accept}"
