"""Reports of what diagnoses concluded about made-up models: the words and figures are those of the records."""

import dataclasses
import json

import pytest

from noisescope.core.codec import to_plain
from noisescope.diagnose.localization import Localization, Suspect
from noisescope.report.advice import recommendations
from noisescope.report.diagnosis import diagnosis_view
from noisescope.report.document import from_json, to_json
from noisescope.report.html import to_html
from noisescope.report.judged import figure_of
from noisescope.report.localization import localization_view
from noisescope.report.markdown import to_markdown
from noisescope.report.origin import Origin
from noisescope.report.robustness import robustness_section, robustness_view
from noisescope.report.view import Bars, Dots, Heatmap, NotMeasured, Reproduce, Table
from report import found
from report.reading import page


def whole():
    return diagnosis_view(found.diagnosis(), found.ORIGIN, found.profile(), (robustness_section(found.robustness()),))


VIEWS = {
    "diagnosis": whole,
    "healthy": lambda: diagnosis_view(found.healthy(), found.ORIGIN, found.profile()),
    "broken": lambda: diagnosis_view(found.broken(), found.ORIGIN),
    "kl": lambda: diagnosis_view(found.diagnosis(metric="kl_to_clean", shape="text"), found.ORIGIN),
    "robustness": lambda: robustness_view(found.robustness(), found.ORIGIN),
    "localization": lambda: localization_view(found.localization(), found.ORIGIN),
    "nothing located": lambda: localization_view(Localization("no fault found", checked=271), found.ORIGIN),
}


def blocks(view, kind, title=""):
    found_blocks = [block for section in view.sections for block in section.blocks if isinstance(block, kind)]
    return [block for block in found_blocks if not title or block.title == title]


def column(table, name):
    (index,) = (i for i, column in enumerate(table.columns) if column.name == name)
    return [row.cells[index] for row in table.rows]


@pytest.mark.parametrize("name", VIEWS)
def test_every_report_is_written_in_every_format(name):
    view = VIEWS[name]()
    assert from_json(to_json(view)) == view
    assert page(to_html(view)).all("h1")[0].text == view.title
    assert view.verdict.split(".")[0].replace("_", "\\_") in to_markdown(view)
    assert "noisescope diagnose made-up-30" in to_markdown(view)


@pytest.mark.parametrize("name", ["diagnosis", "healthy", "kl", "robustness", "localization"])
def test_the_words_of_severity_are_those_of_the_records(name):
    kl = found.diagnosis(metric="kl_to_clean", shape="text")
    records = (found.diagnosis(), found.healthy(), kl, found.robustness(), found.localization())
    given = {text for record in records for text in texts(to_plain(record))}
    # The verdict of a model in which nothing was found has no record: its word is that of the bands.
    given |= {"robust", f"{found.robustness().threshold.brittleness} brittleness"}
    words = set(severities(to_plain(VIEWS[name]())))
    assert words and words <= given


def severities(node):
    if isinstance(node, dict) and set(node) == {"word", "level"}:
        yield node["word"]
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from severities(inner)


