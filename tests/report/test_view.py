import dataclasses
import math

import pytest

from noisescope.core.errors import BadInputError
from noisescope.report.view import Column, Dot, Dots, Figure, Heatmap, Row, Section, Severity, Table
from report import example


def test_texts_are_cleaned_wherever_they_stand():
    table = Table("t\x1b[31m", (Column("a\n"),), (Row(("x\x00y",), operators=("\u202elinear",)),))
    assert table.title == "t"
    assert table.columns[0].name == "a"
    assert table.rows[0].cells == ("xy",)
    assert table.rows[0].operators == ("linear",)


def test_lists_become_tuples_so_that_a_view_cannot_change():
    row = Row(["a", None], [1, 2])
    assert row.cells == ("a", None) and row.layers == (1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.layers = ()


def test_a_table_whose_rows_do_not_fit_is_refused():
    with pytest.raises(BadInputError, match="row 1 does not fit 2 columns"):
        Table("t", (Column("a"), Column("b")), (Row(("x", "y")), Row(("x",))))


def test_a_heatmap_whose_cells_do_not_fit_is_refused():
    with pytest.raises(BadInputError, match="expected 1 rows of 2 cells"):
        Heatmap("h", ("linear",), (0, 1), ((Figure(1.0),),), "harm")


def test_a_point_over_no_group_is_refused():
    with pytest.raises(BadInputError, match="no group '7'"):
        Dots("d", ("1",), (Dot("7", "c", Figure(1.0), Severity("high", "high")),), "ratio", "layer")


def test_a_level_that_cannot_be_drawn_is_refused():
    with pytest.raises(BadInputError, match="level 'catastrophic'"):
        Severity("bad", "catastrophic")


@pytest.mark.parametrize("keys", [("a", "a"), ("a b",), ("",), ('"><script>',)])
def test_keys_of_sections_are_plain_and_used_once(keys):
    sections = tuple(Section(key, "heading", ()) for key in keys)
    with pytest.raises(BadInputError, match="used once"):
        dataclasses.replace(example.view(), sections=sections)


def test_figures_may_be_missing_or_not_finite():
    assert Figure(None).value is None
    assert math.isnan(Figure(math.nan).value)
