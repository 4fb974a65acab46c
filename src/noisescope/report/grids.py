"""Every block as rows of written cells: what the tables of HTML and Markdown show, and the words of a mark in a figure.

It knows no format. Figures, tables and texts take their words from here, so that they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

from noisescope.report.view import (
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Curves,
    Dot,
    Dots,
    Fact,
    Figure,
    Heatmap,
    Level,
    Severity,
    Table,
)
from noisescope.report.wording import NOTHING, TEXT_LIMIT, Format, label, limits, number, shorten

OUTSIDE = "outside"
_GRADES = {"critical": 4.0, "high": 3.0, "moderate": 2.0, "low": 1.0, "undecided": 0.5, "none": 0.0}


@dataclass(frozen=True)
class Written:
    """A cell: its words, the interval and sample count behind them, what to sort it by, and its level if it has one."""

    text: str
    detail: str = ""
    order: float | str = ""
    level: Level | None = None
    whole: str = ""


@dataclass(frozen=True)
class Line:
    """A row of written cells with the layers and operators that it speaks of."""

    cells: tuple[Written, ...]
    layers: tuple[int | None, ...] = ()
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grid:
    """A written table; `numeric` says which columns are set right."""

    title: str
    heads: tuple[str, ...]
    numeric: tuple[bool, ...]
    lines: tuple[Line, ...]


def layer_name(layer: int | None) -> str:
    """A layer's index, or the word for what lies outside the stack."""
    return OUTSIDE if layer is None else str(layer)


def layer_names(layers: tuple[int | None, ...]) -> str | None:
    """Layers as the words by which a page filters; None where nothing is said of layers."""
    return " ".join(map(layer_name, layers)) or None


def detail_of(figure: Figure, form: Format = "plain") -> str:
    """The interval and the sample count of a figure."""
    count = "" if figure.samples is None else f"n\u00a0=\u00a0{number(figure.samples, 'count')}"
    return " ".join(part for part in (limits(figure.low, figure.high, form), count) if part)


def figure_text(figure: Figure | None, form: Format = "plain", unit: str = "") -> str:
    """A figure in one line: value, interval, sample count, confidence."""
    if figure is None:
        return NOTHING
    sure = (
        "" if figure.confidence is None or figure.low is None else f"({label(figure.confidence, 'percent')} interval)"
    )
    return " ".join(part for part in (number(figure.value, form, unit), detail_of(figure, form), sure) if part)


def fact_text(fact: Fact) -> str:
    """The value of a fact in words."""
    return fact.value if isinstance(fact.value, str) else figure_text(fact.value, fact.form, fact.unit)


def written(cell: Cell, form: Format = "plain", unit: str = "") -> Written:
    """One cell in words."""
    if cell is None:
        return Written(NOTHING)
    if isinstance(cell, Figure):
        order = "" if cell.value is None else cell.value
        return Written(number(cell.value, form, unit), detail_of(cell, form), order)
    if isinstance(cell, Severity):
        return Written(shorten(cell.word, 40), order=_GRADES[cell.level], level=cell.level)
    shown = shorten(cell, TEXT_LIMIT)
    return Written(shown, order=shown.casefold(), whole=cell if len(shown) < len(cell) else "")


def grid_of(block: Block) -> Grid | None:
    """The table of a block; None for a block that is not made of figures."""
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Heatmap):
        return _heatmap(block)
    if isinstance(block, Bars):
        return _bars(block)
    if isinstance(block, Dots):
        return _dots(block)
    return _curves(block) if isinstance(block, Curves) else None


def _table(block: Table) -> Grid:
    lines = [
        Line(
            tuple(written(cell, c.form, c.unit) for cell, c in zip(row.cells, block.columns, strict=True)),
            row.layers,
            row.operators,
        )
        for row in block.rows
    ]
    heads = tuple(shorten(column.name, 40) for column in block.columns)
    return Grid(block.title, heads, tuple(_is_numeric(c) for c in block.columns), tuple(lines))


def _is_numeric(column: Column) -> bool:
    return column.kind == "figure"


def _heatmap(block: Heatmap) -> Grid:
    """Layers down, operators across: a page is longer than wide."""
    lines = [
        Line(
            (
                Written(layer_name(layer), order=-1.0 if layer is None else float(layer)),
                *(written(row[i], block.form, block.unit) for row in block.cells),
            ),
            (layer,),
        )
        for i, layer in enumerate(block.layers)
    ]
    heads = ("layer", *(shorten(name, 40) for name in block.operators))
    return Grid(block.title, heads, (True,) * len(heads), tuple(lines))


def _bars(block: Bars) -> Grid:
    lines = [Line(_bar_cells(i, bar, block), bar.layers, bar.operators) for i, bar in enumerate(block.bars)]
    return Grid(
        block.title, (block.what, block.measure, "severity", "remarks"), (False, True, False, False), tuple(lines)
    )


def _bar_cells(index: int, bar: Bar, block: Bars) -> tuple[Written, ...]:
    marks = said(*bar.marks, bar.note)
    return (
        Written(shorten(bar.label), order=float(index)),
        written(bar.figure, block.form, block.unit),
        written(bar.severity),
        Written(shorten(marks, TEXT_LIMIT) or NOTHING, order=shorten(marks, TEXT_LIMIT)),
    )


def _dots(block: Dots) -> Grid:
    lines = [Line(_dot_cells(dot, block), dot.layers, dot.operators) for dot in block.dots]
    return Grid(block.title, (block.what, "at", block.measure, "severity"), (False, False, True, False), tuple(lines))


def _dot_cells(dot: Dot, block: Dots) -> tuple[Written, ...]:
    return (
        Written(shorten(dot.label), order=dot.label.casefold()),
        Written(shorten(dot.group), order=float(block.groups.index(dot.group))),
        written(dot.figure, block.form, block.unit),
        written(dot.severity),
    )


def _curves(block: Curves) -> Grid:
    lines = [
        Line(
            (
                Written(shorten(curve.name), order=curve.name.casefold()),
                Written(number(point.x, block.x_form), order=point.x),
                written(point.figure, block.form, block.unit),
            ),
            point.layers,
            point.operators,
        )
        for curve in block.curves
        for point in curve.points
    ]
    return Grid(block.title, ("curve", block.x_name, block.measure), (False, True, True), tuple(lines))


def said(*parts: str) -> str:
    """The words of one mark, joined."""
    return "; ".join(part for part in parts if part)


def bar_text(bar: Bar, block: Bars) -> str:
    """A bar in words."""
    name = f"{block.what} {shorten(bar.label)}"
    return said(
        f"{name}: {figure_text(bar.figure, block.form, block.unit)}", bar.severity.word, *bar.marks, shorten(bar.note)
    )


def dot_text(dot: Dot, block: Dots) -> str:
    """A point in words."""
    place = f"{shorten(dot.label)}, {shorten(dot.group)}"
    return said(f"{place}: {figure_text(dot.figure, block.form, block.unit)}", dot.severity.word)


def cell_text(block: Heatmap, row: int, column: int) -> str:
    """A cell of a heatmap in words."""
    layer = block.layers[column]
    place = "outside the layers" if layer is None else f"layer {layer}"
    cell = block.cells[row][column]
    words = block.missing if cell is None else figure_text(cell, block.form, block.unit)
    return f"{shorten(block.operators[row], 40)}, {place}: {words}"
