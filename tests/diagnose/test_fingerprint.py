"""Patterns made by hand: the place must be the one whose fingerprint they were made from."""

import numpy as np
import pytest

from noisescope.core.records import Site
from noisescope.diagnose.fingerprint import Seen, conclude_fingerprint, likeness, pattern, presence, rise
from noisescope.diagnose.localization import Opinion

PLACES = [Site(None, "module", "embed"), *(Site(i, "layer", f"layers.{i}") for i in range(4))]
GROUPS = np.repeat([0.0, 1.0, 2.0], 4)
PRINTS = np.stack([np.repeat(np.arange(6) > i, 12).reshape(6, 12).astype(float) for i in range(5)])
AGREES = Opinion(2, "linear", "layers.2.up", "It is off.")


def concluded(suspect, **seen):
    whole = {"leaves_band": True, "identical": False, "alike": True, "opinion": AGREES, **seen}
    return conclude_fingerprint(suspect, PRINTS, PLACES, GROUPS, Seen(**whole))


def test_a_pattern_is_decades_above_what_is_healthy_behind_an_input_that_never_differs():
    found = pattern(np.array([[0.0, 0.1], [1.0, 0.1]]), np.array([1.0, 0.1]))
    # half the decades of 1 + 0.1 ** 2, 1 + 10 ** 2 and 1 + 1
    assert found == pytest.approx(0.5 * np.log10(np.array([[1, 1], [1, 1.01], [101, 2]])))


def test_a_token_counts_what_was_off_before_it_in_its_own_prompt_alone():
    found = pattern(np.array([[1.0, 0.0, 0.0]]), np.array([1.0]), np.array([0.0, 0.0, 1.0]))
    assert found[1] == pytest.approx(0.5 * np.log10(np.array([2.0, 1.5, 1.0])))


def test_where_two_systems_compute_alike_any_difference_counts_and_none_more_than_another():
    found = presence(np.array([[0.0, 1e-9], [1.0, 1e-9]]), 0.0)
    assert found == pytest.approx(np.array([[0, 0], [0, 1], [1, 1]]))


def test_likeness_is_the_correlation_along_the_borders():
    suspect = np.array([[0.0], [0.0], [2.0]])
    prints = np.array([[[0.0], [0.0], [1.0]], [[0.0], [1.0], [1.0]], [[0.0], [0.0], [0.0]]])
    assert likeness(suspect, prints) == pytest.approx([1.0, 0.5, 0.0])


def test_the_place_whose_fingerprint_it_is_comes_first_with_its_margin():
    result = concluded(3.0 * PRINTS[3])
    assert (result.verdict, result.suspects[0].layer, result.confidence) == ("fault", 2, 1.0)
    # two steps of six, of lengths 2 and 3 or 1, correlate by 1 / sqrt(2) and 1 / sqrt(2.5)
    assert result.margin == pytest.approx(1 - np.sqrt(1 / 2))
    assert "agrees" in " ".join(result.notes)


def test_a_second_opinion_that_differs_is_shown():
    result = concluded(PRINTS[4])
    assert result.suspects[0].layer == 3
    assert "DISAGREES. It is off." in " ".join(result.notes)


def test_prompts_that_do_not_agree_leave_it_undecided_and_say_what_would_decide():
    mixed = PRINTS[1].copy()
    mixed[:, :4], mixed[:, 4:8] = PRINTS[4][:, :4], PRINTS[3][:, :4]
    result = concluded(mixed, opinion=None)
    assert result.verdict == "undecided"
    assert result.confidence < 0.95
    assert "more prompts" in result.would_decide


def test_the_same_to_the_last_bit_and_within_the_band_is_no_fault():
    assert concluded(PRINTS[1], identical=True).verdict == "no fault found"
    assert concluded(PRINTS[1], leaves_band=False, alike=False).verdict == "no fault found"
    within = concluded(PRINTS[1], leaves_band=False)
    assert (within.verdict, within.suspects[0].layer) == ("undecided", 0)
    assert "rounding" in within.would_decide


def test_a_rise_is_what_a_border_adds_beyond_what_rounding_adds_there():
    usual = np.array([[1.0, 2.0], [3.0, 6.0], [9.0, 6.0]])
    # Four times as much from the second border on, whatever rounding does from border to border.
    found = rise(usual * np.array([[1.0], [4.0], [4.0]]), usual)
    assert found == pytest.approx(np.log(np.array([[1.0, 1.0], [4.0, 4.0], [1.0, 1.0]])))


def test_entries_in_which_nothing_differs_neither_rise_nor_fall_beyond_bounds():
    usual = np.ones((2, 3))
    assert np.abs(rise(np.zeros((2, 3)), usual)).max() == pytest.approx(np.log(10))
    assert np.isfinite(rise(np.ones((2, 3)), np.zeros((2, 3)))).all()
    assert rise(np.zeros((2, 3)), np.zeros((2, 3))) == pytest.approx(0.0)


RISES = np.stack([np.eye(5)[i][:, None] * np.ones(12) for i in range(5)])


@pytest.mark.parametrize(("rising", "verdict"), [(0.1, "fault"), (0.3, "no fault found")])
def test_a_rise_counts_where_it_is_clear_of_those_of_healthy_systems(rising, verdict):
    noise = 0.05 * np.random.default_rng(0).standard_normal((5, 12))
    seen = Seen(leaves_band=False, identical=False, alike=False, opinion=None, rising=rising)
    result = conclude_fingerprint(0.5 * RISES[3] + noise, RISES, PLACES, GROUPS, seen)
    assert result.verdict == verdict
    assert [s.layer for s in result.suspects[:1]] == ([2] if verdict == "fault" else [])


def test_outside_the_band_without_a_clear_rise_it_is_undecided():
    seen = Seen(leaves_band=True, identical=False, alike=False, opinion=None, rising=0.4)
    result = conclude_fingerprint(0.5 * RISES[3], RISES, PLACES, GROUPS, seen)
    assert result.verdict == "undecided"
    assert "no more than rounding" in result.would_decide
