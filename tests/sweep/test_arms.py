"""Trained arms: each kept whole or not at all, trained once, and tested with noise that it never met."""

from dataclasses import replace

import pytest

from noisescope.core.errors import BadInputError
from noisescope.core.experiment import BOTH, FORWARD, NONE, Arm, Recipe, Task, World
from noisescope.core.records import Injection, Trial, noise
from noisescope.sweep import arms
from noisescope.sweep.arms import (
    GIVEN,
    NOTE,
    ArmBenchMaker,
    Case,
    Laboratory,
    check_apart,
    note_of,
    plan_of,
    seeds_of_test,
    trained_arm,
)
from noisescope.sweep.executors.serial import Serial

RECIPE = Recipe(width=16, layers=2, largest=12, steps=3, rows=4, examples=60, items=12, between=6, draws=2)
LAB = Laboratory(RECIPE)
SHARED = World("shared", shares_seeds=True)


def test_an_arm_is_trained_once_and_its_note_read_back(tmp_path, monkeypatch):
    arm = Arm(FORWARD, World(), 1)
    folder = trained_arm(LAB, arm, tmp_path)
    assert note_of(folder).forward == 3 * 28 and note_of(folder).backward == 0
    monkeypatch.setattr(arms, "train", lambda *_: pytest.fail("trained again"))
    assert trained_arm(LAB, arm, tmp_path) == folder
    assert [one.name for one in folder.parent.iterdir()] == [folder.name]


def test_a_training_that_ends_early_leaves_no_arm(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    arm = Arm(NONE, World(), 0)
    with monkeypatch.context() as patched:
        patched.setattr(arms, "encode", die)
        with pytest.raises(Killed):
            trained_arm(LAB, arm, tmp_path)
    assert not list((tmp_path / "arms").iterdir())
    assert (trained_arm(LAB, arm, tmp_path) / NOTE).is_file()


def test_two_that_train_one_arm_at_a_time_leave_one(tmp_path, monkeypatch):
    """As when a worker of a killed run is still at it."""
    arm, true = Arm(NONE, World(), 0), arms.train

    def slower(*given):
        monkeypatch.setattr(arms, "train", true)
        trained_arm(LAB, arm, tmp_path)
        return true(*given)

    monkeypatch.setattr(arms, "train", slower)
    folder = trained_arm(LAB, arm, tmp_path)
    assert [one.name for one in folder.parent.iterdir()] == [folder.name] and note_of(folder).losses


def test_equal_arms_are_equal_models_and_others_have_folders_of_their_own(tmp_path):
    marks = {LAB.mark(Arm(name, World(), seed)) for name in (NONE, BOTH, FORWARD) for seed in (0, 1)}
    assert len(marks) == 6
    assert LAB.mark(Arm(NONE, World(), 0)) != Laboratory(replace(RECIPE, steps=4)).mark(Arm(NONE, World(), 0))
    one, two = (trained_arm(LAB, Arm(BOTH, World(), 0), tmp_path / name) for name in "ab")
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


def test_noise_of_the_test_is_none_of_training_s():
    for name in (NONE, BOTH, FORWARD):
        arm = Arm(name, World(), 2)
        seeds, plan = seeds_of_test(arm, RECIPE), plan_of(arm)
        assert len(set(seeds)) == RECIPE.draws
        if plan is not None:
            assert not {plan.injection(0.05, step).seed for step in range(RECIPE.steps)} & set(seeds)


def test_shared_noise_is_found_where_it_is_planted():
    plan = plan_of(Arm(BOTH, World(), 0))
    planted = plan.injection(0.05, 2).seed
    check_apart(plan, 2, (planted,))
    with pytest.raises(BadInputError, match="in training and in the test"):
        check_apart(plan, 3, (7, planted))


def test_a_world_that_shares_its_noise_has_that_of_training_in_the_test():
    arm = Arm(FORWARD, SHARED, 1)
    assert seeds_of_test(arm, RECIPE) == (plan_of(arm).injection(0.05, 0).seed,)
    assert plan_of(arm).injection(0.05, 0).seed == plan_of(arm).injection(0.05, 9).seed
    assert seeds_of_test(Arm(NONE, SHARED, 1), RECIPE) == seeds_of_test(Arm(BOTH, SHARED, 1), RECIPE)


def test_the_schedule_of_a_world_multiplies_the_scale_of_the_arm():
    decaying = plan_of(Arm(BOTH, World("s", schedule="exponential:1:0.02"), 0)).schedule
    assert (decaying.scale(0, 100), decaying.scale(99, 100)) == pytest.approx((0.05, 0.001))
    assert plan_of(Arm(BOTH, World(), 0)).schedule.scale(99, 100) == 0.05
    assert plan_of(Arm(NONE, World(), 0)) is None


def test_noise_that_never_lands_in_the_test_is_an_error_of_the_trial(tmp_path):
    arm = Arm(NONE, World(), 0)
    items = LAB.split(Task()).test
    case = Case(str(trained_arm(LAB, arm, tmp_path)), "w", items, "accuracy")
    never = Trial((Injection(noise(scale=0.05), operators=("gelu",)),), "w", "accuracy", 0, len(items))
    silent = Trial((Injection(noise(scale=1e-12)),), "w", "accuracy", 0, len(items))
    sound = Trial((Injection(noise(scale=0.05)),), "w", "accuracy", 0, len(items))
    one, two, three = Serial(ArmBenchMaker(LAB, (case,)), threads=1).run([never, silent, sound])
    assert "NeverFired" in one.error and "NoEffect" in two.error
    assert three.error is None and len(three.values) == 12


def test_given_items_need_a_file():
    with pytest.raises(BadInputError, match="--data"):
        LAB.split(Task(GIVEN, "accuracy"))


def test_a_damaged_note_is_named(tmp_path):
    folder = trained_arm(LAB, Arm(NONE, World(), 0), tmp_path)
    (folder / NOTE).write_text("{")
    with pytest.raises(BadInputError, match=NOTE):
        note_of(folder)
