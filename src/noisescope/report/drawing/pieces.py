"""The pieces that every figure is made of: texts, shapes of the levels, marks that can be pointed at, axes, legends.

It knows no kind of figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from noisescope.report.drawing.palette import drawn, filled
from noisescope.report.drawing.scale import Scale, ticks
from noisescope.report.grids import layer_names
from noisescope.report.markup import Element, Node, element
from noisescope.report.view import LEVELS, Level, Severity, Threshold
from noisescope.report.wording import Format, label, shorten

# Of the usual sans-serif fonts, a letter is about this share of the font size wide.
_LETTER = 0.6
TEXT, SMALL = 12.0, 11.0
LINE = 20.0
_SLANT = 6.0
_LONGEST = 110


@dataclass(frozen=True)
class Picture:
    """A drawing: its size, what is in it, and what it shows in a sentence."""

    width: float
    height: float
    nodes: tuple[Node, ...]
    description: str


@dataclass(frozen=True)
class Entry:
    """One line of a legend: a small drawing about (0, 0) and its words."""

    symbol: tuple[Element, ...]
    words: str


Limit = tuple[float, str, Level]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Place:
    """What a mark speaks of; none means all."""

    layers: tuple[int | None, ...] = ()
    operators: tuple[str, ...] = ()


def width_of(text: str, size: float = TEXT) -> float:
    """About how wide a text will be."""
    return len(text) * size * _LETTER


def text(
    x: float, y: float, words: str, *, anchor: str = "start", size: float = TEXT, colour: str = "muted"
) -> Element:
    """Words at a place."""
    return element("text", shorten(words, _LONGEST), x=x, y=y, text_anchor=anchor, font_size=size, **filled(colour))


def line(x1: float, y1: float, x2: float, y2: float, colour: str = "rule", width: float = 1.0) -> Element:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **drawn(colour, width))


def dashed(x1: float, y1: float, x2: float, y2: float, colour: str) -> Element:
    """A dashed line, for limits."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke_dasharray="5 4", **drawn(colour, 1.25))


def shape(level: Level, x: float, y: float, radius: float = 5.0) -> Element:
    """A level's own shape: diamond, triangle, square, circle, cross, dash."""
    r = radius
    if level == "low":
        return element("circle", cx=x, cy=y, r=r * 0.85, **filled(level))
    if level == "undecided":
        arm = r * 0.8
        d = f"M{_xy(x - arm, y - arm)}L{_xy(x + arm, y + arm)}M{_xy(x - arm, y + arm)}L{_xy(x + arm, y - arm)}"
        return element("path", d=d, **drawn(level, 2.0))
    corners = {
        "critical": [(0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)],
        "high": [(0, -1.05), (1.1, 0.85), (-1.1, 0.85)],
        "moderate": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
        "none": [(-0.9, -0.3), (0.9, -0.3), (0.9, 0.3), (-0.9, 0.3)],
    }[level]
    return element("polygon", points=" ".join(_xy(x + r * dx, y + r * dy) for dx, dy in corners), **filled(level))


def flag(x: float, y: float) -> Element:
    """The sign of a special mark, such as an avalanche point: a triangle that points down at (x, y)."""
    return element("polygon", points=f"{_xy(x, y)} {_xy(x - 6, y - 9)} {_xy(x + 6, y - 9)}", **filled("ink"))


def _xy(x: float, y: float) -> str:
    return f"{round(x, 2) + 0.0:g},{round(y, 2) + 0.0:g}"


def path(points: Iterable[tuple[float, float]], *, closed: bool = False) -> str:
    """The path data through some points."""
    return "M" + "L".join(_xy(x, y) for x, y in points) + ("Z" if closed else "")


def mark(words: str, place: Place, shapes: Iterable[Node]) -> Element:
    """Something that can be pointed at, reached by keys and filtered, with its words."""
    return element(
        "g",
        element("title", words),
        shapes,
        class_="mark",
        role="img",
        aria_label=words,
        tabindex="-1",
        data_layers=layer_names(place.layers),
        data_operators=" ".join(place.operators) or None,
    )


