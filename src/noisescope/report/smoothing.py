"""A smoothed model as a report: what int8 costs before and after, and every fold with its alpha and its errors.

It judges nothing; figures are those of the record.
"""

from __future__ import annotations

from noisescope.core.smoothing import TOKEN, Cost, Smoothed, Smoothing
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
    Note,
    NotMeasured,
    Row,
    Section,
    Severity,
    Table,
    View,
)
from noisescope.report.wording import number

_CALM = Severity("int8", "none")
_COLUMNS = (
    Column("writer"),
    Column("readers"),
    Column("alpha"),
    Column("int8 error before", "figure", "percent"),
    Column("int8 error after", "figure", "percent"),
    Column("channel ratio before", "figure"),
    Column("channel ratio after", "figure"),
    Column("left because"),
)


def smoothing_view(found: Smoothing, origin: Origin) -> View:
    """The report of a smoothed model."""
    return View(
        title=f"Smoothing of {origin.model}",
        subject=", ".join(part for part in (origin.device, origin.workload) if part),
        verdict=_verdict(found),
        severity=Severity("smoothed" if found.folded else "left as it is", "none"),
        sections=(smoothing_section(found), reproduce_section(origin)),
        actions=_actions(found),
        facts=(
            Fact("folded", Figure(float(len(found.folded))), "count"),
            Fact("linear layers in int8", Figure(float(found.linears)), "count"),
            Fact("largest change of an answer", Figure(found.moved)),
        ),
        made_by=origin.made_by,
    )


def _verdict(found: Smoothing) -> str:
    if not found.folded:
        return f"Left as it is: no fold makes it cheaper in int8, which costs {_said(found, found.before)}."
    return (
        f"{many(len(found.folded), 'fold')} of {len(found.folds)}; in int8 it costs {_said(found, found.after)}, "
        f"before {number(found.before.estimate)}."
    )


def _said(found: Smoothing, cost: Cost) -> str:
    return f"{number(cost.estimate)} ({found.metric})"


def _actions(found: Smoothing) -> tuple[Action, ...]:
    if not found.folded:
        return ()
    rows = (("before", found.before), ("after", found.after))
    return (
        Action(
            f"{many(found.linears, 'linear layer')} in int8",
            "Quantize the checkpoint in this folder in place of the original",
            "A few input channels were far larger than the rest; their size is in the weights now.",
            Severity("optional", "low"),
            tuple(f"{name}: {number(c.estimate)} [{number(c.low)}, {number(c.high)}]" for name, c in rows),
        ),
    )


def smoothing_section(found: Smoothing) -> Section:
    """What was measured and every place that was tried."""
    blocks: list[Block] = [Note(f"{found.remark}.")] if found.remark else []
    blocks += [_bars(found), Table("Folds", _COLUMNS, tuple(map(_row, found.folds)), _CAPTION)]
    if found.without:
        gaps = (text.partition(": ") for text in found.without)
        blocks.append(NotMeasured(tuple(Gap(path, why) for path, _, why in gaps)))
    by = (
        "with a scale for each token" if found.activations == TOKEN else "with one scale for a tensor, fixed beforehand"
    )
    intro = (
        "A factor per channel moves from activations into weights; without int8 the answers stay. "
        f"In int8 weights have a scale per row, and activations are rounded {by}."
    )
    return Section("smoothing", "Smoothing", tuple(blocks), intro)


_CAPTION = (
    "The error of int8 in the outputs of the readers, as a share of what they give, without factors and with those of "
    "the best alpha. The channel ratio is the largest input channel over the median one."
)


def _bars(found: Smoothing) -> Bars:
    rows = (("before", found.before), ("after", found.after))
    return Bars(
        title="Cost of int8",
        bars=tuple(
            Bar(name, Figure(c.estimate, c.low, c.high, found.samples, found.confidence), _CALM) for name, c in rows
        ),
        measure=found.metric,
        what="model",
        caption=f"On {many(found.samples, 'sample')} by which nothing was chosen. On the same samples the change is "
        f"{number(found.change.estimate)} [{number(found.change.low)}, {number(found.change.high)}].",
    )


def _row(fold: Smoothed) -> Row:
    cells = (
        fold.writer,
        " ".join(path.rpartition(".")[2] for path in fold.readers),
        "left" if fold.alpha is None else f"{fold.alpha:g}",
        Figure(fold.before),
        Figure(fold.after),
        Figure(fold.ratio[0]),
        Figure(fold.ratio[1]),
        fold.why,
    )
    return Row(cells, (fold.layer,))
