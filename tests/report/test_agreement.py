"""Renderings of one view never disagree: each is read back by a parser of its own and compared with the others."""

import json
import re
import textwrap
from html import unescape

import pytest

from noisescope.report.document import to_json
from noisescope.report.html import to_html
from noisescope.report.markdown import to_markdown
from noisescope.report.summary import to_text
from report import example
from report.reading import page, plain, tables_of_markdown, tables_of_page

VIEW = example.view()
FIGURE = re.compile(
    r"(?P<value>-?[\d,.]+(?:e-?\d+)?)(?P<unit> %|\u00d7)?[^\[]*?"
    r"(?: \[(?P<low>-?[\d.,e-]+?), (?P<high>-?[\d.,e-]+?)\])?(?: n = (?P<samples>[\d,]+))?"
)


def test_page_and_markdown_hold_the_same_tables():
    of_page, of_markdown = tables_of_page(to_html(VIEW)), tables_of_markdown(to_markdown(VIEW))
    assert [title for title, _ in of_page] == [title for title, _ in of_markdown]
    assert of_page == of_markdown
    assert sum(len(rows) for _, rows in of_page) > 100


def figures_in(node):
    """Every figure of a part of a document, in order."""
    if isinstance(node, dict):
        if {"value", "low", "high", "samples", "confidence"} == set(node):
            yield node
        else:
            for inner in node.values():
                yield from figures_in(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from figures_in(inner)


def read(text):
    found = FIGURE.fullmatch(text)
    assert found, text
    share = 0.01 if found["unit"] == " %" else 1.0
    ends = [None if found[name] is None else share * float(found[name].replace(",", "")) for name in ("low", "high")]
    samples = None if found["samples"] is None else int(found["samples"].replace(",", ""))
    return [share * float(found["value"].replace(",", "")), *ends, samples]


def test_the_tables_hold_the_figures_of_the_document():
    """A figure is read from its words and compared with the number in JSON, within the digits that are written."""
    document = json.loads(to_json(VIEW))
    tables = dict(tables_of_page(to_html(VIEW)))
    compared = 0
    for block in (block for section in document["view"]["sections"] for block in section["blocks"]):
        if block.get("title") not in tables:
            continue
        heads, *rows = tables[block["title"]]
        cells = rows
        if block["kind"] == "heatmap":
            cells = list(zip(*(row[1:] for row in rows), strict=True))
        written = [cell for row in cells for cell in row]
        for figure in figures_in(block):
            if figure["value"] is None:
                continue
            hit = next((i for i, cell in enumerate(written) if is_same(cell, figure)), None)
            assert hit is not None, (block["title"], heads, figure)
            written = written[hit + 1 :]
            compared += 1
    assert compared > 250


def is_same(cell, figure):
    if not FIGURE.fullmatch(cell):
        return False
    value, low, high, samples = read(cell)
    expected = [figure["value"], figure["low"], figure["high"]]
    digits = [None if e is None else pytest.approx(e, rel=6e-3, abs=5.1e-4 if "%" in cell else 0) for e in expected]
    if "\u00d7" in cell:
        digits = [None if e is None else pytest.approx(e, abs=0.051) for e in expected]
    return [value, low, high] == digits and samples == figure["samples"]


def test_the_words_of_a_mark_are_those_of_its_row():
    root = page(to_html(VIEW))
    figures = root.all("figure")
    assert len(figures) == 5
    for figure in figures:
        cells = {cell.text for cell in figure.all("td")} - {"\u2013"}
        for plot in (svg for svg in figure.all("svg") if svg.has_class("plot")):
            words = [tag.attributes["aria-label"] for tag in plot.every() if tag.has_class("mark")]
            assert words
            for said in words:
                value = re.sub(r" \(\d+ % interval\)", "", said.replace("\u00a0", " ").split(": ", 1)[1].split("; ")[0])
                assert value in cells or plain(value) == "no such operator there", said


def test_wide_and_narrow_drawings_say_the_same():
    for figure in page(to_html(VIEW)).all("figure"):
        said = [
            sorted(tag.attributes["aria-label"] for tag in plot.every() if tag.has_class("mark"))
            for plot in figure.all("svg")
            if plot.has_class("plot")
        ]
        assert len(said) == 2 and said[0] == said[1]


def test_verdict_risk_and_actions_are_in_every_rendering():
    renderings = {
        "html": page(to_html(VIEW)).text,
        "markdown": plain(to_markdown(VIEW).replace("**", "")),
        "text": " ".join(to_text(VIEW).split()),
        "json": unescape(to_json(VIEW)),
    }
    for name, text in renderings.items():
        wanted = [VIEW.verdict, VIEW.severity.word, VIEW.risk.severity.word, "136.5"]
        wanted += [part for a in VIEW.actions[:3] for part in (a.action, a.component, a.issue, a.severity.word)]
        assert not [part for part in wanted if part not in text], name


def test_gaps_facts_and_commands_are_in_every_whole_rendering():
    for text in (page(to_html(VIEW)).text, plain(to_markdown(VIEW))):
        for block in (block for section in VIEW.sections for block in section.blocks):
            if block.kind == "not_measured":
                assert all(gap.what in text and gap.why in text for gap in block.gaps)
            if block.kind == "reproduce":
                assert all(command in text for command in block.commands)
                assert all(fact.value in text for fact in block.facts if isinstance(fact.value, str))
            if block.kind == "note":
                assert block.text in text


def test_the_text_for_a_terminal_keeps_to_its_width():
    for width in (60, 88):
        assert max(map(len, to_text(VIEW, width).splitlines())) <= width
    assert to_text(VIEW).splitlines()[0] == VIEW.title
    assert textwrap.dedent(to_text(VIEW)) == to_text(VIEW)
