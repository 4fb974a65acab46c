"""Verdicts of an experiment on arms that are made up: what was planted is found, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from noisescope.core.codec import decode, encode
from noisescope.core.errors import BadInputError
from noisescope.core.experiment import (
    ADAPTIVE,
    BACKWARD,
    BOTH,
    FORWARD,
    NONE,
    UNIFORM,
    Arm,
    Disturbance,
    Recipe,
    Task,
    Trained,
    World,
    worlds_of,
)
from noisescope.diagnose.experiment import CLAIMS, Evaluated, Experiment, WorldResult, conclude_world, disturbed
from noisescope.diagnose.experiment_lines import experiment_lines

# Clean score and retention at 5 %, as the theory has it.
THEORY = {NONE: (0.8, 0.5), BOTH: (0.78, 0.7), FORWARD: (0.78, 0.9), BACKWARD: (0.8, 0.45)}
ITEMS, SEEDS = 3000, 3


def arm(name, clean, kept, *, items=ITEMS, seeds=SEEDS, spread=0.0, draw=None):
    """Values of an arm whose items are right with a chance, the same items and seeds hard in all arms."""
    draw = draw or np.random.default_rng(5)
    hard = draw.random((1, items)), draw.random((seeds, items))
    shift = spread * draw.normal(size=(seeds, 1))
    at_0 = (0.7 * hard[0] + 0.3 * hard[1] < np.quantile(0.7 * hard[0] + 0.3 * hard[1], clean) + shift).astype(float)
    noisy = at_0 * (draw.random((seeds, items)) < kept + shift)
    world = World()
    trained = Trained(((1, 2.0), (2, 1.0)), 10, 10, 0.05, (("forward", 0.05),), ((0, 0.05), (1, 0.05)))
    arms = tuple(Arm(name, world, seed) for seed in range(seeds))
    return Evaluated(arms, (trained,) * seeds, {0.0: at_0, 0.05: noisy, 0.1: noisy * 0.5}, {0.0: 0, 0.05: 9, 0.1: 9})


def world_of(figures, name="e8", guessed=0.05, **how):
    arms = {one: arm(one, *figures[one], **how) for one in figures}
    return conclude_world(World(), arms, CLAIMS[name], guessed)


def verdicts(result):
    return [one.verdict for one in result.claims]


def test_the_theory_is_verified_where_it_was_planted():
    found = world_of(THEORY)
    assert verdicts(found) == ["verified"] * 3
    difference = found.claims[0].difference
    assert difference.low < 0.2 < difference.high and found.claims[0].p_verified < 0.05 < found.claims[0].p_falsified


def test_each_claim_is_falsified_where_its_opposite_was_planted():
    for name, figures, claim in (
        ("both keeps as much", {**THEORY, BOTH: (0.78, 0.9)}, 0),
        ("backward only is good", {**THEORY, BACKWARD: (0.8, 0.7)}, 1),
        ("both costs the score", {**THEORY, BOTH: (0.6, 0.7)}, 2),
    ):
        found = verdicts(world_of(figures))
        assert found[claim] == "falsified", name
        assert [verdict for i, verdict in enumerate(found) if i != claim] == ["verified"] * 2, name


def test_a_difference_on_the_limit_is_undecided():
    found = world_of({**THEORY, FORWARD: (0.78, 0.75), BACKWARD: (0.8, 0.52)})
    assert verdicts(found)[:2] == ["undecided"] * 2
    assert all(not one.why for one in found.claims)


def test_seeds_that_differ_as_much_as_the_arms_do_decide_nothing():
    rng = np.random.default_rng(11)
    arms = {one: arm(one, *THEORY[one], spread=0.15, draw=np.random.default_rng(rng.integers(1000))) for one in THEORY}
    assert "undecided" in verdicts(conclude_world(World(), arms, CLAIMS["e8"], 0.05))


def test_equal_arms_are_rarely_told_apart():
    wrong = 0
    for number in range(40):
        rng = np.random.default_rng(number)
        arms = {one: arm(one, 0.8, 0.6, items=300, spread=0.02, draw=rng) for one in THEORY}
        claims = conclude_world(World(), arms, CLAIMS["e8"], 0.05).claims
        wrong += claims[0].verdict == "verified"
    assert wrong == 0


@pytest.mark.parametrize(("items", "seeds"), [(199, 3), (ITEMS, 2)])
def test_too_few_items_or_seeds_decide_nothing_whatever_they_show(items, seeds):
    found = world_of(THEORY, items=items, seeds=seeds)
    assert verdicts(found) == ["undecided"] * 3
    assert all("too few to judge by" in one.why for one in found.claims)
    assert found.claims[0].difference is not None


def test_a_task_that_was_not_learned_decides_nothing():
    found = world_of({**THEORY, NONE: (0.1, 0.5)}, guessed=0.06)
    assert verdicts(found) == ["undecided"] * 3 and "learned" in found.claims[0].why


def test_an_arm_that_never_answers_is_undecided_and_no_crash():
    found = world_of({**THEORY, FORWARD: (0.0, 0.5)})
    assert found.claims[0].verdict == "undecided" and "share" in found.claims[0].why
    assert found.claims[2].verdict == "falsified"


def test_noise_that_costs_nothing_is_said():
    assert any("little to win" in note for note in world_of({**THEORY, NONE: (0.8, 1.0)}).notes)
    assert not world_of(THEORY).notes


def test_adaptive_scales_are_judged_both_ways_and_their_strength_is_told():
    base = {NONE: (0.8, 0.5)}
    better = world_of({**base, UNIFORM: (0.8, 0.6), ADAPTIVE: (0.8, 0.8)}, "adaptive")
    worse = world_of({**base, UNIFORM: (0.8, 0.8), ADAPTIVE: (0.6, 0.6)}, "adaptive")
    assert verdicts(better) == ["verified"] * 2 and verdicts(worse) == ["falsified"] * 2
    assert "5.000%" in better.notes[-1]


def test_scales_that_do_not_have_the_same_mean_are_not_compared():
    """Less noise is easier to stand: who got less of it would seem to be better."""
    figures = {NONE: (0.8, 0.5), UNIFORM: (0.8, 0.6), ADAPTIVE: (0.8, 0.8)}
    arms = {name: arm(name, *figures[name]) for name in figures}
    weaker = tuple(replace(one, by_layer=((0, 0.04), (1, 0.05))) for one in arms[ADAPTIVE].trained)
    arms[ADAPTIVE] = replace(arms[ADAPTIVE], trained=weaker)
    found = conclude_world(World(), arms, CLAIMS["adaptive"], 0.05)
    assert verdicts(found) == ["undecided"] * 2 and "not the same: 4.500%" in found.claims[0].why


def test_less_is_better_for_a_likelihood():
    """A negative log-likelihood that doubles keeps half."""
    world = World(task=Task("texts", "nll"))
    draw = np.random.default_rng(0)
    base = draw.uniform(0.9, 1.1, (3, 400))
    made = {name: arm(name, 0.5, 0.5, items=400) for name in THEORY}
    noisy = {NONE: 2.0, BOTH: 1.6, FORWARD: 1.2, BACKWARD: 2.0}
    arms = {name: replace(one, values={0.0: base, 0.05: base * noisy[name]}) for name, one in made.items()}
    found = conclude_world(world, arms, CLAIMS["e8"], 0.0)
    assert found.arms[0].levels[1].kept.estimate == pytest.approx(0.5)
    assert found.claims[0].difference.estimate == pytest.approx(1 / 1.2 - 1 / 1.6)
    assert verdicts(found) == ["verified"] * 3


def test_a_score_of_a_likelihood_is_compared_as_a_share():
    world = World(task=Task("texts", "nll"))
    base = np.random.default_rng(0).uniform(0.9, 1.1, (3, 400))
    arms = {
        name: replace(arm(name, 0.5, 0.5, items=400), values={0.0: base * factor, 0.05: base * 2})
        for name, factor in {NONE: 1.0, BOTH: 1.0, FORWARD: 1.1, BACKWARD: 1.0}.items()
    }
    claim = conclude_world(world, arms, CLAIMS["e8"], 0.0).claims[2]
    assert claim.difference.estimate == pytest.approx(0.1 / 1.1) and claim.verdict == "falsified"


def test_the_claims_are_those_of_the_published_theory():
    limits = [(one.quantity, one.first, one.other, one.side, one.limit) for one in CLAIMS["e8"]]
    assert limits == [
        ("retention", FORWARD, BOTH, "above", 0.05),
        ("retention", BACKWARD, NONE, "below", 0.02),
        ("score", BOTH, FORWARD, "within", 0.01),
    ]


def test_what_was_found_is_read_back_and_said():
    seen = disturbed("before training", [Disturbance("forward", 0.05, 0.01, (0.1, 0.2, 0.3), (0.9, 0.8, 0.9))])
    found = Experiment("e8", "made up", Recipe(), seen, (world_of(THEORY),), 0.05, (((0, 0.5), (1, 1.5)),))
    assert decode(Experiment, encode(found)) == found
    assert isinstance(found.worlds[0], WorldResult)
    said = "\n".join(experiment_lines(found))
    assert "[verified] Forward-only training keeps more" in said and said.startswith("Pre-test")


def test_worlds_are_chosen_by_name():
    names = [world.name for world in worlds_of("e8", ("capacity", "task", "distribution", "schedule"))]
    assert names == ["main", "capacity", "task", "other-noise", "shared-seeds", "schedule"]
    with pytest.raises(BadInputError, match="capacity"):
        worlds_of("e8", ("capacitance",))
    with pytest.raises(BadInputError, match="leave --model out"):
        worlds_of("e8", ("task",), Task("given", "accuracy"))
    with pytest.raises(BadInputError, match="adaptive"):
        worlds_of("adaptiv")


def test_an_arm_without_noise_is_the_same_whatever_the_noise_would_have_been():
    main, other = World(), World("other", kind="rms_gaussian", shares_seeds=True)
    assert Arm(NONE, main, 0).origin == Arm(NONE, other, 0).origin != Arm(NONE, main, 1).origin
    assert Arm(BOTH, main, 0).origin != Arm(BOTH, other, 0).origin
    assert Arm(NONE, main, 0).origin != Arm(NONE, World(factor=2), 0).origin
