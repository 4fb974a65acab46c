"""The default, which screens first, against measuring everything: the same verdicts for a tenth of the cost."""

from __future__ import annotations

import math
from typing import Any

import pytest

from diagnose.synthetic import World, ask, setting
from noisescope.diagnose.search import control_group, peaks, ranking
from noisescope.diagnose.whole import Diagnosis, Question
from noisescope.diagnose.window import BANDS, WindowQuestion, unit_of

LAYERS = 30
PLANTED: dict[str, Any] = {
    "operators": {"softmax": 0.3},
    "layers": {0: 0.02, 12: 0.12, 13: 0.12, 14: 0.12},
    "pairs": {(20, 21): 0.3},
    "base": 0.003,
}


def whole(world: World, *, exhaustive: bool = False, **changes: Any) -> Question:
    asked = setting(
        metric=world.metric,
        shape="choice" if world.metric == "accuracy" else "text",
        samples=world.samples,
        layers=LAYERS,
        exhaustive=exhaustive,
        **changes,
    )
    return Question(asked, windows=WindowQuestion(asked, predicted=world.profile(LAYERS)))


def truth(found: Diagnosis, world: World, layers: tuple[int, ...]) -> str:
    return BANDS.name(world.harm(unit_of(layers).trial(found.setting, 0)))


def assert_agree(default: Diagnosis, all_: Diagnosis, world: World) -> int:
    """Verdicts that both reached are the same and those reached are true; how many the default reached."""
    for one, other in zip(default.windows, all_.windows, strict=True):
        if one.verdict.decided and other.verdict.decided:
            assert one.verdict.name == other.verdict.name, one.name
        for result in (one, other):
            assert not result.verdict.decided or result.verdict.name == truth(default, world, result.layers)
    both = [{o.operator: o.verdict.name for o in found.operators if o.verdict.decided} for found in (default, all_)]
    assert all(both[1].get(name, verdict) == verdict for name, verdict in both[0].items())
    return sum(result.verdict.decided for result in default.windows)


def test_peaks_do_not_overlap_and_the_control_group_is_drawn_from_the_rest() -> None:
    question = WindowQuestion(setting(), predicted=World(layers={5: 0.2, 6: 0.2, 20: 0.1}, base=0.01).profile(LAYERS))
    best = peaks(question)
    assert best[0] == ranking(question)[0] and len(best) == 3
    assert {5, 6} <= set(best[0]) and 20 in best[1]
    group = control_group(question)
    assert not set(group) & set(best) and group[-1] == ranking(question)[-1] and len(set(group)) == 4
    assert control_group(question) == group
    others = [control_group(WindowQuestion(setting(seeds=(seed,)), predicted=question.predicted)) for seed in range(8)]
    assert len({tuple(one) for one in others}) > 1


@pytest.mark.parametrize("metric", ["nll", "accuracy"])
def test_what_is_planted_is_found_within_the_budget_with_the_verdicts_of_measuring_all(metric: str) -> None:
    world = World(metric=metric, samples=200, **PLANTED)
    default, all_ = ask(whole(world, resamples=1000), world), ask(whole(world, exhaustive=True, resamples=1000), world)
    reached = assert_agree(default, all_, world)
    assert reached >= (27 if metric == "nll" else 18)
    assert default.cost <= 25.0 < all_.cost / 4
    assert [o.operator for o in default.operators if o.verdict.name == "CRITICAL"] == ["softmax"]
    assert any({12, 13, 14} <= set(point.layers) for point in default.points)
    (pair,) = [finding for finding in default.findings if "make each other worse" in finding.statement]
    assert any(name in pair.statement for name in ("layers 18-20", "layers 19-21", "layers 20-22"))


