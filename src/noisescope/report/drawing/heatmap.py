"""Operators by layers in steps of colour: layers across on a wide page, layers down on a narrow one."""

from __future__ import annotations

from dataclasses import dataclass

from noisescope.report.drawing.palette import HEAT_STEPS, filled
from noisescope.report.drawing.pieces import (
    SMALL,
    Picture,
    Place,
    every,
    hatched,
    mark,
    measured,
    text,
    width_of,
)
from noisescope.report.drawing.scale import Scale, spaced
from noisescope.report.grids import cell_text, layer_name
from noisescope.report.markup import Node, element
from noisescope.report.view import Heatmap
from noisescope.report.wording import number, shorten

_TALLEST, _GAP = 30.0, 1.0


@dataclass(frozen=True)
class _Frame:
    """Where the cells are: the first corner, and the size of one."""

    left: float
    top: float
    wide: float
    high: float


def draw_heatmap(block: Heatmap, width: float, *, narrow: bool) -> Picture:
    """The picture of a heatmap."""
    seen = [c.value for row in block.cells for c in row if c is not None and c.value is not None and measured(c.value)]
    scale = _tight(seen, spaced(seen, block.spacing, with_zero=block.spacing == "linear"))
    nodes, height = (_down if narrow else _across)(block, scale, width)
    steps = _legend(block, scale, width)
    return Picture(width, height, (*steps, *nodes), _description(block))


def _tight(seen: list[float], scale: Scale) -> Scale:
    """Colours reach from the lowest to the highest value; rounding outward would leave the darkest unused."""
    low, high = min(seen, default=scale.low), max(seen, default=scale.high)
    low = max(low, scale.low) if scale.spacing == "log" else min(0.0, low)
    return Scale(low, high, 0.0, 1.0, scale.spacing) if high > low else scale


def _description(block: Heatmap) -> str:
    cells = [
        (cell.value, r, c)
        for r, row in enumerate(block.cells)
        for c, cell in enumerate(row)
        if cell is not None and cell.value is not None and measured(cell.value)
    ]
    most = f" Highest: {cell_text(block, *max(cells)[1:])}." if cells else ""
    return f"Heatmap of {block.measure} for {len(block.operators)} operators in {len(block.layers)} layers.{most}"


def _across(block: Heatmap, scale: Scale, width: float) -> tuple[list[Node], float]:
    names = [shorten(name, 16) for name in block.operators]
    left = max((width_of(name) for name in names), default=0.0) + 14.0
    frame = _Frame(left, 52.0, (width - left - 8) / max(1, len(block.layers)), _TALLEST)
    labels = [layer_name(layer) for layer in block.layers]
    bottom = frame.top + frame.high * len(names)
    nodes: list[Node] = [
        text(left - 10, frame.top + (r + 0.5) * frame.high + 4, name, anchor="end", colour="ink")
        for r, name in enumerate(names)
    ]
    skip = every(labels, frame.wide)
    nodes += [
        text(left + (c + 0.5) * frame.wide, bottom + 16, label, anchor="middle", size=SMALL)
        for c, label in enumerate(labels)
        if c % skip == 0
    ]
    nodes.append(text((left + width) / 2, bottom + 35, "layer", anchor="middle", size=SMALL))
    nodes += _cells(block, scale, frame, narrow=False)
    return nodes, bottom + 42.0


def _down(block: Heatmap, scale: Scale, width: float) -> tuple[list[Node], float]:
    names = [shorten(name, 12) for name in block.operators]
    labels = [layer_name(layer) for layer in block.layers]
    left = max((width_of(label, SMALL) for label in labels), default=0.0) + 12.0
    slanted = max((width_of(name, SMALL) for name in names), default=0.0) * 0.72
    # The last name leans over the edge of the last column.
    wide = (width - left - slanted * 0.9) / max(1, len(names))
    frame = _Frame(left, 60.0 + slanted, wide, 21.0)
    nodes: list[Node] = [
        element(
            "text",
            name,
            transform=f"translate({left + (c + 0.5) * wide:.1f},{frame.top - 6:.1f}) rotate(-45)",
            font_size=SMALL,
            **filled("ink"),
        )
        for c, name in enumerate(names)
    ]
    nodes += [
        text(left - 8, frame.top + (r + 0.5) * frame.high + 4, label, anchor="end", size=SMALL)
        for r, label in enumerate(labels)
    ]
    nodes += _cells(block, scale, frame, narrow=True)
    return nodes, frame.top + frame.high * len(labels) + 6.0


def _cells(block: Heatmap, scale: Scale, frame: _Frame, *, narrow: bool) -> list[Node]:
    nodes: list[Node] = []
    spots = [(r, c) for r in range(len(block.operators)) for c in range(len(block.layers))]
    for r, c in sorted(spots, key=lambda spot: spot[::-1]) if narrow else spots:
        across, down = (r, c) if narrow else (c, r)
        x, y = frame.left + across * frame.wide, frame.top + down * frame.high
        layer = block.layers[c]
        place = Place((layer,), (block.operators[r],))
        nodes.append(mark(cell_text(block, r, c), place, _cell(block, scale, (r, c), (x, y, frame))))
    return nodes


def _cell(block: Heatmap, scale: Scale, spot: tuple[int, int], at: tuple[float, float, _Frame]) -> list[Node]:
    x, y, frame = at
    cell = block.cells[spot[0]][spot[1]]
    wide, high = frame.wide - 2 * _GAP, frame.high - 2 * _GAP
    if cell is None or cell.value is None or not measured(cell.value):
        room = element("rect", x=x, y=y, width=frame.wide, height=frame.high, class_="hit", fill="none")
        return [room, *hatched((x + _GAP, y + _GAP, wide, high), "rule")]
    step = _step_of(cell.value, scale)
    words = number(cell.value, block.form)
    nodes: list[Node] = [
        element("rect", x=x + _GAP, y=y + _GAP, width=wide, height=high, rx=2.0, **filled(f"heat{step}"))
    ]
    if width_of(words, SMALL) < frame.wide - 6:
        colour = "paper" if step > HEAT_STEPS // 2 else "ink"
        spot_x, spot_y = x + frame.wide / 2, y + frame.high / 2 + 4
        nodes.append(text(spot_x, spot_y, words, anchor="middle", size=SMALL, colour=colour))
    return nodes


def _step_of(value: float, scale: Scale) -> int:
    return min(HEAT_STEPS - 1, int(scale.share(value) * HEAT_STEPS))


def _legend(block: Heatmap, scale: Scale, width: float) -> list[Node]:
    """The steps of colour with the values at their ends."""
    unit = f" ({block.unit})" if block.unit else ""
    spacing = ", logarithmic" if block.spacing == "log" else ""
    low, high = number(scale.low, block.form), number(scale.high, block.form)
    nodes: list[Node] = [text(0, 13, f"{block.measure}{unit}{spacing}"), text(0, 36, low, size=SMALL)]
    x = width_of(low, SMALL) + 8
    nodes += [
        element("rect", x=x + step * 15.0, y=26.0, width=15.0, height=12.0, **filled(f"heat{step}"))
        for step in range(HEAT_STEPS)
    ]
    x += HEAT_STEPS * 15.0 + 8
    nodes.append(text(x, 36, high, size=SMALL))
    if any(cell is None or cell.value is None for row in block.cells for cell in row):
        x += width_of(high, SMALL) + 16
        nodes += hatched((x, 26.0, 15.0, 12.0), "rule")
        nodes.append(text(x + 21, 36, shorten(block.missing, max(8, int((width - x - 21) / 6.4))), size=SMALL))
    return nodes