def texts(node):
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for inner in node.values():
            yield from texts(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from texts(inner)


def test_operators_have_the_figures_of_their_records():
    diagnosis = found.diagnosis()
    (table,) = blocks(whole(), Table, "Sensitivity by operator")
    assert column(table, "operator") == [one.operator for one in diagnosis.operators]
    assert column(table, "degradation") == [figure_of(one.answer.harm) for one in diagnosis.operators]
    assert column(table, "score") == [figure_of(one.score) for one in diagnosis.operators]
    assert [cell.word for cell in column(table, "verdict")] == [one.verdict.name for one in diagnosis.operators]
    linear = column(table, "degradation")[0]
    # Planted: 0.4 of the samples that are right become wrong.
    assert linear.low < 0.4 < linear.high and linear.confidence == 0.95 and linear.samples > 0


def test_windows_have_the_figures_of_their_records_and_flags_where_errors_pile_up():
    diagnosis = found.diagnosis()
    (bars,) = blocks(whole(), Bars, "Degradation by window of layers")
    assert len(bars.bars) == 28
    for bar, result in zip(bars.bars, diagnosis.windows, strict=True):
        assert bar.layers == result.layers and bar.severity.word == result.verdict.name
        harm = result.answer.harm
        assert bar.figure.value == (None if harm is None else harm.estimate)
        assert bool(bar.note) == (harm is None or not result.verdict.decided)
    flagged = [bar.layers for bar in bars.bars if bar.marks]
    assert flagged == [
        result.layers for result in diagnosis.windows if result.avalanche and result.avalanche.is_point == "yes"
    ]
    assert flagged and all(12 in layers for layers in flagged)


def test_the_map_holds_the_predictions():
    profile = found.profile()
    (heat,) = blocks(whole(), Heatmap)
    assert heat.layers == (*range(30), None)
    assert heat.operators[0] == "linear"
    for operator, row in zip(heat.operators, heat.cells, strict=True):
        for layer, cell in zip(heat.layers, row, strict=True):
            expected = profile.harm.get((layer, operator))
            assert (cell is None) == (expected is None)
            assert cell is None or cell.value == expected


def test_channels_are_drawn_at_their_layers():
    (dots,) = blocks(whole(), Dots)
    assert {dot.layers[0] for dot in dots.dots} == set(range(0, 30, 3))
    assert all(dot.figure.value > 10 for dot in dots.dots)
    worst = max(dots.dots, key=lambda dot: dot.figure.value)
    assert worst.severity.word == "critical" and "down_proj" in worst.label


def test_the_shares_of_the_risk_add_up():
    view = whole()
    assert sum(share.points for share in view.risk.shares) == pytest.approx(view.risk.score)
    assert view.risk.score == found.diagnosis().risk.points
    assert view.risk.severity.word == found.diagnosis().risk.level


def test_what_was_planted_comes_first():
    first, *others = recommendations(found.diagnosis())
    assert 12 in first.layers and first.severity.word == "CRITICAL"
    assert any(action.operators == ("linear",) and action.severity.word == "CRITICAL" for action in others)
    assert not any(action.operators == ("softmax",) for action in others)


@pytest.mark.parametrize("name", ["diagnosis", "healthy", "broken", "kl"])
def test_recommendations_are_by_priority_and_say_all_that_they_have_to(name):
    actions = VIEWS[name]().actions
    assert actions
    assert [action.priority for action in actions] == sorted(action.priority for action in actions)
    assert all(action.component and action.issue and action.action for action in actions)
    assert all(action.evidence for action in actions if action.severity.level in ("critical", "high", "moderate"))


def test_a_healthy_model_is_said_to_be_healthy_and_no_more():
    view = VIEWS["healthy"]()
    assert view.severity.word == "robust" and view.severity.level == "low"
    assert view.verdict.startswith("Nothing that was measured is fragile")
    assert len(view.actions) == 1 and "16 bits" not in view.actions[0].action


def test_a_broken_control_is_the_verdict_and_no_risk_is_told():
    view = VIEWS["broken"]()
    assert view.severity.word == "error"
    assert "cannot be trusted" in view.verdict
    assert view.risk is None
    assert "BROKEN" in to_markdown(view)


def test_what_is_undecided_is_said_to_be():
    diagnosis = found.healthy()
    open_finding = dataclasses.replace(
        found.diagnosis().findings[-1], severity="undecided", statement="silu: undecided", decided=False
    )
    view = diagnosis_view(dataclasses.replace(diagnosis, findings=(open_finding,)), found.ORIGIN)
    assert view.severity.word == "undecided" and "not all is decided" in view.verdict


def test_harm_in_its_own_unit_has_no_limits():
    view = VIEWS["kl"]()
    for bars in blocks(view, Bars):
        assert not bars.thresholds and bars.form == "plain" and bars.unit == "nats per token"


def test_every_finding_is_listed():
    view = whole()
    (table,) = blocks(view, Table, "All findings, most severe first")
    assert column(table, "finding") == [finding.statement for finding in found.diagnosis().findings]


def test_what_was_not_measured_is_listed_with_its_reason():
    diagnosis = found.diagnosis()
    assert diagnosis.unmeasured
    (missing,) = blocks(whole(), NotMeasured)
    assert [f"{gap.what}: {gap.why}" for gap in missing.gaps] == list(diagnosis.unmeasured)
    bare = dataclasses.replace(diagnosis, windows=(), points=(), channels=None, unmeasured=())
    (missing,) = blocks(diagnosis_view(bare, found.ORIGIN), NotMeasured)
    assert [gap.what for gap in missing.gaps] == ["windows of layers", "channels", "the map of operators and layers"]


def test_all_versions_and_hashes_are_there():
    (again,) = blocks(whole(), Reproduce)
    facts = {fact.name: fact.value for fact in again.facts}
    assert facts["torch"] == "2.13.0" and facts["hash of the model"] == "5f1c09e2" and facts["seeds"] == "0, 1, 2"
    assert again.commands == (found.ORIGIN.command,)


def test_a_report_without_an_origin_is_a_report():
    view = diagnosis_view(found.healthy(), Origin(model="m"))
    assert "noisescope" in view.made_by and to_html(view)


def test_levels_of_robustness_are_drawn_with_their_bands():
    robustness = found.robustness()
    section = robustness_section(robustness)
    curves = section.blocks[0]
    seen = [(point.x, point.figure) for point in curves.curves[0].points]
    assert seen == [(level.scale, figure_of(level.score)) for level in robustness.levels]


def test_a_fault_is_named_with_the_evidence_against_it():
    view = VIEWS["localization"]()
    assert view.severity.word == "fault"
    assert "model.layers.12.mlp.down_proj" in view.verdict
    suspects, evidence = blocks(view, Table)
    assert column(suspects, "layer") == ["12", "12", "outside"]
    assert [cell.word for cell in column(suspects, "verdict")] == ["fault", "fault", "undecided"]
    assert column(evidence, "check") == ["product", "repeat", "oracle", "product"]
    assert column(evidence, "values off")[0].value == 96 and column(evidence, "values off")[0].samples == 4096
    (missing,) = blocks(view, NotMeasured)
    assert missing.gaps[0].what == "model.rotary_emb"
    assert view.actions[0].layers == (12,)


def test_modules_of_one_operator_in_one_layer_are_one_thing_to_do():
    names = ("mlp.down_proj", "mlp.up_proj", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    suspects = tuple(Suspect(3, "linear", f"model.layers.3.{name}", 9.0 - i) for i, name in enumerate(names))
    other = Suspect(5, "softmax", "model.layers.5.self_attn", 2.0)
    first, second = localization_view(Localization("fault", (*suspects, other)), found.ORIGIN).actions
    assert first.issue == (
        "It is off in 5 modules: mlp.down_proj, mlp.up_proj, self_attn.q_proj, self_attn.k_proj and more."
    )
    assert (first.layers, first.operators, second.layers, second.operators) == ((3,), ("linear",), (5,), ("softmax",))
    assert second.issue == "It is off in 1 module." and (first.priority, second.priority) == (1, 2)


def test_no_fault_is_said_in_the_words_of_the_record():
    view = VIEWS["nothing located"]()
    assert view.severity.word == "no fault found" and "271 sites" in view.verdict
    assert not view.actions and not blocks(view, Dots)


def test_an_undecided_localisation_says_what_would_decide_it():
    undecided = Localization("undecided", odd=found.localization().odd, checked=9, would_decide="Run longer batches.")
    view = localization_view(undecided, found.ORIGIN)
    assert view.severity.word == "undecided" and view.actions[0].action == "Run longer batches."
    assert view.actions[0].evidence


def test_the_document_of_a_diagnosis_holds_no_number_that_json_has_not():
    text = to_json(VIEWS["localization"]())
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["version"] == 1
    assert '"inf"' in text, "an error beyond all bounds"
