"""The whole: risk by hand, levels together and apart, and the dashboard that shows what the records say."""

from __future__ import annotations

import pytest

from diagnose.synthetic import World, ask, setting
from noisescope.core.errors import BadInputError
from noisescope.diagnose.dashboard import dashboard
from noisescope.diagnose.whole import SEVERITIES, Diagnosis, Question, risk_of
from noisescope.diagnose.window import WindowQuestion


@pytest.mark.parametrize(
    ("figures", "points", "level"),
    [
        ((0, 0, 0.0), 0.0, "LOW"),
        ((0, 2, 0.0), 50.0, "LOW"),
        ((0, 2, 0.1), 50.5, "MODERATE"),
        ((1, 2, 4.0), 100.0, "MODERATE"),
        ((2, 1, 4.0), 105.0, "HIGH"),
    ],
)
def test_risk_adds_up_as_it_is_said(figures: tuple[int, int, float], points: float, level: str) -> None:
    risk = risk_of(*figures)
    assert (risk.points, risk.level) == (pytest.approx(points), level)


def diagnosed(metric: str = "nll", *, operators: bool = True, windows: bool = True) -> Diagnosis:
    world = World(metric=metric, samples=100, operators={"silu": 0.4}, layers={6: 0.4}, base=0.002)
    shape = "choice" if metric == "accuracy" else "text"
    asked = setting(metric=metric, shape=shape, samples=100, layers=12, resamples=400)
    question = WindowQuestion(asked, predicted=world.profile(12)) if windows else None
    return ask(Question(asked, operators=operators, windows=question), world)


def test_levels_that_are_not_asked_about_are_empty_and_cost_nothing() -> None:
    only_operators, only_windows = diagnosed(windows=False), diagnosed(operators=False)
    assert only_operators.operators and not only_operators.windows and not only_operators.points
    assert only_windows.windows and not only_windows.operators
    both = diagnosed()
    assert both.cost < only_operators.cost + only_windows.cost
    assert both.risk.points == 55.0


def test_findings_come_worst_first() -> None:
    found = [finding.severity for finding in diagnosed("accuracy").findings]
    assert found == sorted(found, key=SEVERITIES.index) and found[0] == "critical"


@pytest.mark.parametrize(("metric", "scale", "warned"), [("accuracy", 0.34, True), ("accuracy", 0.33, False)])
def test_noise_too_strong_for_any_score_to_be_critical_is_warned_of(metric: str, scale: float, warned: bool) -> None:
    found = Question(setting(metric=metric, scale=scale)).conclude({})
    assert any("too kindly" in finding.statement for finding in found.findings) == warned


def test_windows_of_another_setting_are_refused() -> None:
    with pytest.raises(BadInputError, match="a setting of their own"):
        Question(setting(), windows=WindowQuestion(setting(samples=50)))


@pytest.mark.parametrize("metric", ["nll", "accuracy", "kl_to_clean"])
def test_the_dashboard_shows_every_level_and_fits_what_was_found(metric: str) -> None:
    found = diagnosed(metric)
    text = "\n".join(dashboard(found))
    assert f"Risk {found.risk.level}" in text and f"{found.cost:.1f} clean evaluations" in text
    for result in found.operators:
        assert f"  {result.operator}" in text
    for window in found.windows:
        assert f"  {window.name}" in text
    for finding in found.findings:
        assert finding.statement in text
    assert ("AVALANCHE" in text) == bool(found.points)
    assert ("no bands" in text) == (metric == "kl_to_clean")


def test_the_dashboard_of_nothing_says_that_nothing_was_measured() -> None:
    asked = setting(samples=50)
    text = "\n".join(dashboard(Question(asked).conclude({})))
    assert "not measured" in text and "[error]" in text
