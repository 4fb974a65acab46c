import copy
import dataclasses
import json
import math
import re

import jsonschema
import pytest

from noisescope.core.errors import BadInputError
from noisescope.report.document import from_json, schema, schema_text, to_json, write_schema
from noisescope.report.view import Bars, Curves, Dots, Figure, Heatmap, Note, Section, Table
from report import example


@pytest.fixture(scope="module")
def document():
    return json.loads(to_json(example.view()))


def test_a_view_comes_back_as_it_was():
    assert from_json(to_json(example.view())) == example.view()


def test_what_is_read_can_be_written_again_to_the_byte():
    text = to_json(example.view())
    assert to_json(from_json(text)) == text


def test_figures_that_are_not_finite_come_back():
    odd = dataclasses.replace(example.table_of(Figure(math.nan, -math.inf, math.inf)), caption="odd")
    view = dataclasses.replace(example.view(), sections=(Section("odd", "odd", (odd,)),))
    (row,) = from_json(to_json(view)).sections[0].blocks[0].rows
    assert math.isnan(row.cells[0].value) and row.cells[0].low == -math.inf and row.cells[0].high == math.inf


def test_the_shipped_schema_is_the_one_of_the_records():
    assert schema_text() == write_schema()


def test_the_schema_is_one_and_accepts_what_is_written(document):
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(document, schema())


def places(node, path=()):
    """Every place in a document that holds a value or a list."""
    yield path
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from places(inner, (*path, key))


def changed(document, path, change):
    whole = copy.deepcopy(document)
    node = whole
    for step in path[:-1]:
        node = node[step]
    change(node, path[-1])
    return whole


CHANGES = {
    "removed": lambda node, key: node.pop(key),
    "text": lambda node, key: node.__setitem__(key, "something else"),
    "number": lambda node, key: node.__setitem__(key, 7.5),
    "nothing": lambda node, key: node.__setitem__(key, None),
    "truth": lambda node, key: node.__setitem__(key, True),
    "added": lambda node, key: node.__setitem__("surplus" if isinstance(key, str) else slice(0, 0), [{"surplus": 1}]),
}


def is_read(document) -> bool:
    try:
        from_json(json.dumps(document))
    except BadInputError:
        return False
    return True


@pytest.mark.parametrize("change", CHANGES)
def test_the_reader_refuses_whatever_the_schema_refuses(change, document):
    """At every place of a document; the reader may refuse more, such as rows that do not fit their columns."""
    small = trimmed(document)
    small["view"]["sections"] = [trimmed(section) for section in document["view"]["sections"]]
    assert is_read(small)
    validator = jsonschema.Draft202012Validator(schema())
    seen = {True: 0, False: 0}
    for path in places(small):
        if not path:
            continue
        broken = changed(small, path, CHANGES[change])
        valid = validator.is_valid(broken)
        seen[valid] += 1
        assert valid or not is_read(broken), path
    assert seen[False] > 20


def trimmed(node):
    """One of everything is enough to be wrong, but for the cells and columns of a table, which have to fit."""
    if isinstance(node, dict):
        whole = {"cells", "columns"} if "cells" in node and not isinstance(node["cells"][0], list) else {"columns"}
        return {key: inner if key in whole else trimmed(inner) for key, inner in node.items()}
    return [trimmed(inner) for inner in node[:1]] if isinstance(node, list) else node


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "no noisescope report"),
        ('{"format": "other"}', "no noisescope report"),
        ('{"format": "noisescope report", "version": 99}', "version 99: this noisescope reads version 1"),
        ('{"format": "noisescope report", "version": 1}', "lacks its view"),
        ('{"format": "noisescope report", "version": 1, "view": {}, "more": 1}', "has no field more"),
        ('{"format": "noisescope report", "version": 1, "view": {}}', "View lacks"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_report_is_refused_in_words(text, said):
    with pytest.raises(BadInputError, match=re.escape(said)):
        from_json(text)


def test_a_mistake_is_named_by_its_place(document):
    broken = changed(document, ("view", "sections", 2, "blocks", 0, "bars", 3, "figure", "low"), CHANGES["text"])
    with pytest.raises(BadInputError, match=r"\$\.sections\[2\]\.blocks\[0\]\.bars\[3\]\.figure\.low"):
        from_json(json.dumps(broken))


def test_every_kind_of_figure_is_in_the_example(document):
    kinds = {block["kind"] for section in document["view"]["sections"] for block in section["blocks"]}
    assert kinds == {"table", "heatmap", "bars", "dots", "curves", "note", "facts", "not_measured", "reproduce"}
    drawn = {Table, Heatmap, Bars, Dots, Curves, Note}
    assert drawn <= {type(block) for section in example.view().sections for block in section.blocks}
