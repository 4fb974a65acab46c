"""Fault tests from diagnoses with planted harm, and as files: read back whole or refused, and safe in a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from noisescope.core.errors import BadInputError
from noisescope.diagnose.fault_lines import plan_lines
from noisescope.diagnose.fault_tests import FaultPlan, FaultTests, Located, Lost
from noisescope.diagnose.fault_verdict import failed, outcome_of
from noisescope.measure.statistics import Interval
from noisescope.prescribe.fault_cases import fault_plan
from noisescope.prescribe.fault_files import plan_text, read_plan, safe, table_text
from report import found


def planned() -> FaultPlan:
    return fault_plan(found.diagnosis(), "made-up-30", "5f1c09e2")


def test_what_was_found_critical_gets_the_case_that_fits_its_level() -> None:
    plan, diagnosis = planned(), found.diagnosis()
    by_level = {level: [c for c in plan.cases if c.level == level] for level in ("operator", "window", "channel")}
    critical = {result.operator for result in diagnosis.operators if result.verdict.name == "CRITICAL"}
    assert critical and {c.operators for c in by_level["operator"]} == {(name,) for name in critical}
    for case in by_level["operator"]:
        assert (case.kind, case.rate, case.moment, case.layers) == ("bit_flip", 0.01, "always", None)
        assert (case.accepted.loss, case.accepted.nonfinite, case.accepted.located) == (0.05, 0.001, False)
    assert len(by_level["window"]) == len(diagnosis.points) == 1
    (window,) = by_level["window"]
    assert 12 in window.layers and (window.kind, window.moment) == ("stuck_at_zero", "one step")
    assert (window.accepted.loss, window.accepted.recovery) == (0.10, 5)
    worst = max(diagnosis.channels.modules, key=lambda one: one.outliers.max_ratio).outliers
    first = by_level["channel"][0]
    assert (first.path, first.side, first.channels) == (worst.path, worst.side, worst.indices)
    assert (first.kind, first.accepted.loss, first.accepted.located) == ("value_corruption", 0.15, True)
    assert all(case.is_critical for case in plan.cases)
    assert len(by_level["channel"]) == 3 and any("more module sides" in note for note in plan.notes)


def test_where_nothing_is_critical_the_worst_there_is_gets_the_case_and_is_called_that() -> None:
    plan = fault_plan(found.healthy(), "calm", "f")
    assert [case.level for case in plan.cases] == ["operator", "window"]
    assert not any(case.is_critical for case in plan.cases)
    diagnosis = found.healthy()
    worst = max(diagnosis.operators, key=lambda one: one.answer.harm.estimate)
    assert plan.cases[0].operators == (worst.operator,) and "not critical" in plan.cases[0].because
    said = "\n".join(plan_lines(plan))
    assert f"no operator is CRITICAL: the case is for the worst there is, {worst.operator}" in said
    assert "no window of layers is an avalanche point" in said and "no channel is an outlier" in said


def test_a_diagnosis_of_nothing_makes_no_empty_set_of_tests() -> None:
    bare = replace(found.healthy(), operators=(), windows=(), points=(), channels=None)
    with pytest.raises(BadInputError, match=r"no fault test can be made: the diagnosis measured no operator; .*mode"):
        fault_plan(bare, "m", "f")


def test_cases_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "cases.json"
    file.write_text(plan_text(planned()))
    assert read_plan(file) == planned()


def spoiled(what: str) -> str:
    document: dict[str, Any] = json.loads(plan_text(planned()))
    case = document["plan"]["cases"][0]
    changes: dict[str, tuple[dict[str, Any], str, Any]] = {
        "version": (document, "version", 2),
        "schema": (document, "schema", 99),
        "format": (document, "format", "noisescope baseline"),
        "more": (document, "author", "me"),
        "kind": (case, "kind", "bit_flop"),
        "loss": (case["accepted"], "loss", "much"),
        "moment": (case, "moment", "sometimes"),
        "rate": (case, "rate", 1.5),
        "none": (document["plan"], "cases", []),
    }
    if what in changes:
        holder, name, value = changes[what]
        holder[name] = value
    if what == "lacks":
        del case["because"]
    return json.dumps(document)[: 300 if what == "torn" else None]


@pytest.mark.parametrize(
    ("what", "seen"),
    [
        ("version", "version 2"),
        ("schema", "schema 99"),
        ("format", "no noisescope fault tests"),
        ("more", "author"),
        ("kind", "Did you mean 'bit_flip'"),
        ("loss", "'much': expected float"),
        ("moment", "'sometimes': expected one of 'always', 'one step'"),
        ("rate", "rate 1.5"),
        ("none", "expected one or more cases"),
        ("lacks", "FaultCase lacks because"),
        ("torn", "not JSON"),
    ],
)
def test_a_file_that_is_no_whole_set_of_tests_is_refused_in_one_line(tmp_path: Path, what: str, seen: str) -> None:
    file = tmp_path / "cases.json"
    file.write_text(spoiled(what))
    with pytest.raises(BadInputError) as refused:
        read_plan(file)
    assert seen in str(refused.value) and str(file) in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be read"):
        read_plan(tmp_path / "none.json")


EVIL = ['=HYPERLINK("http://x")', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "\n=1", "\uff1d1"]


@pytest.mark.parametrize("cell", EVIL)
def test_no_text_is_left_that_a_spreadsheet_would_run(cell: str) -> None:
    (case, *_) = planned().cases
    plan = FaultPlan("m", "f", (replace(case, name=cell, because=cell),))
    tests = FaultTests(plan, found.diagnosis().setting, (failed(plan.cases[0], cell, cell),))
    for text in (table_text(plan), table_text(plan, tests)):
        rows = list(csv.reader(io.StringIO(text)))
        assert len(rows) == 2 and len(rows[0]) == len(rows[1])
        for shown in rows[1]:
            assert not shown.lstrip().startswith(("=", "+", "-", "@", "\uff1d")), shown
            assert not set(shown) & set("\t\r\n")


def test_harmless_cells_stay_as_they_are_and_numbers_stay_numbers() -> None:
    assert [safe(cell) for cell in ("layers 3-5", "a=b", -0.25, 3, None, "")] == [
        "layers 3-5",
        "a=b",
        -0.25,
        3,
        None,
        "",
    ]
    assert safe("=1") == "'=1"


def test_the_table_holds_what_was_asked_and_what_came_of_it() -> None:
    plan = planned()
    seen = Lost(Interval(-0.01, -0.02, 0.001, 0.95, 50), 3, 1000)
    outcomes = tuple(outcome_of(case, seen, Located("fault", 2, 3, 1)) for case in plan.cases)
    rows = list(csv.DictReader(io.StringIO(table_text(plan, FaultTests(plan, found.diagnosis().setting, outcomes)))))
    assert [row["name"] for row in rows] == [case.name for case in plan.cases]
    assert rows[0]["kind"] == "bit_flip" and float(rows[0]["loss"]) == -0.01
    assert rows[0]["share not finite"] == "0.003" and rows[0]["verdict"] == "fail"
    assert (rows[-1]["located"], rows[-1]["rank"], rows[-1]["side"]) == ("yes", "2", "input")
    channels = " ".join(map(str, plan.cases[-1].channels))
    assert (rows[-1]["channels"], rows[-1]["operators"], rows[0]["channels"]) == (channels, "", "all")
