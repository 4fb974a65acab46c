"""Schedules against their formulas, worked out by hand."""

import math

import pytest

from noisescope.core.errors import BadInputError
from noisescope.inject.schedule import KINDS, PRESETS, Schedule, read_schedule


def scales(schedule, steps):
    return [schedule.scale(step, steps) for step in range(steps)]


def test_a_constant_schedule_is_the_same_at_every_step():
    assert scales(Schedule("constant", 0.05), 4) == [0.05] * 4


def test_linear_goes_from_the_start_to_the_end_in_equal_steps():
    assert scales(Schedule("linear", 0.05, 0.01), 5) == pytest.approx([0.05, 0.04, 0.03, 0.02, 0.01])


def test_exponential_loses_the_same_share_at_every_step():
    assert scales(Schedule("exponential", 0.08, 0.01), 4) == pytest.approx([0.08, 0.04, 0.02, 0.01])


def test_the_preset_decays_from_five_percent_to_a_tenth_of_one():
    course = scales(PRESETS["decay"], 3)
    assert course == pytest.approx([0.05, math.sqrt(0.05 * 0.001), 0.001])


def test_stages_hold_their_scale():
    course = scales(Schedule("exponential", 0.1, 0.001, stages=3), 9)
    assert course == pytest.approx([0.1] * 3 + [0.01] * 3 + [0.001] * 3)


def test_the_formula_of_the_paper_with_ten_stages():
    course = scales(PRESETS["qerl"], 20)
    expected = [5e-2 * (5e-4 / 5e-2) ** ((k - 1) / 9) for k in range(1, 11)]
    assert course == pytest.approx([s for s in expected for _ in range(2)])


def test_the_released_code_has_a_silent_stage_and_nine_others():
    course = scales(PRESETS["qerl_code"], 10)
    assert course == pytest.approx([0.0, *(5e-2 * (5e-4 / 5e-2) ** (i / 8) for i in range(9))])


@pytest.mark.parametrize("stages", [1, 2])
def test_one_or_two_stages_have_their_scales(stages):
    course = scales(Schedule("exponential", 0.1, 0.01, stages=stages), 4)
    assert course == pytest.approx([0.1] * 4 if stages == 1 else [0.1, 0.1, 0.01, 0.01])


def test_a_step_schedule_holds_each_scale_for_an_equal_part():
    assert scales(read_schedule("step:0.05:0.01:0.001"), 6) == [0.05, 0.05, 0.01, 0.01, 0.001, 0.001]


def test_warmup_rises_to_the_schedule_and_then_follows_it():
    assert scales(read_schedule("warmup:0.1:warmup=0.4"), 5) == pytest.approx([0.05, 0.1, 0.1, 0.1, 0.1])
    course = scales(read_schedule("linear:0.1:0.05:warmup=0.5"), 6)
    assert course == pytest.approx([0.1 / 3, 0.09 * 2 / 3, 0.08, 0.07, 0.06, 0.05])


def test_a_step_outside_the_run_has_the_scale_of_its_end():
    decay = PRESETS["decay"]
    assert decay.scale(-3, 10) == decay.scale(0, 10) and decay.scale(99, 10) == decay.scale(9, 10)


def test_one_step_alone_has_the_scale_of_the_start():
    assert PRESETS["decay"].scale(0, 1) == 0.05


def test_more_stages_than_steps_still_begin_at_the_start_and_only_fall():
    course = scales(Schedule("exponential", 0.1, 0.001, stages=10), 4)
    assert course[0] == 0.1 and course == sorted(course, reverse=True)


@pytest.mark.parametrize(
    "text",
    ["0.05", "constant:0.05", "exponential:0.05:0.001:stages=10", "step:0.1:0.01", "linear:0.1:0:warmup=0.2", "decay"],
)
def test_what_is_written_is_read_back(text):
    read = read_schedule(text)
    assert read_schedule(str(read)) == read


def test_strength_times_a_factor_keeps_the_course():
    half = [scale / 2 for scale in scales(PRESETS["decay"], 7)]
    assert scales(PRESETS["decay"].times(0.5), 7) == pytest.approx(half)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gentle", "expected a scale such as 0.05"),
        ("expnential:0.1:0.01", "Did you mean 'exponential'"),
        ("exponential:0.1", "the scale at the start and that at the end"),
        ("exponential:0.1:0", "never reaches 0"),
        ("constant:0.1:0.2", "takes one scale"),
        ("constant:0.1:stage=3", "Did you mean 'stages'"),
        ("constant:-0.1", "at least 0|>= 0"),
        ("constant:0.1:warmup=1", "below 1"),
        ("linear:0.1:0.2:stages=2:silent=3", "no more silent"),
        ("step", "expected a scale such as"),
        ("constant:0.1:stages=many", "expected a scale such as"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(text, said):
    with pytest.raises(BadInputError, match=said):
        read_schedule(text)


def test_a_run_of_unknown_length_is_refused():
    with pytest.raises(BadInputError, match="length of the run"):
        PRESETS["decay"].scale(0, 0)


def test_every_kind_is_tested_here():
    assert set(KINDS) == {"constant", "linear", "exponential", "step"}
