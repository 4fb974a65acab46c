"""Several views of one model as one report: the worst comes first, and nothing is lost or told twice."""

import dataclasses
import html

from noisescope.diagnose.localization import Localization
from noisescope.report.diagnosis import diagnosis_view
from noisescope.report.document import from_json, to_json
from noisescope.report.html import to_html
from noisescope.report.joined import joined_view
from noisescope.report.localization import localization_view
from noisescope.report.markdown import to_markdown
from noisescope.report.robustness import robustness_view
from noisescope.report.summary import to_text
from noisescope.report.view import Reproduce, Severity
from report import found

OTHER = dataclasses.replace(found.ORIGIN, command="noisescope locate made-up-30 --out run")


def parts():
    return {
        "Localisation": localization_view(found.localization(), OTHER),
        "Diagnosis": diagnosis_view(found.diagnosis(), found.ORIGIN, found.profile()),
        "Robustness": robustness_view(found.robustness(), found.ORIGIN),
    }


def test_a_single_view_stays_as_it_is():
    view = parts()["Robustness"]
    assert joined_view({"Robustness": view}, "anything") is view


def test_the_worst_verdict_is_first_and_all_are_told():
    views = parts()
    joined = joined_view(views, "Report on made-up-30")
    assert joined.title == "Report on made-up-30"
    assert joined.subject == "cpu, 1000 questions, 30 layers" and joined.risk.shares == views["Diagnosis"].risk.shares
    assert "the verdict is about something else" in joined.risk.how
    told = {one.name: one.verdict for one in joined.besides} | {"Localisation": joined.verdict}
    assert told == {name: view.verdict for name, view in views.items()}
    assert joined.severity.word == "fault" and joined.verdict.startswith("The operator linear at")
    assert [one.severity for one in joined.besides] == [views["Diagnosis"].severity, views["Robustness"].severity]
    none_found = localization_view(Localization("no fault found", checked=9), OTHER)
    turned = joined_view({**views, "Localisation": none_found}, "x")
    assert turned.severity.word == "critical" and turned.verdict == views["Diagnosis"].verdict
    assert turned.besides[-1].severity.word == "no fault found" and turned.risk == views["Diagnosis"].risk


def test_every_rendering_tells_every_verdict():
    views = parts()
    joined = joined_view(views, "Report on made-up-30")
    for text in (to_text(joined, 10_000), html.unescape(to_html(joined)), to_markdown(joined).replace("\\", "")):
        assert all(view.verdict.split("[")[0] in text for view in views.values())
        assert all(one.name in text for one in joined.besides)


def test_what_is_undecided_comes_before_what_is_healthy():
    healthy = diagnosis_view(found.healthy(), found.ORIGIN)
    undecided = dataclasses.replace(parts()["Robustness"], severity=Severity("undecided", "undecided"))
    assert joined_view({"Diagnosis": healthy, "Robustness": undecided}, "x").severity.word == "undecided"


def test_everything_to_do_is_there_by_urgency():
    views = parts()
    joined = joined_view(views, "x")
    assert sorted(map(repr, joined.actions)) == sorted(
        repr(action) for view in views.values() for action in view.actions
    )
    levels = [action.severity.level for action in joined.actions]
    order = ("critical", "high", "moderate", "undecided", "low", "none")
    assert levels == sorted(levels, key=order.index) and len(set(levels)) > 1


def test_every_section_is_there_once_and_what_is_to_be_repeated_is_last():
    views = parts()
    joined = joined_view(views, "x")
    keys = [section.key for section in joined.sections]
    assert set(keys) == {section.key for view in views.values() for section in view.sections} and len(set(keys)) == len(
        keys
    )
    assert keys[-5:] == ["checked", "findings-list", "trust", "gaps", "again"]
    (again,) = (block for block in joined.sections[-1].blocks if isinstance(block, Reproduce))
    assert again.commands == (OTHER.command, found.ORIGIN.command)
    named = [(fact.name, fact.value) for fact in again.facts]
    assert len(set(named)) == len(named) and ("method", "srdd") in named and ("hash of the model", "5f1c09e2") in named
    assert from_json(to_json(joined)) == joined
