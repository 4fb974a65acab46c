import base64
import dataclasses
import hashlib
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from noisescope.report.html import to_html
from noisescope.report.view import Section, Severity, View
from report import example, hostile
from report.reading import page

VIEW = example.view()
VIEWS = {"example": VIEW, "hostile": hostile.poisoned(VIEW), "odd": hostile.odd(VIEW)}
EMPTY = View("empty", "nothing", "nothing was found", Severity("none", "none"), ())


@pytest.fixture(scope="module", params=VIEWS)
def text(request):
    return to_html(VIEWS[request.param])


@pytest.fixture(scope="module")
def root(text):
    return page(text)


def test_foreign_text_makes_no_tag_and_no_attribute():
    shapes = [
        {(tag.name, tuple(sorted(tag.attributes))) for tag in page(to_html(view)).every()}
        for view in (VIEW, VIEWS["hostile"])
    ]
    # A text that is cut has its whole length in a title; a figure may have lost a mark of none.
    strange = {(name, keys) for name, keys in shapes[1] - shapes[0] if "title" not in keys}
    assert not strange


def test_there_is_one_script_and_one_style_and_both_are_ours(root, text):
    clean = page(to_html(VIEW))
    for name in ("script", "style"):
        assert len(root.all(name)) == 1
        assert root.all(name)[0].text == clean.all(name)[0].text
    assert text.count("<script") == 1 and text.count("</script") == 1


def test_the_policy_allows_this_style_and_this_script_alone(root, text):
    (policy,) = (tag.attributes["content"] for tag in root.all("meta") if "http-equiv" in tag.attributes)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for name in ("script", "style"):
        inside = re.search(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"


def test_nothing_refers_to_anywhere_else(root):
    for tag in root.every():
        assert not {"src", "srcset", "style", "background", "action"} & set(tag.attributes)
        assert not [name for name in tag.attributes if name.startswith("on")]
        assert (tag.attributes.get("href") or "#").startswith("#")
    assert not {"link", "iframe", "object", "embed", "img", "base", "foreignObject"} & {t.name for t in root.every()}
    assert "url(" not in root.all("style")[0].text and "@import" not in root.all("style")[0].text
    assert not re.search(r"\b(fetch|XMLHttpRequest|import|eval|innerHTML)\b", root.all("script")[0].text)


def test_every_address_is_there_once(root):
    named = [tag.attributes["id"] for tag in root.every() if "id" in tag.attributes]
    assert len(named) == len(set(named))
    wanted = [tag.attributes[k] for tag in root.every() for k in ("aria-labelledby",) if k in tag.attributes]
    assert {key for keys in wanted for key in keys.split()} <= set(named)
    assert {tag.attributes["href"][1:] for tag in root.all("a")} <= set(named)


def test_everything_has_a_name_for_those_who_do_not_see_it(root):
    assert root.all("html")[0].attributes["lang"] == "en"
    assert {"header", "nav", "main", "footer"} <= {tag.name for tag in root.every()}
    assert len(root.all("h1")) == 1
    for svg in root.all("svg"):
        assert svg.attributes.get("aria-hidden") or (svg.all("title") and svg.all("desc")[0].text)
    for table in root.all("table"):
        assert table.all("caption")
        assert all(head.attributes["scope"] in ("col", "row") for head in table.all("th"))
        assert all(head.attributes["aria-sort"] == "none" for head in table.all("thead")[0].all("th"))
    for mark in (tag for tag in root.every() if tag.has_class("mark")):
        assert mark.attributes["role"] == "img" and mark.attributes["aria-label"]


def test_headings_skip_no_rank(root):
    ranks = [int(tag.name[1]) for tag in root.every() if re.fullmatch(r"h[1-6]", tag.name)]
    assert ranks[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(ranks))


def test_no_text_is_longer_than_a_reader_can_use(root):
    assert max(len(tag.text) for svg in root.all("svg") for tag in svg.all("text")) <= 160
    assert max(len(cell.text) for cell in root.all("td")) <= 700


def test_terminal_and_direction_controls_are_gone(text):
    assert not set(text) & set("\x1b\x07\x00\u202e\u2066\u2069")
    text.encode()


def test_the_first_screen_comes_first_and_in_order():
    words = page(to_html(VIEW)).all("header")[0].text
    wanted = ["Verdict", VIEW.verdict, "Risk", "score 136.5", "Three things to do", *(a.action for a in VIEW.actions)]
    at = [words.index(part) for part in wanted]
    assert at == sorted(at)


def test_an_undecided_figure_is_told_by_shape_and_words():
    root = page(to_html(VIEW))
    undecided = [t for t in root.every() if t.has_class("mark") and "undecided" in t.attributes["aria-label"]]
    assert undecided
    for mark in undecided:
        assert any(t.name == "path" and t.has_class("s-undecided") for t in mark.every())


def test_a_view_of_nothing_is_a_page():
    root = page(to_html(EMPTY))
    assert "nothing was found" in root.text
    assert not root.all("form")


def test_fewer_actions_are_counted():
    one = dataclasses.replace(VIEW, actions=VIEW.actions[:1])
    assert "One thing to do" in page(to_html(one)).text
    assert not [t for t in page(to_html(one)).all("details") if t.has_class("more")]


def test_the_filter_offers_what_the_page_speaks_of():
    layers, operators = page(to_html(VIEW)).all("select")
    assert [o.attributes["value"] for o in layers.all("option")] == ["", *map(str, range(30)), "outside"]
    assert [o.attributes["value"] for o in operators.all("option")][1:] == sorted({*example.OPERATORS, "gelu"})


def test_the_same_view_is_the_same_page_in_any_process():
    script = (
        "import hashlib, sys; sys.path.insert(0, sys.argv[1]); from report import example;"
        "from noisescope.report.html import to_html; from noisescope.report.document import to_json;"
        "from noisescope.report.markdown import to_markdown; view = example.view();"
        "print(hashlib.sha256((to_html(view) + to_json(view) + to_markdown(view)).encode()).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script, str(Path(__file__).parents[1])],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1 and seen != {""}


def test_a_large_model_is_a_page_of_bearable_size():
    """80 layers and 9 operators, twice drawn, stay within what a browser opens at once."""
    grid = example.heatmap()
    wide = dataclasses.replace(
        grid, layers=tuple(range(80)), cells=tuple(tuple(row[0] for _ in range(80)) for row in grid.cells)
    )
    view = dataclasses.replace(VIEW, sections=(Section("map", "map", (wide,)),))
    assert len(to_html(view)) < 1_000_000
