"""Elements of HTML and SVG, written out with every text and attribute escaped.

There is no way to put foreign text in unescaped; `Verbatim` is for the files of this package.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

_CHILDLESS = {"meta", "input", "br", "hr", "rect", "line", "path", "circle", "polygon", "polyline", "use"}


@dataclass(frozen=True)
class Verbatim:
    """Style or script of this package, written as it is."""

    text: str


@dataclass(frozen=True)
class Element:
    """A tag, its attributes in order, and what is inside."""

    tag: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Node, ...]


Node = Element | Verbatim | str
Attribute = str | int | float | bool | None


def element(tag: str, *children: Node | Iterable[Node] | None, **attributes: Attribute) -> Element:
    """An element. Names may end in an underscore and have underscores for dashes; None and False leave one out."""
    named = tuple(
        (name.rstrip("_").replace("_", "-"), _text(value))
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    return Element(tag, named, tuple(_flat(children)))


def _flat(children: Iterable[Node | Iterable[Node] | None]) -> Iterable[Node]:
    for child in children:
        if isinstance(child, Element | Verbatim | str):
            yield child
        elif child is not None:
            yield from child


def _text(value: Attribute) -> str:
    if value is True:
        return ""
    return length(value) if isinstance(value, float) else str(value)


def length(value: float) -> str:
    """A coordinate, to a hundredth."""
    # Adding 0 turns -0.0 into 0.0.
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def render(node: Node) -> str:
    """The text of an element with all that is in it."""
    pieces: list[str] = []
    _render(node, pieces)
    return "".join(pieces)


def _render(node: Node, pieces: list[str]) -> None:
    if isinstance(node, str):
        pieces.append(escape(node, quote=False))
    elif isinstance(node, Verbatim):
        pieces.append(node.text)
    else:
        _render_element(node, pieces)


def _render_element(node: Element, pieces: list[str]) -> None:
    attributes = "".join(f' {name}="{escape(value)}"' for name, value in node.attributes)
    if node.tag in _CHILDLESS:
        pieces.append(f"<{node.tag}{attributes}/>")
        return
    pieces.append(f"<{node.tag}{attributes}>")
    for child in node.children:
        _render(child, pieces)
    pieces.append(f"</{node.tag}>")
