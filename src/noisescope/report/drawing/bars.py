"""Bars with intervals: upright on a wide page, lying on a narrow one."""

from __future__ import annotations

from collections.abc import Sequence

from noisescope.report.drawing.palette import drawn, filled
from noisescope.report.drawing.pieces import (
    SMALL,
    Axis,
    Box,
    Entry,
    Picture,
    Place,
    across,
    dashed,
    every,
    flag,
    hatched,
    legend,
    level,
    levels_legend,
    limits_on,
    line,
    margin,
    mark,
    measured,
    reached,
    shape,
    text,
    upright,
)
from noisescope.report.drawing.scale import Scale, log, tight, values_of
from noisescope.report.grids import bar_text
from noisescope.report.markup import Element, Node, element
from noisescope.report.view import Bar, Bars
from noisescope.report.wording import number, shorten

_PLOT, _ROW = 250.0, 26.0
# A letter of a label takes no more.
_LETTER = 6.5


def draw_bars(block: Bars, width: float, *, narrow: bool) -> Picture:
    """The picture of a block of bars."""
    values = reached(values_of(bar.figure for bar in block.bars), block.thresholds)
    scale = _decades(values) if block.spacing == "log" else tight(values)
    entries = levels_legend(bar.severity for bar in block.bars)
    marks = sorted({name for bar in block.bars for name in bar.marks})
    entries += [Entry((flag(0, 5),), name) for name in marks]
    heading, top = legend(entries, 0.0, width)
    body, height = (_lying if narrow else _upright)(block, scale, (width, top))
    return Picture(width, height, (*heading, *body), _description(block))


def _decades(values: Sequence[float]) -> Scale:
    """A logarithmic scale that begins below the smallest value, so that its bar has a height."""
    least = min((value for value in values if value > 0), default=1.0)
    return log([*values, least / 2])


def _description(block: Bars) -> str:
    worst = max((b for b in block.bars if measured(b.figure.value)), key=lambda b: b.figure.value or 0, default=None)
    most = "" if worst is None else f" Highest: {bar_text(worst, block)}."
    return f"Bar chart of {block.measure} for {len(block.bars)} {block.what}s.{most}"


def _upright(block: Bars, scale: Scale, size: tuple[float, float]) -> tuple[list[Node], float]:
    width, top = size
    bottom = top + 26.0 + _PLOT
    axis = scale.onto(bottom, top + 26.0)
    limits = limits_on(block.thresholds, axis, block.form)
    left, right = 62.0, width - margin(limits)
    step = (right - left) / max(1, len(block.bars))
    nodes: list[Node] = [text(0, top + 10, _measure(block), size=SMALL)]
    nodes += upright(Axis(axis, block.form, block.measure), left, right)
    thin = min(46.0, step * 0.72)
    for i, bar in enumerate(block.bars):
        x = left + (i + 0.5) * step
        nodes.append(mark(bar_text(bar, block), Place(bar.layers, bar.operators), _upright_bar(bar, x, thin, axis)))
    nodes += across(limits, left, right)
    nodes.append(line(left, axis.at(0), right, axis.at(0), "muted"))
    nodes += _labels([bar.label for bar in block.bars], left, step, bottom)
    nodes.append(text((left + right) / 2, bottom + 38, block.what, anchor="middle", size=SMALL))
    return nodes, bottom + 46.0


def _measure(block: Bars) -> str:
    unit = f" ({block.unit})" if block.unit else ""
    return f"{block.measure}{unit}{', logarithmic' if block.spacing == 'log' else ''}"


def _upright_bar(bar: Bar, x: float, thin: float, axis: Scale) -> list[Node]:
    f = bar.figure
    top, bottom = axis.end, axis.start
    room = element("rect", x=x - thin * 0.69, y=top, width=thin * 1.38, height=bottom - top, class_="hit", fill="none")
    if f.value is None or not measured(f.value):
        return [room, shape(bar.severity.level, x, axis.at(0) - 8, min(5.0, thin * 0.42))]
    y, base = axis.at(f.value), axis.at(0)
    nodes: list[Node] = [room, *_body(bar, (x - thin / 2, min(y, base), thin, abs(y - base)))]
    peak = y
    if f.low is not None and f.high is not None:
        peak = axis.at(f.high)
        cap = min(5.0, thin / 3)
        nodes += _whisker((x, axis.at(f.low), x, peak), (cap, 0.0))
    peak = min(peak, base)
    nodes.append(shape(bar.severity.level, x, peak - 9, min(5.0, thin * 0.42)))
    return [*nodes, flag(x, peak - 17)] if bar.marks else nodes


