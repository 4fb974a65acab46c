"""A precision map as a section of a report, or as a report of its own: bits by layer and part, and what they cost.

It judges nothing; figures are those of the record.
"""

from __future__ import annotations

from collections import Counter

from noisescope.core.precision import Choice, Measured, PrecisionMap
from noisescope.core.words import many
from noisescope.report.origin import Origin, reproduce_section
from noisescope.report.view import (
    Action,
    Bar,
    Bars,
    Block,
    Column,
    Fact,
    Figure,
    Gap,
    Heatmap,
    Note,
    NotMeasured,
    Row,
    Section,
    Severity,
    Table,
    View,
)
from noisescope.report.wording import number

_CALM = Severity("map", "none")
_UNIT = "nats"


def precision_view(found: PrecisionMap, origin: Origin) -> View:
    """The report of a precision map."""
    return View(
        title=f"Precision map of {origin.model}",
        subject=", ".join(part for part in (origin.device, origin.workload) if part),
        verdict=_verdict(found),
        severity=_CALM,
        sections=(precision_section(found), reproduce_section(origin)),
        actions=(_action(found),),
        facts=_head(found),
        made_by=origin.made_by,
    )


def _verdict(found: PrecisionMap) -> str:
    sentence = f"{number(found.average_bits)} bits per weight on average, of {number(found.target)} asked for"
    own = next(iter(found.measured), None)
    if own is None:
        return f"{sentence}; predicted to cost {number(found.harm)} nats of KL per token."
    return f"{sentence}, cost {number(own.estimate)} nats of KL per token."


def _action(found: PrecisionMap) -> Action:
    return Action(
        f"{many(len(found.choices), 'group')} of linear layers",
        "Quantize with the recipe in the folder precision of this run",
        _shares(found),
        Severity("optional", "low"),
        tuple(_measured_text(row) for row in found.measured),
    )


def _shares(found: PrecisionMap) -> str:
    by_size = sorted(found.choices, key=lambda choice: choice.option.bits / choice.group.weights)
    counted = Counter(choice.format for choice in by_size)
    return f"Groups by format, the smallest first: {', '.join(f'{form} {n}' for form, n in counted.items())}."


def _measured_text(row: Measured) -> str:
    limits = f"[{number(row.low)}, {number(row.high)}]"
    return f"{row.name}: {number(row.average_bits)} bits, KL {number(row.estimate)} {limits} nats per token"


def _head(found: PrecisionMap) -> tuple[Fact, ...]:
    return (
        Fact("average bits", Figure(found.average_bits)),
        Fact("weights in the map", Figure(float(found.weights)), "count"),
        Fact("rule", found.rule),
    )


def precision_section(found: PrecisionMap) -> Section:
    """The map as a picture and as a table, and what was measured of it."""
    blocks: list[Block] = [_heatmap(found)]
    if found.remark:
        blocks.append(Note(f"The target is not used up: {found.remark}."))
    if found.measured:
        blocks.append(_bars(found))
    blocks.append(_table(found))
    if found.left_out:
        blocks.append(NotMeasured(tuple(Gap(what, why) for what, _, why in _split(found.left_out))))
    intro = (
        "The format of the weights of each group of linear layers that read one input. Bits count scales and zero "
        "points; everything outside these layers stays as it is."
    )
    return Section("precision", "Precision map", tuple(blocks), intro)


def _split(texts: tuple[str, ...]) -> list[tuple[str, str, str]]:
    return [text.partition(": ") for text in texts]


def _bits(choice: Choice) -> float:
    return choice.option.bits / choice.group.weights


def _heatmap(found: PrecisionMap) -> Heatmap:
    parts = tuple(dict.fromkeys(choice.group.part for choice in found.choices))
    layers = tuple(sorted({choice.group.layer for choice in found.choices}, key=lambda at: (at is None, at)))
    cells = {(choice.group.part, choice.group.layer): Figure(_bits(choice)) for choice in found.choices}
    return Heatmap(
        title="Bits per weight by layer",
        operators=parts,
        layers=layers,
        cells=tuple(tuple(cells.get((part, layer)) for layer in layers) for part in parts),
        measure="bits per weight",
        missing="no such group in this layer",
    )


def _bars(found: PrecisionMap) -> Bars:
    return Bars(
        title="KL to the original, with the weights really rounded",
        bars=tuple(
            Bar(
                f"{row.name}, {number(row.average_bits)} bits",
                Figure(row.estimate, row.low, row.high, found.samples, found.confidence),
                _CALM,
            )
            for row in found.measured
        ),
        measure="KL per token",
        what="map",
        unit=_UNIT,
        caption=f"On {many(found.samples, 'sample')} that the prediction did not see.",
    )


def _table(found: PrecisionMap) -> Table:
    names = [option.format for option in found.choices[0].options]
    columns = (
        Column("group"),
        Column("format"),
        Column("bits per weight", "figure"),
        Column("weights", "figure", "count"),
        *(Column(f"predicted KL in {name}", "figure") for name in names),
    )
    rows = tuple(
        Row(
            (
                choice.group.name,
                choice.format,
                Figure(_bits(choice)),
                Figure(float(choice.group.weights)),
                *(Figure(option.harm) for option in choice.options),
            ),
            (choice.group.layer,),
        )
        for choice in found.choices
    )
    caption = f"Nats per token, to second order, from {many(found.tokens, 'token')}; each group rounded alone."
    return Table("Groups", columns, rows, caption)
