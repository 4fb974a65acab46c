"""A comparison of two systems as a view: the verdict, who is at fault, the divergence over the layers, every place.

It judges nothing and uses the words of the record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from noisescope.diagnose.comparison import Comparison, Row
from noisescope.diagnose.comparison_text import side_text
from noisescope.report.grids import layer_name
from noisescope.report.judged import severity_of
from noisescope.report.origin import Origin, reproduce_section
from noisescope.report.view import (
    Action,
    Block,
    Column,
    Curve,
    Curves,
    Fact,
    Figure,
    Gap,
    Heatmap,
    Level,
    Note,
    NotMeasured,
    Point,
    Section,
    Severity,
    Table,
    Threshold,
    View,
)
from noisescope.report.view import Row as Line

_WORDS = {"local": "fault", "inherited": "inherited", "ok": "no fault found", "not compared": "undecided"}
_OVER = Threshold(1.0, "rounding", "undecided")


def comparison_view(found: Comparison, origin: Origin) -> View:
    """The report of a comparison."""
    return View(
        title=f"{found.other.name or 'A system'} against {found.reference.name or 'its reference'}",
        subject=", ".join(part for part in (found.other.dtype, found.other.device, found.other.system) if part),
        verdict=_verdict(found),
        severity=Severity(
            found.verdict, "critical" if found.suspects else "high" if found.verdict == "fail" else "low"
        ),
        sections=(
            _over_layers(found),
            _places(found),
            _checked(found),
            reproduce_section(origin, (("limit of MAPE", f"{found.max_mape:g}"),)),
        ),
        actions=tuple(_action(row) for row in found.suspects[:3]) or _above(found),
        facts=(
            Fact("reference", side_text(found.reference)),
            Fact("other", side_text(found.other)),
            Fact("places compared", Figure(float(len(found.rows))), "count"),
            Fact("places at fault", Figure(float(len(found.suspects))), "count"),
        ),
        made_by=origin.made_by,
    )


def _verdict(found: Comparison) -> str:
    reasons = found.reasons
    return f"{reasons[0]}." if reasons else "Nothing but the rounding of healthy systems is between the two."


def _level(found: Comparison) -> Level:
    if found.suspects:
        return "critical"
    return "high" if found.verdict == "fail" else "low"


def _action(row: Row) -> Action:
    return Action(
        row.place,
        f"Repair {row.operator} at {row.path} on the second system, then compare again",
        row.symptom or "Its own error is larger than rounding makes it.",
        severity_of("fault"),
        tuple(_evidence(row)),
        None,
        (row.layer,),
        (row.operator,),
    )


def _above(found: Comparison) -> tuple[Action, ...]:
    """What to do where the limit is broken and rounding explains every operator's own error."""
    if not found.above_limit:
        return ()
    worst = max(found.above_limit, key=lambda row: row.mape)
    action = Action(
        worst.place,
        "Compute in a longer dtype on the second system from the first divergent layer on, or accept the divergence "
        "with a higher limit of MAPE",
        "No operator is at fault: what rounding does to each of them adds up to more than the limit.",
        severity_of("high"),
        (f"MAPE {worst.mape:.3g} at {worst.place}, limit {found.max_mape:g}",),
        None,
        (worst.layer,),
        (worst.operator,),
    )
    return (action,)


def _evidence(row: Row) -> Iterable[str]:
    figures = row.figures
    if figures is not None:
        yield f"MAPE {figures.mape:.3g}, Pearson {figures.pearson:.5f}, largest error {figures.max_error:.3g}"
    if row.contrast.channels:
        worst = row.contrast.channels[0]
        yield f"channel {worst.start}: MAPE {worst.mape:.3g}"


