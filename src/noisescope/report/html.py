"""A view as one HTML file that opens offline and asks for nothing: its style, script and figures are inside.

It decides nothing and touches no files but the style and the script of this package. Without scripts everything can be
read; with them tables sort, figures answer the keyboard, and one filter works on the whole page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from importlib.resources import files

from noisescope.report.drawing.gauge import draw_gauge
from noisescope.report.drawing.palette import stylesheet
from noisescope.report.drawing.pieces import shape
from noisescope.report.grids import Grid, Line, Written, fact_text, grid_of, layer_name, layer_names
from noisescope.report.markup import Element, Node, Verbatim, element, render
from noisescope.report.svg import inline, picture_of
from noisescope.report.view import (
    Action,
    Bars,
    Block,
    Curves,
    Dots,
    Drawn,
    Fact,
    Facts,
    Heatmap,
    Level,
    Note,
    NotMeasured,
    Reproduce,
    Risk,
    Section,
    Severity,
    Statement,
    Table,
    View,
)
from noisescope.report.wording import points, shorten

FIRST = 3
_BRIEF = 200
# A word stays in one line; a longer text in a cell gets room; a longer table scrolls by itself.
_WORD, _PHRASE, _PROSE, _LONG = 16, 28, 90, 16


def to_html(view: View) -> str:
    """The whole page."""
    style, script = stylesheet() + _file("page.css"), _file("page.js")
    page = element("html", _head(view, style, script), _body(view, script), lang="en")
    return "<!DOCTYPE html>\n" + render(page) + "\n"


def _file(name: str) -> str:
    return files("noisescope.report").joinpath(name).read_text("utf-8")


def _head(view: View, style: str, script: str) -> Element:
    # Nothing may be loaded, sent or run but what is in the file: its style and script are named by their hashes.
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{view.title}: {view.severity.word}"),
        element("style", Verbatim(style)),
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _body(view: View, script: str) -> Element:
    return element(
        "body",
        element("a", "Skip to the findings", class_="skip", href="#findings"),
        element("header", _top(view), class_="top"),
        _contents(view),
        element("main", _filter(view), [_section(section) for section in view.sections], id="findings"),
        element("footer", element("p", view.made_by)),
        element("div", id="tip", class_="tip", hidden=True, aria_hidden="true"),
        element("script", Verbatim(script)),
    )


def _top(view: View) -> Iterator[Node]:
    yield element("p", element("span", "noisescope", class_="brand"), element("span", view.subject), class_="subject")
    yield element("h1", view.title)
    verdict = element(
        "div",
        element("h2", "Verdict", id="verdict"),
        element("p", _badge(view.severity), class_="word"),
        element("p", view.verdict, class_="statement"),
        element("ul", [_chip(one) for one in view.besides], class_="chips") if view.besides else None,
        class_=f"card verdict is-{view.severity.level}",
    )
    yield element("div", verdict, _risk(view.risk) if view.risk is not None else None, class_="first")
    if view.actions:
        yield element("h2", _count(len(view.actions[:FIRST])), class_="todo")
        yield element("ol", [_action(action) for action in view.actions[:FIRST]], class_="actions")
    rest = view.actions[FIRST:]
    if rest:
        items = element("ol", [_action(action) for action in rest], class_="actions long")
        yield element("details", element("summary", f"{len(rest)} more to do"), items, class_="more")
    if view.besides:
        yield element("h2", "What else was found", class_="todo", id="besides")
        yield element("ul", [_statement(one) for one in view.besides], class_="besides")
    if view.facts:
        yield _facts(view.facts)


def _count(things: int) -> str:
    return {1: "One thing to do", 2: "Two things to do"}.get(things, "Three things to do")


def _badge(severity: Severity) -> Element:
    return element("span", glyph(severity.level), severity.word, class_=f"badge is-{severity.level}")


def glyph(level: Level) -> Element:
    """The shape of a level, to stand in a line of text."""
    return element("svg", shape(level, 8, 8, 6), class_="glyph", viewBox="0 0 16 16", aria_hidden="true")


def _chip(one: Statement) -> Element:
    """Name and severity alone: the first screen has to hold what is to be done."""
    return element("li", element("a", one.name, href="#besides"), " ", _badge(one.severity))


def _statement(one: Statement) -> Element:
    return element("li", element("b", one.name), " ", _badge(one.severity), " ", one.verdict)


def _risk(risk: Risk) -> Element:
    drawn = draw_gauge(risk, 320.0)
    score = None if risk.score is None else element("span", f"score {points(risk.score)}", class_="score")
    shares = [
        element("li", element("b", points(share.points)), f" {share.name}", f": {share.how}" if share.how else "")
        for share in risk.shares
    ]
    return element(
        "div",
        element("h2", "Risk"),
        element("p", _badge(risk.severity), score, class_="word"),
        None if drawn is None else inline(drawn, "risk", "Risk score", "gauge"),
        element("ul", shares, class_="shares") if shares else None,
        element("p", risk.how, class_="how") if risk.how else None,
        class_="card risk",
    )


def _action(action: Action) -> Element:
    # Long evidence would push the next thing to do off the first screen.
    brief = sum(map(len, action.evidence)) <= _BRIEF
    listed = element("ul", [element("li", text) for text in action.evidence], class_="evidence")
    evidence = element("details", element("summary", "Evidence"), listed, open=brief, class_="why")
    return element(
        "li",
        element("p", action.action, class_="do"),
        element("p", _badge(action.severity), element("span", action.component, class_="component"), class_="at"),
        element("p", action.issue, class_="issue"),
        evidence if action.evidence else None,
        class_="card",
    )


def _facts(facts: tuple[Fact, ...]) -> Element:
    pairs = [element("div", element("dt", fact.name), element("dd", fact_text(fact))) for fact in facts]
    return element("dl", pairs, class_="facts")


def _contents(view: View) -> Element:
    links = [element("li", element("a", section.heading, href=f"#{section.key}")) for section in view.sections]
    return element("nav", element("ul", links), aria_label="Sections")


def _filter(view: View) -> Iterator[Element]:
    layers, operators = _places(view)
    choices = [
        _choice("layer", "Layer", [(name, name) for name in map(layer_name, layers)]),
        _choice("operator", "Operator", [(name, shorten(name, 40)) for name in operators]),
    ]
    if layers or operators:
        yield element(
            "form",
            choices,
            element("button", "Show all", type="reset"),
            element("output", id="shown", aria_live="polite"),
            id="filter",
            class_="filter",
            aria_label="Filter by layer and operator",
            hidden=True,
        )


def _choice(key: str, name: str, options: list[tuple[str, str]]) -> Element:
    listed = [element("option", "all", value="")]
    listed += [element("option", words, value=value) for value, words in options]
    return element("label", element("span", name), element("select", listed, id=f"by-{key}"))


def _places(view: View) -> tuple[list[int | None], list[str]]:
    """Every layer and operator that something on the page speaks of."""
    layers: set[int | None] = set()
    operators: dict[str, None] = {}
    for block in (block for section in view.sections for block in section.blocks):
        grid = grid_of(block)
        for line in grid.lines if grid is not None else ():
            layers.update(line.layers)
            operators.update(dict.fromkeys(line.operators))
        operators.update(dict.fromkeys(block.operators if isinstance(block, Heatmap) else ()))
    return sorted(layers, key=lambda layer: (layer is None, layer)), sorted(operators)


def _section(section: Section) -> Element:
    intro = element("p", section.intro, class_="intro") if section.intro else None
    heading = element("h2", section.heading, id=f"{section.key}-heading")
    blocks = [_block(block, f"{section.key}-{i}") for i, block in enumerate(section.blocks, 1)]
    return element("section", heading, intro, blocks, id=section.key, aria_labelledby=f"{section.key}-heading")


def _block(block: Block, key: str) -> Node:
    if isinstance(block, Heatmap | Bars | Dots | Curves):
        return _figure(block, key)
    if isinstance(block, Table):
        grid = grid_of(block)
        assert grid is not None  # noqa: S101 - a table always has one
        caption = element("p", block.caption, class_="caption") if block.caption else None
        return element("div", _table(grid, key, grid.title), caption, class_="block")
    if isinstance(block, Note):
        warning = None if block.level == "none" else glyph(block.level)
        return element("p", warning, block.text, class_="note" if warning is None else f"note is-{block.level}")
    if isinstance(block, Facts):
        return element("div", element("h3", block.title), _facts(block.facts), class_="block")
    if isinstance(block, NotMeasured):
        pairs = [element("div", element("dt", gap.what), element("dd", gap.why)) for gap in block.gaps]
        return element("dl", pairs, class_="gaps")
    return _reproduce(block)


def _figure(block: Drawn, key: str) -> Element:
    pictures = [
        inline(picture_of(block, narrow=name == "narrow"), f"{key}-{name}", block.title, f"plot {name}")
        for name in ("wide", "narrow")
    ]
    grid = grid_of(block)
    assert grid is not None  # noqa: S101 - every figure has one
    return element(
        "figure",
        element("figcaption", element("h3", block.title), element("p", block.caption) if block.caption else None),
        pictures,
        element("details", element("summary", "All values as a table"), _table(grid, key, block.title)),
        class_="block",
    )


def _table(grid: Grid, key: str, title: str) -> Element:
    heads = [
        element("th", name, scope="col", class_="num" if numeric else None, aria_sort="none")
        for name, numeric in zip(grid.heads, grid.numeric, strict=True)
    ]
    table = element(
        "table",
        element("caption", title),
        element("thead", element("tr", heads)),
        element("tbody", [_row(line, grid.numeric) for line in grid.lines]),
        class_="sortable",
    )
    # A wide table scrolls by itself, so that the page does not have to; the keyboard has to reach it for that.
    return element(
        "div",
        table,
        class_="scroll long" if len(grid.lines) > _LONG else "scroll",
        role="region",
        aria_label=shorten(title),
        tabindex="0",
        id=f"{key}-table",
    )


def _row(line: Line, numeric: tuple[bool, ...]) -> Element:
    return element(
        "tr",
        [_cell(i, cell, right=right) for i, (cell, right) in enumerate(zip(line.cells, numeric, strict=True))],
        data_layers=layer_names(line.layers),
        data_operators=" ".join(line.operators) or None,
    )


def _cell(index: int, cell: Written, *, right: bool) -> Element:
    words: list[Node] = [glyph(cell.level), cell.text] if cell.level else [cell.text]
    if cell.detail:
        words += [" ", element("small", cell.detail)]
    return element(
        "td" if index else "th",
        words,
        scope=None if index else "row",
        class_="num" if right else _kind(cell),
        data_order=str(cell.order),
        title=cell.whole[:2000] or None,
    )


def _kind(cell: Written) -> str:
    if cell.level:
        return "sev"
    lengths = (("word", _WORD), ("phrase", _PHRASE), ("prose", _PROSE))
    return next((name for name, most in lengths if len(cell.text) <= most), "essay")


def _reproduce(block: Reproduce) -> Element:
    commands = element("pre", element("code", "\n".join(block.commands)), tabindex="0")
    return element(
        "div",
        commands if block.commands else None,
        _facts(block.facts) if block.facts else None,
        class_="block reproduce",
    )