def _body(bar: Bar, box: Box) -> list[Element]:
    if bar.severity.level == "undecided":
        return hatched(box, "undecided")
    x, y, wide, high = box
    return [element("rect", x=x, y=y, width=wide, height=high, rx=1.0, **filled(bar.severity.level))]


def _whisker(ends: tuple[float, float, float, float], cap: tuple[float, float]) -> list[Element]:
    """A line from limit to limit with a cap at both; the outline keeps it visible on the bar."""
    x1, y1, x2, y2 = ends
    dx, dy = cap
    d = f"M{x1:.2f},{y1:.2f}L{x2:.2f},{y2:.2f}M{x1 - dx:.2f},{y1 - dy:.2f}L{x1 + dx:.2f},{y1 + dy:.2f}"
    d += f"M{x2 - dx:.2f},{y2 - dy:.2f}L{x2 + dx:.2f},{y2 + dy:.2f}"
    return [element("path", d=d, **drawn("paper", 3.5)), element("path", d=d, **drawn("ink", 1.25))]


def _labels(labels: Sequence[str], left: float, step: float, bottom: float) -> list[Node]:
    short = [shorten(label, max(14, int(step / _LETTER))) for label in labels]
    skip = every(short, step)
    return [
        text(left + (i + 0.5) * step, bottom + 17, label, anchor="middle", size=SMALL)
        for i, label in enumerate(short)
        if i % skip == 0
    ]


def _lying(block: Bars, scale: Scale, size: tuple[float, float]) -> tuple[list[Node], float]:
    width, top = size
    left, right = 74.0, width - 72.0
    first = top + 22.0
    bottom = first + _ROW * len(block.bars) + 4.0
    axis = scale.onto(left, right)
    nodes: list[Node] = [text(0, top + 8, _measure(block), size=SMALL)]
    nodes += level(Axis(axis, block.form, block.measure, 3), first, bottom)
    nodes += [dashed(x, first, x, bottom, grade) for x, _, grade in limits_on(block.thresholds, axis, block.form)]
    for i, bar in enumerate(block.bars):
        y = first + (i + 0.5) * _ROW
        shapes = _lying_bar(bar, y, axis)
        shapes.append(text(left - 8, y + 4, shorten(bar.label, 10), anchor="end", size=SMALL, colour="ink"))
        value = number(bar.figure.value, block.form)
        shapes.append(text(width, y + 4, value, anchor="end", size=SMALL, colour="ink"))
        nodes.append(mark(bar_text(bar, block), Place(bar.layers, bar.operators), shapes))
    nodes.append(line(axis.at(0), first, axis.at(0), bottom, "muted"))
    return nodes, bottom + 24.0


def _lying_bar(bar: Bar, y: float, axis: Scale) -> list[Node]:
    f = bar.figure
    room = element("rect", x=0.0, y=y - _ROW / 2, width=axis.end + 72, height=_ROW, class_="hit", fill="none")
    if f.value is None or not measured(f.value):
        return [room, shape(bar.severity.level, axis.at(0) + 9, y, 4.5)]
    x, base = axis.at(f.value), axis.at(0)
    nodes: list[Node] = [room, *_body(bar, (min(x, base), y - 7, abs(x - base), 14.0))]
    end = x
    if f.low is not None and f.high is not None:
        end = axis.at(f.high)
        nodes += _whisker((axis.at(f.low), y, end, y), (0.0, 4.0))
    end = max(end, base)
    nodes.append(shape(bar.severity.level, end + 9, y, 4.5))
    return [*nodes, flag(end + 21, y + 5)] if bar.marks else nodes