def _over_layers(found: Comparison) -> Section:
    curve = found.curve
    blocks: list[Block] = []
    if curve:
        blocks.append(
            Curves(
                title="Divergence over the layers",
                curves=(
                    Curve("MAPE", tuple(Point(float(p.layer), Figure(p.mape), (p.layer,)) for p in curve)),
                    Curve("its sum", tuple(Point(float(p.layer), Figure(p.total), (p.layer,)) for p in curve)),
                ),
                x_name="layer",
                measure="mean relative error",
                form="percent",
                caption="At the end of each layer, and summed up to there.",
            )
        )
    blocks.append(_heatmap(found))
    return Section("divergence", "Where the two part", tuple(blocks), found.how)


def _heatmap(found: Comparison) -> Heatmap:
    layers = sorted({row.layer for row in found.rows}, key=lambda layer: (layer is None, layer or 0))
    operators = tuple(dict.fromkeys(row.operator for row in found.rows))
    worst: dict[tuple[str, int | None], float] = {}
    for row in found.rows:
        if not math.isnan(row.excess):
            place = (row.operator, row.layer)
            worst[place] = max(worst.get(place, 0.0), _own(row))
    cells = tuple(
        tuple(Figure(worst[op, layer]) if (op, layer) in worst else None for layer in layers) for op in operators
    )
    return Heatmap(
        title="Own error over what rounding allows",
        operators=operators,
        layers=tuple(layers),
        cells=cells,
        measure="error over rounding",
        form="times",
        spacing="log",
        missing="nothing of this operator there",
        caption="The worst place of each operator and layer. Up to 1 is what rounding does to a healthy system.",
    )


def _own(row: Row) -> float:
    own = row.excess if row.local is None else row.local
    return own if math.isfinite(own) else 1e12


def _places(found: Comparison) -> Section:
    columns = (
        Column("verdict", "severity"),
        Column("layer"),
        Column("operator"),
        Column("module"),
        Column("role"),
        Column("own error over rounding", "figure", "times"),
        Column("all error over rounding", "figure", "times"),
        Column("MAPE", "figure", "percent"),
        Column("MAE", "figure"),
        Column("Pearson", "figure"),
        Column("cosine", "figure"),
        Column("largest error", "figure"),
        Column("ulps", "figure", "count"),
        Column("worst channel"),
        Column("worst block"),
        Column("in words"),
    )
    rows = tuple(Line(_cells(row), (row.layer,), (row.operator,)) for row in found.rows if row.figures is not None)
    caption = "In the order of the run. Figures are of the rows that both sides hold; the errors over rounding of all."
    return Section("places", "Every place", (Table("Places", columns, rows, caption),))


def _cells(row: Row) -> tuple[str | Figure | Severity | None, ...]:
    figures, parts = row.figures, row.contrast
    word = severity_of(_WORDS[row.verdict])
    head = (Severity(row.verdict, word.level), layer_name(row.layer), row.operator, row.path, row.role)
    own = None if row.local is None else Figure(row.local)
    if figures is None:
        return (*head, own, Figure(row.excess), *[None] * 9)
    values = (figures.mape, figures.mae, figures.pearson, figures.cosine, figures.max_error, figures.ulp_max)
    channel = f"{parts.channels[0].start}: MAPE {parts.channels[0].mape:.3g}" if parts.channels else None
    block = f"{parts.blocks[0].start} on: MAPE {parts.blocks[0].mape:.3g}" if parts.blocks else None
    return (*head, own, Figure(row.excess), *map(Figure, values), channel, block, row.symptom or None)


def _checked(found: Comparison) -> Section:
    blocks: list[Block] = [Note(text) for text in (*found.notes, *found.reasons[1:4])]
    lost = [Gap(row.path, row.contrast.note or "not seen") for row in found.rows if row.verdict == "not compared"]
    lost += [Gap(key, "the second system has no such place") for key in found.only_in_reference]
    lost += [Gap(key, "the reference has no such place") for key in found.only_in_other]
    if lost:
        blocks.append(NotMeasured(tuple(lost)))
    count = Figure(float(len(found.rows) - sum(row.verdict == "not compared" for row in found.rows)))
    blocks.append(Table("Compared", (Column("places compared", "figure", "count"),), (Line((count,)),)))
    return Section("compared", "What was compared and what was not", tuple(blocks))
