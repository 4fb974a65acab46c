"""A plan ranks by severity, puts first what both diverges and matters, and names commands that exist."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
from typing import Any

import pytest

from diagnose.synthetic import World, ask, setting
from noisescope.cli.main import read_words
from noisescope.core.codec import decode, encode
from noisescope.core.errors import BadInputError
from noisescope.core.migration import Plan, Step
from noisescope.core.records import Site
from noisescope.diagnose.comparison import Comparison, Question, Side, conclude
from noisescope.diagnose.whole import Question as Whole
from noisescope.diagnose.window import WindowQuestion
from noisescope.measure.contrasted import Contrast, Figures
from noisescope.prescribe.migration import migration, spans
from noisescope.prescribe.validation import Move
from noisescope.report.html import to_html
from noisescope.report.markdown import to_markdown
from noisescope.report.plan import plan_json, plan_lines, plan_view
from report import found

LAYERS = 30
MOVE = Move("made-up-30", "questions.jsonl", "npu")
COMPARED = "noisescope compare good bad --dtype bfloat16 --layers 1,2 --out=runs/x"


def contrast(layer: int | None, operator: str, order: int, excess: float = 0.1, mape: float = 0.001) -> Contrast:
    figures = Figures(mape, mape, 1.0, mape, 1.0, 40.0, 1.0, 1.0, "float32")
    site = Site(layer, operator, f"{'head' if layer is None else f'layers.{layer}'}.{operator}")
    return Contrast(site, "output", order, excess, figures)


def compared(
    own: dict[tuple[int | None, str], float], *, mape: float = 0.001, layers: int = LAYERS, limit: float = 0.05
) -> Comparison:
    """Every layer has a linear and a silu. Those in `own` have an error of their own; all behind the first inherit."""
    places = [*itertools.product(range(layers), ("linear", "silu")), (None, "linear")]
    first = min((places.index(place) for place in own), default=len(places))
    alone = [contrast(*place, i, 50.0 if place in own else 0.1, own.get(place, mape)) for i, place in enumerate(places)]
    seen = [dataclasses.replace(one, excess=60.0) if i >= first else one for i, one in enumerate(alone)]
    seen = [
        dataclasses.replace(one, figures=dataclasses.replace(one.figures, mape=0.3)) if i > first else one
        for i, one in enumerate(seen)
    ]
    local = {f"{one.site.path}:{one.role}": one for one in alone}
    side = Side("good", "5f", "cpu", "float32", "eager")
    return conclude(Question(side, Side("bad", "6f", "npu", "bfloat16", "eager"), limit), seen, local)


def planned(comparison: Comparison | None = None, diagnosis: Any = None, move: Move = MOVE) -> Plan:
    return migration(diagnosis or found.diagnosis(), move, comparison)


def steps_of(plan: Plan, priority: int) -> list[Step]:
    return [step for step in plan.steps if step.priority == priority]


def test_layers_are_ranked_by_severity_and_not_by_index() -> None:
    plan = planned()
    assert [rank.layer for rank in plan.layers[:3]] == [11, 12, 13] or {r.layer for r in plan.layers[:3]} == {
        11,
        12,
        13,
    }
    assert sorted(rank.layer for rank in plan.layers) == list(range(LAYERS))
    assert {rank.priority for rank in plan.layers[:3]} == {1} and {rank.priority for rank in plan.layers[3:]} == {3}
    (peak,) = (step for step in steps_of(plan, 1) if step.layers)
    assert peak.layers == (11, 12, 13) and "peak of an avalanche point" in peak.reasons[0]
    assert "16 bits" in peak.action and "MAPE up to 5%" in peak.accept
    assert "--layers 11,12,13 --max-mape 0.05" in peak.command and "target-float16.capture" in peak.command
    told = [layer for step in plan.steps for layer in step.layers]
    assert sorted(told) == list(range(LAYERS)), "every layer is in exactly one step"


def test_operators_are_ranked_by_their_score_and_checked_on_the_target() -> None:
    plan = planned()
    named = {step.component: step for step in plan.steps if not step.layers}
    assert named["linear"].priority == 1 and named["rms_norm"].priority == 2
    assert set(named) == {"linear", "rms_norm"}, "robust operators need nothing"
    assert (
        named["linear"].command.startswith("noisescope locate made-up-30") and "--device npu" in named["linear"].command
    )


def test_what_both_diverges_and_matters_is_fixed_first() -> None:
    plan = planned(compared({(12, "silu"): 0.02, (20, "silu"): 0.9}))
    first, *_ = plan.steps
    assert (first.priority, first.layers, first.operators) == (0, (12,), ("silu",))
    assert len(steps_of(plan, 0)) == 1
    assert "50 times what rounding allows" in first.reasons[0] and any("x" in r and "=" in r for r in first.reasons)
    tolerated = next(step for step in plan.steps if step.layers == (20,))
    assert tolerated.priority == 1 and "Repair silu in layer 20" in tolerated.action
    assert any("costs little" in reason for reason in tolerated.reasons)


def test_a_fault_in_a_fragile_operator_comes_first_even_in_a_robust_layer() -> None:
    plan = planned(compared({(20, "linear"): 0.05}))
    assert [step.layers for step in steps_of(plan, 0)] == [(20,)]


def test_of_two_to_be_fixed_first_the_larger_product_is_before() -> None:
    by_sensitivity = planned(compared({(20, "linear"): 0.05, (12, "linear"): 0.05}))
    assert [step.layers for step in steps_of(by_sensitivity, 0)] == [(12,), (20,)]
    by_divergence = planned(compared({(11, "linear"): 0.01, (13, "linear"): 0.2}))
    assert [step.layers for step in steps_of(by_divergence, 0)] == [(13,), (11,)]


def test_the_product_is_worked_out_by_hand() -> None:
    rank = next(r for r in planned(compared({(12, "silu"): 0.02})).layers if r.layer == 12)
    assert rank.harm is not None and rank.divergence == 0.02
    assert rank.product == pytest.approx(0.02 / 0.05 * rank.harm)


def test_what_is_inherited_is_not_to_be_fixed() -> None:
    plan = planned(compared({(3, "silu"): 0.02}))
    assert [step.layers for step in plan.steps if "Repair" in step.action] == [(3,)]
    assert not steps_of(plan, 0), "layers 11 to 13 only inherit"


def test_rounding_above_the_limit_needs_precision_where_it_matters_and_nothing_elsewhere() -> None:
    plan = planned(compared({}, mape=0.2))
    (widen,) = steps_of(plan, 0)
    assert widen.layers == (11, 12, 13) and "more precision" in widen.action
    assert "no operator is at fault" in widen.reasons[0]
    assert sum(len(step.layers) for step in steps_of(plan, 3)) == LAYERS - 3


def test_a_fault_outside_the_layers_is_fixed_first_and_compared_everywhere() -> None:
    (step,) = steps_of(planned(compared({(None, "linear"): 0.1})), 0)
    assert step.layers == (None,) and "outside the layers" in step.action and "--layers" not in step.command


def test_a_comparison_without_faults_changes_no_rank() -> None:
    alone, beside = planned(), planned(compared({}))
    assert [step.layers for step in alone.steps] == [step.layers for step in beside.steps]
    assert any("no comparison" in note for note in alone.notes)
    assert any("no place at fault among 61" in note for note in beside.notes)


def test_a_repair_is_validated_by_the_comparison_that_found_the_fault() -> None:
    move = dataclasses.replace(MOVE, compared=COMPARED)
    (step,) = steps_of(planned(compared({(12, "silu"): 0.02}), move=move), 0)
    assert step.command == "noisescope compare good bad --dtype bfloat16 --layers 12"


def by_kl(predicted: bool = False) -> Any:
    """A metric without limits; all layers measured, or only some and the rest predicted."""
    world = World(200, metric="kl_to_clean", layers={**dict.fromkeys(range(LAYERS), 0.001), 4: 0.2, 5: 0.1})
    asked = setting(metric="kl_to_clean", exhaustive=not predicted, budget=None)
    windows = WindowQuestion(asked, size=1, predicted=world.profile(LAYERS) if predicted else ())
    return ask(Whole(asked, windows=windows), world)


def operators_alone() -> Any:
    world = World(200, operators=found.HARM)
    return ask(Whole(setting()), world)


@pytest.mark.parametrize("predicted", [False, True])
def test_without_limits_the_layers_that_make_up_most_of_the_harm_come_first(predicted: bool) -> None:
    plan = planned(diagnosis=by_kl(predicted))
    assert [rank.layer for rank in plan.layers[:2]] == [4, 5]
    assert plan.layers[0].priority == 1 and not plan.is_share
    assert plan.layers[-1].priority == 3 and "number 1 of 30" in plan.layers[0].reason
    assert "target-bfloat16.capture" in steps_of(plan, 3)[0].command


def test_operators_alone_make_a_plan_that_says_what_is_missing() -> None:
    plan = planned(diagnosis=operators_alone())
    assert plan.layers == () and plan.steps[0].component == "linear" and not any(step.layers for step in plan.steps)
    assert any("did not measure layers" in note for note in plan.notes)
    assert plan.prepare == (), "nothing is compared"
    beside = planned(compared({(2, "linear"): 0.1}), diagnosis=operators_alone())
    assert steps_of(beside, 0)[0].layers == (2,)


PLANS = {
    "alone": lambda move: planned(move=move),
    "healthy": lambda move: planned(diagnosis=found.healthy(), move=move),
    "faults": lambda move: planned(compared({(12, "silu"): 0.02, (20, "silu"): 0.9, (None, "linear"): 1.0}), move=move),
    "rounding": lambda move: planned(compared({}, mape=0.2), move=move),
    "kl": lambda move: planned(diagnosis=by_kl(), move=move),
    "operators": lambda move: planned(diagnosis=operators_alone(), move=move),
}
MOVES = {
    "plain": MOVE,
    "found by compare": dataclasses.replace(MOVE, compared=COMPARED),
    "odd names": Move(
        "a model's folder", "my data.jsonl", "cuda:1", ("--config-from", "x y.json", "--trust-remote-code")
    ),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("name", PLANS)
def test_every_command_is_one_that_exists(name: str, move: str) -> None:
    plan = PLANS[name](MOVES[move])
    assert plan.steps
    for command in (*plan.prepare, *(step.command for step in plan.steps)):
        program, *words = shlex.split(command)
        assert program == "noisescope" and callable(read_words(words).run), command
    captured = [shlex.split(command)[-1] for command in plan.prepare]
    used = [word for step in plan.steps for word in shlex.split(step.command) if word.endswith(".capture")]
    assert set(used) == set(captured), "what is compared was captured before, and nothing else"


def test_a_healthy_model_needs_the_standard_check_alone() -> None:
    plan = planned(diagnosis=found.healthy())
    assert [step.priority for step in plan.steps] == [3]
    assert plan.steps[0].component == "layers 0-29"


def test_what_says_nothing_is_refused() -> None:
    with pytest.raises(BadInputError, match="not to be relied on"):
        planned(diagnosis=found.broken())
    empty = dataclasses.replace(found.diagnosis(), windows=(), operators=())
    with pytest.raises(BadInputError, match="neither layers nor operators"):
        planned(diagnosis=empty)
    with pytest.raises(BadInputError, match="31 layers or more"):
        planned(compared({}, layers=31))


def test_the_record_survives_and_every_rendering_says_the_same() -> None:
    plan = planned(compared({(12, "silu"): 0.02}))
    assert decode(Plan, encode(plan)) == plan
    plain = json.loads(plan_json(plan))
    assert (plain["format"], plain["version"]) == ("noisescope plan", 1)
    view = plan_view(plan, found.ORIGIN)
    page, text, lines = to_html(view), to_markdown(view), "\n".join(plan_lines(plan))
    for number, step in enumerate(plan.steps):
        assert plain["plan"]["steps"][number]["command"] == step.command
        assert f"```text\n{step.command}\n```" in text and step.command in lines
        assert step.command in page
    assert view.actions[0].component == "silu in layer 12"


def test_layers_are_said_in_spans() -> None:
    assert spans((3,)) == "layer 3"
    assert spans((9, 3, 4, 5)) == "layers 3-5, 9"
    assert spans((1, None)) == "layer 1 and what lies outside the layers"
