"""Points over groups: groups across on a wide page, groups down on a narrow one."""

from __future__ import annotations

from noisescope.report.drawing.pieces import (
    SMALL,
    Axis,
    Picture,
    Place,
    across,
    dashed,
    every,
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
from noisescope.report.drawing.scale import Scale, spaced, values_of
from noisescope.report.grids import dot_text
from noisescope.report.markup import Node
from noisescope.report.view import Dot, Dots
from noisescope.report.wording import shorten

_PLOT, _ROW = 240.0, 22.0


def draw_dots(block: Dots, width: float, *, narrow: bool) -> Picture:
    """The picture of points over groups."""
    values = reached(values_of(dot.figure for dot in block.dots), block.thresholds)
    scale = spaced(values, block.spacing)
    heading, top = legend(levels_legend(dot.severity for dot in block.dots), 0.0, width)
    nodes, height = (_down if narrow else _across)(block, scale, (width, top))
    return Picture(width, height, (*heading, *nodes), _description(block))


def _description(block: Dots) -> str:
    known = [dot for dot in block.dots if measured(dot.figure.value)]
    worst = max(known, key=lambda dot: dot.figure.value or 0.0, default=None)
    most = "" if worst is None else f" Highest: {dot_text(worst, block)}."
    return f"{len(block.dots)} points of {block.measure} over {len(block.groups)} places.{most}"


def _measure(block: Dots) -> str:
    unit = f" ({block.unit})" if block.unit else ""
    return f"{block.measure}{unit}{', logarithmic' if block.spacing == 'log' else ''}"


def _across(block: Dots, scale: Scale, size: tuple[float, float]) -> tuple[list[Node], float]:
    width, top = size
    bottom = top + 24.0 + _PLOT
    axis = scale.onto(bottom, top + 24.0)
    limits = limits_on(block.thresholds, axis, block.form)
    left, right = 62.0, width - margin(limits)
    step = (right - left) / max(1, len(block.groups))
    labels = [shorten(group, 18) for group in block.groups]
    nodes: list[Node] = [text(0, top + 10, _measure(block), size=SMALL)]
    nodes += upright(Axis(axis, block.form, block.measure), left, right)
    nodes += across(limits, left, right)
    nodes.append(line(left, bottom, right, bottom, "muted"))
    skip = every(labels, step)
    nodes += [
        text(left + (i + 0.5) * step, bottom + 17, label, anchor="middle", size=SMALL)
        for i, label in enumerate(labels)
        if i % skip == 0
    ]
    for dot in sorted(block.dots, key=lambda d: block.groups.index(d.group)):
        x = left + (block.groups.index(dot.group) + 0.5) * step
        nodes.append(_mark(dot, block, x, None if dot.figure.value is None else axis.at(dot.figure.value)))
    return nodes, bottom + 26.0


def _down(block: Dots, scale: Scale, size: tuple[float, float]) -> tuple[list[Node], float]:
    width, top = size
    used = [group for group in block.groups if any(dot.group == group for dot in block.dots)]
    left, right, first = 92.0, width - 14.0, top + 22.0
    bottom = first + _ROW * len(used) + 4.0
    axis = scale.onto(left, right)
    nodes: list[Node] = [text(0, top + 8, _measure(block), size=SMALL)]
    nodes += level(Axis(axis, block.form, block.measure, 4), first, bottom)
    nodes += [dashed(x, first, x, bottom, grade) for x, _, grade in limits_on(block.thresholds, axis, block.form)]
    for i, group in enumerate(used):
        y = first + (i + 0.5) * _ROW
        nodes += [text(left - 10, y + 4, shorten(group, 13), anchor="end", size=SMALL, colour="ink")]
    for dot in sorted(block.dots, key=lambda d: used.index(d.group)):
        y = first + (used.index(dot.group) + 0.5) * _ROW
        x = None if dot.figure.value is None else axis.at(dot.figure.value)
        nodes.append(_mark(dot, block, x, y))
    return nodes, bottom + 24.0


def _mark(dot: Dot, block: Dots, x: float | None, y: float | None) -> Node:
    shapes = [] if x is None or y is None else [shape(dot.severity.level, x, y, 5.5)]
    return mark(dot_text(dot, block), Place(dot.layers, dot.operators), shapes)