@pytest.mark.parametrize(("metric", "most"), [("nll", 14.0), ("accuracy", 25.0)])
def test_where_nothing_is_planted_all_is_robust_and_costs_less(metric: str, most: float) -> None:
    world = World(metric=metric, samples=200, base=0.003)
    found = ask(whole(world, resamples=1000), world)
    assert not [finding for finding in found.findings if finding.decided and finding.severity != "note"]
    assert sum(result.verdict.name == "robust" for result in found.windows) >= 26
    assert found.cost <= most


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["nll", "accuracy"])
@pytest.mark.parametrize("samples", [100, 200])
def test_over_many_models_verdicts_agree_and_the_budget_holds(metric: str, samples: int) -> None:
    reached = 0
    for seed in range(8):
        for planted in (PLANTED, {"base": 0.003}):
            world = World(metric=metric, samples=samples, seed=seed, **planted)
            default = ask(whole(world, resamples=1000), world)
            all_ = ask(whole(world, exhaustive=True, resamples=1000), world)
            reached += assert_agree(default, all_, world)
            assert default.cost <= 25.0
    assert reached >= (0.95 if metric == "nll" else 0.7 if samples == 200 else 0.2) * 16 * 28


@pytest.mark.parametrize("layers", [12, 24, 48, 80])
def test_the_budget_holds_whatever_the_number_of_layers(layers: int) -> None:
    world = World(samples=100, layers={3: 0.2, layers - 2: 0.3}, base=0.05 / layers)
    asked = setting(samples=100, layers=layers, resamples=400)
    found = ask(Question(asked, windows=WindowQuestion(asked, predicted=world.profile(layers))), world)
    assert found.cost == pytest.approx(world.cost(asked) + asked.spent) and found.cost <= 25.0


def test_a_small_budget_is_kept_and_what_it_left_out_is_listed() -> None:
    world = World(samples=100, **PLANTED)
    found = ask(whole(world, budget=9.0, resamples=400), world)
    assert found.cost <= 9.0
    assert [reason for reason in found.unmeasured if "linear" in reason or "softmax" in reason or "layers" in reason]
    assert sum(result.verdict.decided for result in found.operators) <= 3


def test_inferred_verdicts_say_what_they_rest_on_and_carry_no_figures() -> None:
    world = World(metric="nll", samples=200, **PLANTED)
    found = ask(whole(world, resamples=400), world)
    inferred = [result for result in found.windows if result.verdict.decided and result.answer.harm is None]
    assert inferred and all(result.evidence.startswith(("ranked between", "inside")) for result in inferred)
    measured = [result for result in found.windows if result.answer.harm is not None]
    assert all(result.evidence == "measured" and result.p_value is not None for result in measured)


def test_how_well_screening_ranked_is_measured_and_a_useless_prediction_is_told() -> None:
    world = World(metric="nll", samples=200, layers={i: 0.002 * i for i in range(30)}, base=0.0)
    good = ask(whole(world, resamples=400), world)
    assert good.agreement is not None and good.agreement.interval.estimate > 0.95
    question = whole(world, resamples=400)
    backwards = tuple(reversed(question.windows.predicted))
    bad = ask(Question(question.setting, windows=WindowQuestion(question.setting, predicted=backwards)), world)
    assert bad.agreement.interval.estimate < 0
    assert any("verdicts inferred from the ranking are weak" in finding.statement for finding in bad.findings) or all(
        not result.evidence.startswith("ranked") for result in bad.windows
    )


def test_a_bad_prediction_leads_to_no_wrong_verdict_among_what_was_measured() -> None:
    world = World(metric="nll", samples=200, **PLANTED)
    question = whole(world, resamples=400)
    flat = tuple(1.0 + 1e-3 * math.sin(7.0 * i) for i in range(LAYERS))
    found = ask(Question(question.setting, windows=WindowQuestion(question.setting, predicted=flat)), world)
    for result in found.windows:
        if result.evidence == "measured" or result.evidence.startswith("inside"):
            assert not result.verdict.decided or result.verdict.name == truth(found, world, result.layers)
    assert found.cost <= 25.0


def test_without_a_prediction_all_windows_are_measured_as_far_as_the_budget_goes() -> None:
    world = World(metric="nll", samples=100, **PLANTED)
    asked = setting(metric="nll", shape="text", samples=100, resamples=400)
    found = ask(Question(asked, windows=WindowQuestion(asked)), world)
    assert found.agreement is None and found.cost <= 25.0
    assert sum(result.evidence == "measured" for result in found.windows) >= 20
