"""The pages of localisations by fingerprint and by the classical probes say what their own figures are."""

from dataclasses import replace

from noisescope.diagnose.localization import Confirmation, Evidence, Localization, Opinion, Suspect
from noisescope.report.localization import localization_view
from noisescope.report.view import Bars, Dots, Facts, Table
from report import found

SECOND = Opinion(3, "linear", "layers.3.up", "It is off.")
PRINTS = Localization(
    "fault",
    tuple(
        Suspect(i, "layer", f"layers.{i}", 1 - i / 10, (Evidence("fingerprint", 1.0, 0, 0, "alike"),)) for i in (3, 2)
    ),
    "fingerprint",
    checked=6,
    notes=("layer 3 leads.", "Second opinion: agrees."),
    margin=0.2,
    confidence=0.99,
    opinion=SECOND,
)


def blocks(view, kind):
    return [block for section in view.sections for block in section.blocks if isinstance(block, kind)]


def test_of_fingerprints_the_best_alone_is_called_a_fault():
    view = localization_view(PRINTS, found.ORIGIN)
    (bars,) = blocks(view, Bars)
    assert [(bar.label, bar.severity.word) for bar in bars.bars] == [("layers.3", "fault"), ("layers.2", "less alike")]
    assert "layers.3" in view.verdict and "agrees" in view.verdict
    facts = {fact.name: fact.value for fact in view.facts}
    assert facts["second opinion"] == "linear at layers.3.up (3)"
    assert "linear at layers.3.up" in view.actions[0].action


def test_opinions_that_differ_send_the_reader_to_the_method_without_a_reference():
    view = localization_view(replace(PRINTS, opinion=replace(SECOND, layer=2)), found.ORIGIN)
    assert "without a reference" in view.actions[0].action
    assert "do not point at one layer" in view.actions[0].issue


def test_the_figures_of_the_classical_probes_are_not_called_errors():
    probes = (Evidence("smoothness", 4.0, 0, 0, "smoothness adds 4.00"),)
    view = localization_view(
        Localization("undecided", (Suspect(1, "layer", "layers.1", 4.0, probes),), "classic"), found.ORIGIN
    )
    (dots,) = blocks(view, Dots)
    assert "rounding" not in dots.measure and not dots.thresholds
    assert [column.name for column in blocks(view, Table)[1].columns][2] == "adds to the score"


def test_long_lists_of_channels_are_cut():
    suspect = Suspect(1, "linear", "layers.1.up", 9.0, (), tuple(range(20)))
    view = localization_view(Localization("fault", (suspect,)), found.ORIGIN)
    assert blocks(view, Table)[0].rows[0].cells[-1] == "0, 1, 2, 3, 4, 5, 6, 7 and 12 more"


def test_what_came_of_the_confirmation_is_on_the_page():
    suspect = Suspect(1, "linear", "layers.1.up", 9.0)
    seen = Confirmation("not confirmed", "Checks still fail.", 1, ("silu at layers.2.act",), 0.25, 1, 1e-6, 0.4)
    view = localization_view(Localization("fault", (suspect,), confirmation=seen), found.ORIGIN)
    (facts,) = (one for one in blocks(view, Facts) if one.title.startswith("With what the host"))
    shown = {fact.name: getattr(fact.value, "value", fact.value) for fact in facts.facts}
    assert shown["outcome"] == "not confirmed"
    assert shown["operators at which a check still fails"] == 1
    assert shown["the end result moves by, as a share of its size"] == 0.25
    assert shown["of the distance to the healthy result is gone"] == 0.4
