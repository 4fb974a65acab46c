"""Lines with bands for their intervals, told apart by colour, dash and the shape of their points."""

from __future__ import annotations

from collections.abc import Sequence

from noisescope.report.drawing.palette import DASHES, LINES, drawn, filled
from noisescope.report.drawing.pieces import (
    SMALL,
    Axis,
    Entry,
    Picture,
    Place,
    across,
    legend,
    limits_on,
    line,
    margin,
    mark,
    measured,
    path,
    reached,
    text,
    upright,
)
from noisescope.report.drawing.scale import Scale, linear, spaced, ticks, values_of
from noisescope.report.grids import figure_text
from noisescope.report.markup import Element, Node, element
from noisescope.report.view import Curve, Curves, Point
from noisescope.report.wording import label, number, shorten

_PLOT = 240.0


def draw_curves(block: Curves, width: float, *, narrow: bool) -> Picture:
    """The picture of some curves."""
    figures = [point.figure for curve in block.curves for point in curve.points]
    values = reached(values_of(figures), block.thresholds)
    entries = [Entry(_sample(i), curve.name) for i, curve in enumerate(block.curves)]
    heading, top = legend(entries, 0.0, width)
    bottom = top + 24.0 + _PLOT
    up = spaced(values, block.spacing).onto(bottom, top + 24.0)
    limits = limits_on(block.thresholds, up, block.form)
    left, right = 62.0 if not narrow else 50.0, width - max(14.0, margin(limits))
    along = _tight([p.x for c in block.curves for p in c.points]).onto(left + 8, right - 4)
    nodes: list[Node] = [text(0, top + 10, _measure(block), size=SMALL)]
    nodes += upright(Axis(up, block.form, block.measure), left, right)
    nodes += across(limits, left, right)
    nodes += _along(block, along, (left, right, bottom), 4 if narrow else 10)
    for i, curve in enumerate(block.curves):
        nodes += _curve(i, curve, block, (along, up))
    return Picture(width, bottom + 44.0, (*heading, *nodes), _description(block))


def _tight(xs: Sequence[float]) -> Scale:
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    return Scale(low, high, 0.0, 1.0) if high > low else linear(xs)


def _measure(block: Curves) -> str:
    unit = f" ({block.unit})" if block.unit else ""
    return f"{block.measure}{unit}{', logarithmic' if block.spacing == 'log' else ''}"


def _description(block: Curves) -> str:
    ends = [_point_text(curve, curve.points[-1], block) for curve in block.curves if curve.points]
    last = "; ".join(ends) or "no points"
    return f"{block.measure} over {block.x_name}, {len(block.curves)} curves. At the end: {last}."


def _point_text(curve: Curve, point: Point, block: Curves) -> str:
    where = f"{block.x_name} {number(point.x, block.x_form)}"
    return f"{shorten(curve.name, 60)}, {where}: {figure_text(point.figure, block.form, block.unit)}"


def _along(block: Curves, along: Scale, edges: tuple[float, float, float], wanted: int) -> list[Node]:
    left, right, bottom = edges
    nodes: list[Node] = [line(left, bottom, right, bottom, "muted")]
    # Between two things that are counted there is none to be labelled.
    whole = all(p.x == round(p.x) for curve in block.curves for p in curve.points)
    for value in ticks(along, wanted, whole=whole):
        words = label(value, block.x_form)
        nodes.append(text(along.at(value), bottom + 17, words, anchor="middle", size=SMALL))
    nodes.append(text((left + right) / 2, bottom + 36, block.x_name, anchor="middle", size=SMALL))
    return nodes


def _curve(index: int, curve: Curve, block: Curves, scales: tuple[Scale, Scale]) -> list[Node]:
    along, up = scales
    colour = f"line{index % LINES}"
    known = [p for p in curve.points if measured(p.figure.value)]
    nodes: list[Node] = []
    band = [p for p in known if p.figure.low is not None and p.figure.high is not None]
    if len(band) > 1:
        upper = [(along.at(p.x), up.at(p.figure.high or 0.0)) for p in band]
        lower = [(along.at(p.x), up.at(p.figure.low or 0.0)) for p in reversed(band)]
        nodes.append(element("path", d=path([*upper, *lower], closed=True), fill_opacity="0.16", **filled(colour)))
    if len(known) > 1:
        d = path((along.at(p.x), up.at(p.figure.value or 0.0)) for p in known)
        nodes.append(element("path", d=d, stroke_dasharray=DASHES[index % LINES], **drawn(colour, 2.0)))
    for point in known:
        spot = _spot(index, along.at(point.x), up.at(point.figure.value or 0.0))
        nodes.append(mark(_point_text(curve, point, block), Place(point.layers, point.operators), spot))
    return nodes


def _spot(index: int, x: float, y: float) -> list[Node]:
    """A point in the shape of its curve, in a circle that is easier to hit."""
    colour = f"line{index % LINES}"
    room = element("circle", cx=x, cy=y, r=9.0, fill="none", class_="hit")
    r = 3.6
    if index % 3 == 0:
        return [room, element("circle", cx=x, cy=y, r=r, **filled(colour))]
    if index % 3 == 1:
        return [room, element("rect", x=x - r, y=y - r, width=2 * r, height=2 * r, **filled(colour))]
    corners = [(x, y - 1.3 * r), (x + 1.3 * r, y), (x, y + 1.3 * r), (x - 1.3 * r, y)]
    return [room, element("path", d=path(corners, closed=True), **filled(colour))]


def _sample(index: int) -> tuple[Element, ...]:
    colour = f"line{index % LINES}"
    stroke = element("path", d="M-8,0L10,0", stroke_dasharray=DASHES[index % LINES], **drawn(colour, 2.0))
    return (stroke, *(n for n in _spot(index, 1.0, 0.0)[1:] if isinstance(n, Element)))
