"""Reports of fault tests and of bit-sensitivity curves: the words and figures are those of the records."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from noisescope.core.errors import BadInputError
from noisescope.diagnose.bit_curve import BitCurve, BitCurves, BitPoint, part_of, width
from noisescope.diagnose.fault_steps import stepped
from noisescope.diagnose.fault_tests import FaultPlan, FaultTests, Located, Lost
from noisescope.diagnose.fault_verdict import failed, outcome_of
from noisescope.measure.statistics import Interval
from noisescope.prescribe.fault_cases import fault_plan
from noisescope.report.document import from_json, to_json
from noisescope.report.fault_part import cases_view, curves_view, outcomes_view
from noisescope.report.html import to_html
from noisescope.report.markdown import to_markdown
from noisescope.report.svg import figures
from noisescope.report.view import Bars, Curves, NotMeasured, Table, View
from report import found
from report.reading import page


def plan() -> FaultPlan:
    return fault_plan(found.diagnosis(), "made-up-30", "5f1c09e2")


def outcomes() -> FaultTests:
    """One case fails by its loss, the window passes, one channel is not located, one could not be run."""
    cases = plan().cases
    seen = Lost(Interval(0.25, 0.2, 0.3, 0.95, 50), 7, 1000)
    lost = np.zeros((2, 40, 16), dtype=bool)
    lost[0, :, 0] = True
    steps = stepped(lost, np.zeros_like(lost), 0.95)
    small = Lost(Interval(0.01, 0.0, 0.02, 0.95, 50), 0, 1000)
    missed = Located("no fault found", None, 0, 0)
    by_level = {
        "operator": lambda case: outcome_of(case, seen, Located("fault", 1, 4, 1)),
        "window": lambda case: outcome_of(case, steps, Located("fault", 1, 1, 0)),
        "channel": lambda case: outcome_of(case, small, missed, place="linear at up_proj"),
    }
    found_ = [by_level[case.level](case) for case in cases[:-1]]
    return FaultTests(plan(), found.diagnosis().setting, (*found_, failed(cases[-1], "no such channel")))


def curves() -> BitCurves:
    def point(bit: int) -> BitPoint:
        loss = {"sign": 0.1, "exponent": 4.0, "mantissa": 1e-4}[part_of("bfloat16", bit)]
        return BitPoint(bit, part_of("bfloat16", bit), Interval(loss, loss / 2, loss * 2, 0.95, 50), 0.0)

    points = [point(bit) for bit in range(width("bfloat16"))]
    points[3] = replace(points[3], loss=None, gaps=("out of memory",))
    return BitCurves((BitCurve("linear", "bfloat16", 1e-4, "nll", tuple(points)),))


VIEWS = {
    "cases": lambda: cases_view(plan(), found.ORIGIN),
    "outcomes": lambda: outcomes_view(outcomes(), found.ORIGIN),
    "curves": lambda: curves_view(curves(), found.ORIGIN),
}


def blocks(view: View, kind: type) -> list:
    return [block for section in view.sections for block in section.blocks if isinstance(block, kind)]


@pytest.mark.parametrize("name", VIEWS)
def test_it_is_written_in_every_format(name: str) -> None:
    view = VIEWS[name]()
    assert from_json(to_json(view)) == view
    assert page(to_html(view)).all("h1")[0].text == view.title
    assert "noisescope diagnose made-up-30" in to_markdown(view)


def test_every_case_stands_with_its_verdict_and_what_failed_is_a_thing_to_do() -> None:
    tests, view = outcomes(), outcomes_view(outcomes(), found.ORIGIN)
    assert view.severity.word == tests.verdict == "fail"
    (table,) = blocks(view, Table)
    names = [column.name for column in table.columns]
    rows = [dict(zip(names, row.cells, strict=True)) for row in table.rows]
    assert [row["fault test"] for row in rows] == [case.name for case in plan().cases]
    assert [row["verdict"].word for row in rows] == [outcome.verdict for outcome in tests.outcomes]
    assert rows[0]["loss"].value == 0.25 and rows[0]["not finite"].value == 0.007
    assert rows[0]["located"] == "rank 1 of 4" and rows[-1]["loss"] is None
    assert {action.component for action in view.actions} == {
        one.case.name for one in tests.outcomes if one.verdict == "fail"
    }
    (bars,) = blocks(view, Bars)
    assert len(bars.bars) == len(rows) - 1 and {limit.value for limit in bars.thresholds} == {0.05, 0.10, 0.15}
    (missing,) = blocks(view, NotMeasured)
    assert [gap.why for gap in missing.gaps] == ["no such channel"]


def test_what_a_faulty_step_leaves_behind_is_a_curve_over_the_steps() -> None:
    (drawn,) = blocks(outcomes_view(outcomes(), found.ORIGIN), Curves)
    (curve,) = drawn.curves
    assert [point.x for point in curve.points] == [float(step) for step in range(16)]
    assert curve.points[0].figure.value == 0.5 and curve.points[1].figure.value == 0.0


def test_one_ruinous_fault_leaves_the_others_to_be_seen() -> None:
    tests = outcomes()
    (plain,) = blocks(outcomes_view(tests, found.ORIGIN), Bars)
    ruin = replace(tests.outcomes[0], loss=Interval(26.1, 25.2, 27.2, 0.95, 50))
    view = outcomes_view(replace(tests, outcomes=(ruin, *tests.outcomes[1:])), found.ORIGIN)
    (wide,) = blocks(view, Bars)
    assert plain.spacing == "linear" and wide.spacing == "log"
    picture = next(iter(figures(view).values()))
    heights = sorted(float(height) for height in re.findall(r'height="([\d.]+)" rx=', picture))
    # Four decades, from half of the smallest loss up to 50, on 250 points.
    expected = [250 / 4 * math.log10(loss / 0.005) for loss in (0.01, 0.01, 0.03125, 26.1)]
    assert heights == pytest.approx(expected, abs=0.01)


def test_the_curve_of_bits_has_a_point_for_each_and_says_which_is_missing() -> None:
    view = curves_view(curves(), found.ORIGIN)
    (drawn,) = blocks(view, Curves)
    assert len(drawn.curves[0].points) == 15 and drawn.spacing == "log"
    assert "bits 0 to 6 are the mantissa, 7 to 14 the exponent, 15 the sign" in drawn.caption
    (missing,) = blocks(view, NotMeasured)
    assert missing.gaps[0].what == "bit 3 of linear in bfloat16"
    assert view.verdict.startswith("The bit that costs most is exponent bit 7 of linear in bfloat16: 400 %")
    (table,) = blocks(view, Table)
    assert len(table.rows) == 16


def test_curves_that_could_not_be_measured_claim_nothing() -> None:
    (curve,) = curves().curves
    gone = tuple(replace(point, loss=None, gaps=("out of memory",)) for point in curve.points)
    view = curves_view(BitCurves((replace(curve, points=gone),)), found.ORIGIN)
    assert view.verdict == "No bit could be measured."


def test_a_plan_that_nobody_ran_claims_nothing() -> None:
    view = cases_view(plan(), found.ORIGIN)
    assert view.severity.word == "not run" and "none of them run so far" in view.verdict
    with pytest.raises(BadInputError):
        FaultPlan("m", "f", ())


def test_what_is_counted_is_labelled_by_whole_numbers() -> None:
    view = curves_view(curves(), found.ORIGIN)
    (drawn,) = blocks(view, Curves)
    points = drawn.curves[0].points[:4]
    between = (*points, replace(points[1], x=1.25))
    for curve, halves in ((points, False), (between, True)):
        block = replace(drawn, curves=(replace(drawn.curves[0], points=curve),), x_form="plain")
        section = replace(view.sections[0], blocks=(block,))
        (picture,) = figures(replace(view, sections=(section,))).values()
        assert (">0.5<" in picture) == halves and ">2<" in picture
