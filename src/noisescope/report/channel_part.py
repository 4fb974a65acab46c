"""The part of a diagnosis report on channels: outliers by layer, which remedy fits, growth of the residual stream.

It judges nothing; severities of single channels follow the limits of the channel level.
"""

from __future__ import annotations

from collections.abc import Iterable

from noisescope.core.layout import Layout
from noisescope.diagnose.channel import ChannelLevel, ModuleChannels
from noisescope.diagnose.whole import OUTLIERS_EXPECTED
from noisescope.measure.outliers import StreamPoint
from noisescope.measure.outliers import severity_of as severity_word
from noisescope.report.judged import figure_of, severity_of
from noisescope.report.view import (
    Block,
    Column,
    Curve,
    Curves,
    Dot,
    Dots,
    Fact,
    Facts,
    Figure,
    Note,
    Point,
    Row,
    Section,
    Table,
    Threshold,
)

# Of each module, the largest outliers are drawn; the table counts all.
_MOST = 3
LIMITS = (Threshold(20.0, "high", "high"), Threshold(50.0, "critical", "critical"))


def channel_section(level: ChannelLevel | None) -> Section | None:
    """The channels; None where they were not asked about."""
    if level is None:
        return None
    blocks: list[Block] = []
    if any(module.outliers.indices for module in level.modules):
        blocks.append(_dots(level))
    else:
        blocks.append(Note("No channel is far larger than the median one of its module."))
    blocks += [_layers(level), *_remedies(level), _facts(level), *_correlations(level)]
    blocks += [_growth(level.growth)] if len(level.growth) > 1 else []
    intro = (
        "Channels whose largest value is far above that of the median channel of the same module. They set the scale "
        "of a whole tensor and leave few steps for the rest."
    )
    return Section("channels", "Channels", tuple(blocks), intro)


def _dots(level: ChannelLevel) -> Dots:
    layers = sorted({module.layer for module in level.modules if module.layer is not None})
    inside = [module for module in level.modules if module.layer is not None]
    return Dots(
        title="Outlier channels by layer",
        groups=tuple(map(str, layers)),
        dots=tuple(dot for module in inside for dot in _of_module(module)),
        measure="peak over median peak",
        what="channel",
        form="times",
        spacing="log",
        thresholds=LIMITS,
        caption=f"The {_MOST} largest outliers at each side of each watched module.",
    )


def _of_module(module: ModuleChannels) -> Iterable[Dot]:
    found = module.outliers
    largest = sorted(range(len(found.indices)), key=lambda i: -found.ratios[i])[:_MOST]
    name = ".".join(found.path.split(".")[-2:])
    return [
        Dot(
            str(module.layer),
            f"channel {found.indices[i]} at the {found.side} of {name}, {found.places[i]}",
            Figure(found.ratios[i]),
            severity_of(severity_word(found.ratios[i])),
            (module.layer,),
            ("linear",),
        )
        for i in largest
    ]


def _layers(level: ChannelLevel) -> Table:
    columns = (
        Column("layer", "figure", "count"),
        Column("severity", "severity"),
        Column("outliers", "figure", "count"),
        Column("channels", "figure", "count"),
        Column("share", "figure", "percent"),
        Column("largest ratio", "figure", "times"),
    )
    rows = tuple(
        Row(
            (
                Figure(float(one.layer)),
                severity_of(one.severity),
                Figure(float(one.outliers)),
                Figure(float(one.channels)),
                Figure(one.percentage / 100.0),
                Figure(one.max_ratio),
            ),
            (one.layer,),
        )
        for one in level.layers
    )
    return Table("Outlier channels by layer, all of them", columns, rows, "Over both sides of every watched module.")


def _remedies(level: ChannelLevel) -> tuple[Table, ...]:
    if not level.remedies:
        return ()
    rows = tuple(Row((one.format, one.remedy, one.why)) for one in level.remedies)
    return (Table("Which remedy fits", (Column("format"), Column("remedy"), Column("because")), rows),)


def _facts(level: ChannelLevel) -> Facts:
    found = [Fact("outlier channels", Figure(level.percentage / 100.0), "percent")]
    found.append(Fact("tokens seen", Figure(float(level.tokens)), "count"))
    found += [Fact(f"outliers at {place}", Figure(float(count)), "count") for place, count in level.places]
    return Facts("Channels in figures", tuple(found))


def _correlations(level: ChannelLevel) -> tuple[Table, ...]:
    if not level.correlations:
        return ()
    rows = tuple(
        Row((name, one.method, figure_of(one.interval), Figure(one.p_value))) for name, one in level.correlations
    )
    columns = (Column("outlier counts and"), Column("by"), Column("correlation", "figure"), Column("p", "figure"))
    caption = f"More than {OUTLIERS_EXPECTED} is expected; it is reported as found. n counts windows."
    return (Table("Do outliers sit where noise hurts?", columns, rows, caption),)


def _growth(growth: tuple[StreamPoint, ...]) -> Curves:
    layout = Layout(layers=tuple(point.path for point in growth))
    places = [layout.layer_of(point.path)[0] for point in growth]
    drawn = [(layer, point) for layer, point in zip(places, growth, strict=True) if layer is not None]
    curves = (
        Curve("root mean square", tuple(Point(float(at), Figure(p.rms), (at,)) for at, p in drawn)),
        Curve("largest value", tuple(Point(float(at), Figure(p.peak), (at,)) for at, p in drawn)),
    )
    return Curves(
        title="Growth of the residual stream",
        curves=curves,
        x_name="layer",
        measure="size of the stream",
        x_form="count",
        spacing="log",
        caption="At the output of each layer, over all tokens seen.",
    )
