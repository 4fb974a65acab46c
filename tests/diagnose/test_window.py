"""Level 2 measured exhaustively: windows, interactions and avalanche points against what is planted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diagnose.synthetic import World, ask, setting
from noisescope.core.errors import BadInputError
from noisescope.core.records import Site
from noisescope.diagnose.harm import p_values
from noisescope.diagnose.ledger import Ledger
from noisescope.diagnose.search import climb_windows
from noisescope.diagnose.setting import Setting
from noisescope.diagnose.whole import Diagnosis, Question
from noisescope.diagnose.window import BANDS, WindowQuestion, predicted_by_layer, unit_of
from noisescope.measure.profile import Profile


def exhaustive(world: World, neighbours: Any = "apart", **changes: Any) -> Diagnosis:
    asked = setting_of(world, **changes)
    return ask(Question(asked, operators=False, windows=WindowQuestion(asked, neighbours=neighbours)), world)


def setting_of(world: World, **changes: Any) -> Setting:
    shape = "choice" if world.metric == "accuracy" else "text"
    given = {"metric": world.metric, "shape": shape, "layers": 14, "exhaustive": True, "resamples": 1000}
    return setting(**{**given, **changes})


def by_name(found: Diagnosis) -> dict[str, Any]:
    return {result.name: result for result in found.windows}


def test_there_is_a_window_at_every_step_and_one_at_the_end() -> None:
    question = WindowQuestion(setting(layers=8), size=3, step=2)
    assert [window[0] for window in question.windows] == [0, 2, 4, 5]
    assert WindowQuestion(setting(layers=3)).windows == ((0, 1, 2),)


def test_neighbours_do_not_overlap_unless_that_is_asked_for() -> None:
    apart = WindowQuestion(setting(layers=10))
    assert apart.beside((4, 5, 6)) == ((1, 2, 3), (7, 8, 9))
    assert apart.beside((1, 2, 3)) == ((4, 5, 6),)
    assert WindowQuestion(setting(layers=10), step=2).beside((4, 5, 6)) == ((0, 1, 2), (7, 8, 9))
    assert WindowQuestion(setting(layers=10), neighbours="adjacent").beside((4, 5, 6)) == ((3, 4, 5), (5, 6, 7))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"size": 0}, "window size 0"),
        ({"size": 31}, "1 to 30"),
        ({"step": 0}, "step size 0"),
        ({"neighbours": "near"}, "unknown kind of neighbours"),
        ({"predicted": (1.0,)}, "one for each of 30"),
    ],
)
def test_windows_that_cannot_be_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        WindowQuestion(setting(), **wrong)


def test_what_is_predicted_of_a_layer_leaves_out_attention_and_what_is_outside() -> None:
    sites = {Site(0, "linear", "a"): 1.0, Site(0, "attention", "b"): 9.0, Site(1, "silu", "c"): 2.0}
    profile = Profile(0.05, 1, 1, sites | {Site(None, "linear", "head"): 5.0}, {s: np.ones(1) for s in sites})
    everything = Profile(0.05, 1, 1, profile.by_site, {site: np.ones(1) for site in profile.by_site})
    assert predicted_by_layer(everything, 2, 0.1) == pytest.approx((4.0, 8.0))


def test_the_interaction_is_the_harm_of_a_window_less_that_of_its_layers() -> None:
    world = World(metric="nll", layers={4: 0.05}, pairs={(4, 5): 0.3}, base=0.001)
    found = exhaustive(world)
    asked, clean = found.setting, world.clean

    def harm(*layers: int) -> float:
        rows = [
            world.values(unit_of(layers).trial(asked, chunk, round_)).sum()
            for round_ in range(3)
            for chunk in range(len(asked.spans))
        ]
        return (sum(rows) / 3 - clean.sum()) / clean.sum()

    window = by_name(found)["layers 3-5"]
    assert window.answer.harm.estimate == pytest.approx(harm(3, 4, 5))
    assert window.interaction.harm.estimate == pytest.approx(harm(3, 4, 5) - harm(3) - harm(4) - harm(5))
    assert window.interaction.harm.low < 0.3 < window.interaction.harm.high


@pytest.mark.parametrize("metric", ["accuracy", "nll", "perplexity", "kl_to_clean"])
def test_a_planted_pair_is_told_from_layers_that_are_bad_alone(metric: str) -> None:
    found = exhaustive(World(metric=metric, layers={10: 0.3}, pairs={(4, 5): 0.35}, base=0.001))
    (finding,) = [finding for finding in found.findings if "make each other worse" in finding.statement]
    assert any(name in finding.statement for name in ("layers 3-5", "layers 4-6"))


@pytest.mark.parametrize("metric", ["accuracy", "nll"])
def test_an_avalanche_point_is_one_place_however_many_windows_meet_in_it(metric: str) -> None:
    found = exhaustive(World(metric=metric, layers={6: 0.4}, base=0.001))
    (point,) = found.points
    assert set(point.layers) == {4, 5, 6, 7, 8} and point.severity == "CRITICAL"
    assert found.risk.avalanche_points == 1 and found.risk.points == 25
    verdicts = {name: result.verdict.name for name, result in by_name(found).items()}
    assert {name for name, verdict in verdicts.items() if verdict == "critical"} == {
        "layers 4-6",
        "layers 5-7",
        "layers 6-8",
    }
    assert set(verdicts.values()) == {"critical", "robust"}


def test_comparing_with_adjacent_windows_hides_an_avalanche() -> None:
    world = World(metric="nll", layers={6: 0.4}, base=0.001)
    assert exhaustive(world).points and not exhaustive(world, neighbours="adjacent").points


def test_harm_that_is_the_same_everywhere_is_critical_and_no_avalanche() -> None:
    found = exhaustive(World(metric="nll", base=0.1))
    assert {result.verdict.name for result in found.windows} == {"critical"} and not found.points


@pytest.mark.parametrize("metric", ["accuracy", "nll"])
def test_where_nothing_is_planted_no_window_is_blamed(metric: str) -> None:
    for seed in range(2):
        found = exhaustive(World(metric=metric, base=0.002, seed=seed))
        assert not [finding for finding in found.findings if finding.decided]
        assert {result.verdict.name for result in found.windows} <= {"robust", "undecided"}


def test_a_window_is_said_to_be_above_a_limit_only_if_that_holds_among_all_windows() -> None:
    """Holm by hand: the smallest p-value counts as many times as there are windows, the next one time less."""
    held_back = 0
    for seed in range(6):
        world = World(base=0.03, seed=seed, shared=0.0)
        asked = setting_of(world, seeds=(0,), resamples=400)
        question, known = Question(asked, operators=False, windows=WindowQuestion(asked)), {}
        found = ask(question, world, known)
        ledger = Ledger(asked, known, is_final=True)
        ledger.open()
        climb_windows(ledger, question.windows)
        measured = {result.layers: ledger.measured(unit_of(result.layers)) for result in found.windows}
        p = {layers: p_values(asked, part, BANDS, len(measured))[0] for layers, part in measured.items()}
        worst, adjusted = 0.0, {}
        for place, layers in enumerate(sorted(p, key=p.__getitem__)):
            worst = max(worst, p[layers] * (len(p) - place))
            adjusted[layers] = worst
        for result in found.windows:
            alone = "robust" not in ledger.verdict(unit_of(result.layers)).bands
            among = alone and adjusted[result.layers] <= 0.025
            assert ("robust" not in result.verdict.bands) == among
            held_back += alone and not among
    assert held_back > 0


def test_a_window_with_a_failed_trial_is_undecided_and_no_neighbour_of_anything() -> None:
    from noisescope.core.codec import key_of

    world = World(metric="nll", layers={6: 0.4}, base=0.001)
    world.failing = frozenset({key_of(unit_of((1, 2, 3)).trial(setting_of(world), 0))})
    found = exhaustive(world)
    gone, beside = by_name(found)["layers 1-3"], by_name(found)["layers 4-6"]
    assert gone.verdict.name == "undecided" and gone.answer.gaps and gone.interaction is None
    assert beside.avalanche.is_point == "undecided" and "layers 1-3 not measured" in beside.avalanche.reason
    assert any("layers 1-3" in reason and "out of memory" in reason for reason in found.unmeasured)