def hatched(box: Box, colour: str, width: float = 1.3) -> list[Element]:
    """A frame filled with slanted lines. They are drawn one by one: a pattern makes a printed page large."""
    x, y, wide, high = box
    frame = element("rect", x=x, y=y, width=wide, height=high, rx=1.0, **drawn(colour, 1.0))
    slants: list[str] = []
    for along in range(1, math.ceil((wide + high) / _SLANT)):
        # The line on which the distances from the left and from the top add up to `out`.
        out = along * _SLANT
        right, down = min(out, wide), min(out, high)
        slants.append(f"M{_xy(x + out - down, y + down)}L{_xy(x + right, y + out - right)}")
    return [frame, element("path", d="".join(slants), **drawn(colour, width))] if slants else [frame]


def levels_legend(severities: Iterable[Severity]) -> list[Entry]:
    """The shapes of the levels that occur, worst first, in the words of the records."""
    seen = {(s.level, s.word) for s in severities}
    ordered = sorted(seen, key=lambda pair: (LEVELS.index(pair[0]), pair[1]))
    return [Entry((shape(level, 0, 0),), word) for level, word in ordered]


def legend(entries: Sequence[Entry], left: float, width: float) -> tuple[list[Element], float]:
    """The legend in as many lines as it needs, and its height."""
    nodes: list[Element] = []
    x, y = left, 14.0
    for entry in entries:
        words = shorten(entry.words, 48)
        needed = 26.0 + width_of(words)
        if x > left and x + needed > left + width:
            x, y = left, y + LINE
        symbol = element("g", entry.symbol, transform=f"translate({_xy(x + 8, y - 4)})")
        nodes += [symbol, text(x + 20, y, words)]
        x += needed + 10.0
    return nodes, (y + 12.0 if entries else 6.0)


@dataclass(frozen=True)
class Axis:
    """How an axis is written."""

    scale: Scale
    form: Format
    name: str
    wanted: int = 5


def upright(axis: Axis, left: float, right: float) -> list[Element]:
    """Labels and lines across for a scale that runs up."""
    nodes: list[Element] = []
    for value in ticks(axis.scale, axis.wanted):
        y = axis.scale.at(value)
        nodes += [line(left, y, right, y), text(left - 8, y + 4, label(value, axis.form), anchor="end", size=SMALL)]
    return nodes


def level(axis: Axis, top: float, bottom: float) -> list[Element]:
    """Labels and lines upward for a scale that runs to the right."""
    nodes: list[Element] = []
    for value in ticks(axis.scale, axis.wanted):
        x = axis.scale.at(value)
        nodes += [line(x, top, x, bottom), text(x, bottom + 16, label(value, axis.form), anchor="middle", size=SMALL)]
    return nodes


def across(limits: Sequence[Limit], left: float, right: float) -> list[Element]:
    """Limits as dashed lines, with their names in the margin on the right."""
    nodes: list[Element] = []
    below = math.inf
    for y, name, level in sorted(limits, reverse=True):
        # Names of limits that lie close together move apart.
        below = min(y + 4, below - 13)
        nodes += [dashed(left, y, right, y, level), text(right + 6, below, name, size=SMALL)]
    return nodes


def limits_on(thresholds: Iterable[Threshold], scale: Scale, form: Format) -> list[Limit]:
    """The thresholds that lie on an axis, where and by what name."""
    return [
        (scale.at(t.value), f"{t.name} {label(t.value, form)}", t.level) for t in thresholds if scale.holds(t.value)
    ]


def margin(limits: Iterable[Limit]) -> float:
    """How much room the names of limits need on the right."""
    return max((width_of(shorten(name, 24), SMALL) + 8 for _, name, _ in limits), default=8.0)


def reached(values: Sequence[float], thresholds: Sequence[Threshold]) -> list[float]:
    """The values that an axis has to hold: all measured ones, and the first threshold above them."""
    top = max(values, default=0.0)
    above = sorted(t.value for t in thresholds if t.value >= top)
    return [*values, *(t.value for t in thresholds if t.value < top), *above[:1]]


def every(labels: Sequence[str], room: float) -> int:
    """Show every n-th label so that they do not run into each other."""
    widest = max((width_of(label, SMALL) for label in labels), default=0.0)
    return max(1, math.ceil((widest + 6) / room)) if room > 0 else 1


def measured(value: float | None) -> bool:
    """Whether a value can be drawn."""
    return value is not None and math.isfinite(value)
