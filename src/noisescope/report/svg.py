"""The figures of a view as SVG: inside a page, or as files of their own that need nothing else.

It draws no figure itself; `noisescope.report.drawing` does.
"""

from __future__ import annotations

from noisescope.report.drawing.bars import draw_bars
from noisescope.report.drawing.curves import draw_curves
from noisescope.report.drawing.dots import draw_dots
from noisescope.report.drawing.heatmap import draw_heatmap
from noisescope.report.drawing.palette import LIGHT, filled
from noisescope.report.drawing.pieces import Picture
from noisescope.report.markup import Element, element, render
from noisescope.report.view import Bars, Curves, Dots, Drawn, Heatmap, Section, View
from noisescope.report.wording import shorten

WIDE, NARROW = 900.0, 328.0
_FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
_MARGIN, _TITLE = 20.0, 36.0


def drawn_blocks(section: Section) -> list[Drawn]:
    """The blocks of a section that are figures."""
    return [block for block in section.blocks if isinstance(block, Heatmap | Bars | Dots | Curves)]


def picture_of(block: Drawn, *, narrow: bool = False) -> Picture:
    """The drawing of a figure for a wide or a narrow page."""
    width = NARROW if narrow else WIDE
    if isinstance(block, Heatmap):
        return draw_heatmap(block, width, narrow=narrow)
    if isinstance(block, Bars):
        return draw_bars(block, width, narrow=narrow)
    if isinstance(block, Dots):
        return draw_dots(block, width, narrow=narrow)
    return draw_curves(block, width, narrow=narrow)


def inline(picture: Picture, key: str, title: str, classes: str) -> Element:
    """A drawing for a page. It is one stop for the keyboard; the arrow keys go from mark to mark."""
    return element(
        "svg",
        element("title", shorten(title), id=f"{key}-title"),
        element("desc", picture.description, id=f"{key}-desc"),
        picture.nodes,
        class_=classes,
        viewBox=f"0 0 {picture.width:g} {picture.height:g}",
        role="group",
        aria_labelledby=f"{key}-title {key}-desc",
    )


def standalone(block: Drawn) -> str:
    """A figure as a file: with its title, on white paper."""
    picture = picture_of(block)
    width, height = picture.width + 2 * _MARGIN, picture.height + _TITLE + 2 * _MARGIN
    heading = element(
        "text", shorten(block.title, 90), x=_MARGIN, y=_MARGIN + 16, font_size=17, font_weight=600, **filled("ink")
    )
    whole = element(
        "svg",
        element("title", shorten(block.title)),
        element("desc", picture.description),
        element("rect", width=width, height=height, fill=LIGHT["paper"]),
        heading,
        element("g", picture.nodes, transform=f"translate({_MARGIN:g},{_MARGIN + _TITLE:g})"),
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        viewBox=f"0 0 {width:g} {height:g}",
        font_family=_FONT,
    )
    return render(whole) + "\n"


def figures(view: View) -> dict[str, str]:
    """Every figure of a view by a name for its file."""
    found: dict[str, str] = {}
    for section in view.sections:
        for index, block in enumerate(drawn_blocks(section)):
            name = f"{section.key}-{index + 1}-{block.kind}"
            found[name] = standalone(block)
    return found
