"""Slices, seeds and cost of trials, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from diagnose.synthetic import setting
from noisescope.core.errors import BadInputError
from noisescope.diagnose.setting import Unit, control_trial, cost_of, slice_trial


def test_slices_cover_all_samples_once_and_a_short_rest_joins_the_last() -> None:
    assert setting(samples=100).spans == ((0, 25), (25, 50), (50, 75), (75, 100))
    assert setting(samples=110).spans[-1] == (75, 110)
    assert setting(samples=115).spans[-2:] == ((75, 100), (100, 115))
    assert setting(samples=7).spans == ((0, 7),)


def test_the_first_round_meets_every_seed_and_all_rounds_every_seed_on_every_slice() -> None:
    asked = setting(samples=100, seeds=(5, 6, 7))
    first = {asked.seed(0, chunk) for chunk in range(4)}
    assert first == {5, 6, 7}
    for chunk in range(4):
        assert {asked.seed(round_, chunk) for round_ in range(3)} == {5, 6, 7}


def test_cost_is_the_share_of_samples_times_the_share_of_layers_from_the_first_perturbed_one() -> None:
    asked = setting(samples=100, layers=30)
    assert cost_of(Unit(layers=(27, 28, 29)).trial(asked, 0), asked) == pytest.approx(0.25 * 3 / 30)
    assert cost_of(Unit(operators=("silu",)).trial(asked, 0), asked) == 0.25
    assert cost_of(slice_trial(asked, 3), asked) == cost_of(control_trial(asked, 3), asked) == 0.25


def test_one_round_of_all_windows_of_thirty_layers_costs_just_over_half_of_running_them_whole() -> None:
    asked = setting(layers=30)
    units = [Unit(layers=(start, start + 1, start + 2)) for start in range(28)]
    # (30 + 29 + ... + 3) / 30 = 462 / 30.
    assert math.fsum(unit.cost(asked) for unit in units) == pytest.approx(15.4)
    by_trial = sum(cost_of(unit.trial(asked, c), asked) for unit in units for c in range(len(asked.spans)))
    assert by_trial == pytest.approx(15.4)
    assert 15.4 / 28 <= 0.55


def test_the_control_is_silent_and_everywhere() -> None:
    (injection,) = control_trial(setting(kind="int8", scale=1.0), 0).injections
    assert injection.corruption.strength == 0.0 and injection.layers is None and injection.operators is None


def test_attention_is_left_to_the_operators_that_it_is_made_of() -> None:
    assert setting(operators=("softmax", "attention", "linear")).operators == ("linear", "softmax")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"samples": 1}, "samples 1"),
        ({"chunk": 1}, "chunk 1"),
        ({"scale": 0.0}, "noise scale 0"),
        ({"seeds": ()}, "seeds"),
        ({"seeds": (1, 1)}, "seeds"),
        ({"confidence": 95.0}, "confidence 95.0"),
        ({"budget": 0.0}, "budget 0"),
        ({"metric": "bleu"}, "unknown metric"),
        ({"shape": "text"}, "accuracy fits question and choice items"),
        ({"kind": "pink"}, "unknown noise kind"),
        ({"operators": ("conv",)}, "unknown operator"),
    ],
)
def test_a_setting_that_cannot_be_worked_with_is_refused_by_name(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        setting(**wrong)
