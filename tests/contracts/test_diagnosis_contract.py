"""What every diagnosis has to do, whatever it asks: plan purely, end, and conclude the same however it was come to."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from diagnose.synthetic import World, ask, setting
from noisescope.core.codec import decode, encode, key_of
from noisescope.core.records import Reading
from noisescope.diagnose.gate import GateQuestion
from noisescope.diagnose.robustness import RobustnessQuestion
from noisescope.diagnose.setting import cost_of
from noisescope.diagnose.whole import Question
from noisescope.diagnose.window import WindowQuestion

LAYERS = 10


def world(metric: str = "nll") -> World:
    return World(
        samples=60, metric=metric, operators={"softmax": 0.3}, layers={6: 0.3}, pairs={(2, 3): 0.2}, base=0.002
    )


def small(**changes: Any) -> Any:
    return setting(
        **{"metric": "nll", "shape": "text", "samples": 60, "layers": LAYERS, "chunk": 20, "resamples": 300, **changes}
    )


def whole(**changes: Any) -> Question:
    asked = small(**changes)
    return Question(asked, windows=WindowQuestion(asked, predicted=world(asked.metric).profile(LAYERS)))


QUESTIONS: dict[str, Callable[[], Any]] = {
    "operators": lambda: Question(small()),
    "windows": lambda: Question(whole().setting, operators=False, windows=whole().windows),
    "whole": whole,
    "whole by hits": lambda: whole(metric="accuracy", shape="choice"),
    "whole by kl": lambda: whole(metric="kl_to_clean"),
    "exhaustive": lambda: whole(exhaustive=True, seeds=(0, 1)),
    "short of budget": lambda: whole(budget=11.0),
    "robustness": lambda: RobustnessQuestion(small(), levels=(0.0, 0.05)),
    "gate": lambda: GateQuestion(small()),
}


@pytest.fixture(params=QUESTIONS)
def question(request: pytest.FixtureRequest) -> Any:
    return QUESTIONS[request.param]()


@pytest.fixture
def answered(question: Any) -> tuple[Any, dict[str, Reading]]:
    known: dict[str, Reading] = {}
    return ask(question, world(question.setting.metric), known), known


def test_the_plan_is_the_same_whenever_it_is_made_and_changes_nothing(question: Any) -> None:
    known: dict[str, Reading] = {}
    first = question.plan(known)
    assert first and list(question.plan(known)) == list(first) and known == {}


def test_the_plan_ends_and_what_is_planned_is_what_was_known(
    question: Any, answered: tuple[Any, dict[str, Reading]]
) -> None:
    _, known = answered
    assert {key_of(trial) for trial in question.plan(known)} == set(known)


def test_the_order_of_readings_and_readings_of_others_change_nothing(
    question: Any, answered: tuple[Any, dict[str, Reading]]
) -> None:
    found, known = answered
    strange = world().measure(next(iter(known.values())).trial)
    shuffled = dict(random.Random(1).sample(list(known.items()), len(known))) | {"another": strange}
    assert encode(question.conclude(shuffled)) == encode(found)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_going_on_from_any_part_of_the_readings_ends_in_the_same_conclusion(
    question: Any, answered: tuple[Any, dict[str, Reading]], kept: float
) -> None:
    found, known = answered
    draw = random.Random(3)
    part = {key: reading for key, reading in known.items() if draw.random() < kept}
    assert encode(ask(question, world(question.setting.metric), part)) == encode(found)
    assert set(part) == set(known)


def test_more_readings_than_were_asked_for_change_nothing(
    question: Any, answered: tuple[Any, dict[str, Reading]]
) -> None:
    found, known = answered
    more = {}
    for other in (whole(metric=question.setting.metric, shape=question.setting.shape, exhaustive=True), question):
        ask(other, world(question.setting.metric), more)
    assert set(known) <= set(more)
    assert encode(question.conclude(more)) == encode(found)


def test_it_concludes_from_nothing_and_from_half_and_says_what_is_missing(
    question: Any, answered: tuple[Any, dict[str, Reading]]
) -> None:
    _, known = answered
    nothing = question.conclude({})
    assert any(finding.severity == "error" and not finding.decided for finding in nothing.findings)
    first = question.plan({})
    half = {key_of(trial): known[key_of(trial)] for trial in first}
    text = encode(question.conclude(half))
    assert "missing" in text


def test_a_conclusion_can_be_kept_and_read_back(question: Any, answered: tuple[Any, dict[str, Reading]]) -> None:
    found, _ = answered
    assert encode(decode(type(found), encode(found))) == encode(found)


def test_what_it_costs_is_what_its_trials_cost(question: Any, answered: tuple[Any, dict[str, Reading]]) -> None:
    found, known = answered
    spent = 0.0 if isinstance(question, RobustnessQuestion | GateQuestion) else question.setting.spent
    cost = sum(cost_of(reading.trial, question.setting) for reading in known.values())
    assert found.cost == pytest.approx(cost + spent)
    if not question.setting.exhaustive and not isinstance(question, RobustnessQuestion):
        assert found.cost <= question.setting.budget + 1e-9


def test_a_trial_that_failed_is_undecided_and_in_the_findings(question: Any) -> None:
    clean = world(question.setting.metric)
    ask(question, clean)
    # Not the baseline, nor the control: the last trial of all.
    key = list(clean.asked)[-1]
    broken = world(question.setting.metric)
    broken.failing = frozenset({key})
    found = ask(question, broken)
    text = encode(found)
    assert "failed: out of memory" in text
    repaired = ask(question, clean)
    assert "failed" not in encode(repaired)
