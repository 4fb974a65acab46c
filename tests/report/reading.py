"""Reads pages and Markdown back with parsers that know nothing of the renderers, for the tests."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "input", "br", "hr", "rect", "line", "path", "circle", "polygon", "polyline", "use", "!doctype"}


@dataclass
class Tag:
    name: str
    attributes: dict[str, str | None]
    children: list = field(default_factory=list)

    def all(self, name: str) -> list[Tag]:
        found = [self] if self.name == name else []
        return found + [tag for child in self.children if isinstance(child, Tag) for tag in child.all(name)]

    def every(self) -> list[Tag]:
        return [self] + [tag for child in self.children if isinstance(child, Tag) for tag in child.every()]

    @property
    def text(self) -> str:
        parts = [child if isinstance(child, str) else child.text for child in self.children]
        return " ".join("".join(parts).split())

    def has_class(self, name: str) -> bool:
        return name in (self.attributes.get("class") or "").split()


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Tag("root", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute of {tag} stands twice"
        new = Tag(tag, dict(attrs))
        self.open[-1].children.append(new)
        self.open.append(new)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID, f"{tag} closes itself"
        self.open[-1].children.append(Tag(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1].name == tag, f"{tag} closes {self.open[-1].name}"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def page(text: str) -> Tag:
    """The tree of a page; tags that do not close each other properly are an error."""
    parser = _Page()
    parser.feed(text)
    parser.close()
    assert len(parser.open) == 1, f"{parser.open[-1].name} is never closed"
    return parser.root


Grid = tuple[str, list[list[str]]]


def tables_of_page(text: str) -> list[Grid]:
    found = []
    for table in page(text).all("table"):
        rows = [[c.text for c in row.children if isinstance(c, Tag)] for row in table.all("tr")]
        found.append((table.all("caption")[0].text, rows))
    return found


def plain(markdown: str) -> str:
    """What a reader of Markdown sees of a line of it."""
    return " ".join(html.unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", markdown)).split())


def tables_of_markdown(text: str) -> list[Grid]:
    found: list[Grid] = []
    title = ""
    inside = False
    for line in re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE).splitlines():
        if line.startswith("### "):
            title = plain(line[4:])
        is_row = line.startswith("|")
        if is_row and not inside:
            found.append((title, []))
        if is_row and not re.fullmatch(r"[|\s:-]+", line):
            found[-1][1].append([plain(cell) for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        inside = is_row
    return found
