"""The exact choice equals brute force, whatever the scale of the harms."""

from __future__ import annotations

import itertools
import os
import random
from typing import Any

import pytest

from noisescope.core.errors import BadInputError
from noisescope.core.precision import Group, Linear, Option
from noisescope.prescribe import allocation
from noisescope.prescribe.allocation import by_thresholds, exact, greedy, shortfall, spread

Tables = list[tuple[Option, ...]]


def tables(seed: int, groups: int = 7, unit: float = 1.0, names: tuple[str, ...] = ("int4", "int8", "bf16")) -> Tables:
    """Random options; now and then more bits do more harm, as happens."""
    draw = random.Random(seed)
    found = []
    for _ in range(groups):
        weights = draw.choice([96, 576, 1000, 4096])
        harm = 10 ** draw.uniform(-4, 0)
        found.append(
            tuple(
                Option(name, round(weights * bits), unit * harm * draw.uniform(0.5, 1.5) * 4.0**-i)
                for i, (name, bits) in enumerate(zip(names, (4.5, 8.1, 16.0), strict=False))
            )
        )
    return found


def harm(found: Tables, chosen: list[int]) -> float:
    return sum(table[i].harm for table, i in zip(found, chosen, strict=True))


def bits(found: Tables, chosen: list[int]) -> int:
    return sum(table[i].bits for table, i in zip(found, chosen, strict=True))


def best(found: Tables, budget: int) -> float:
    return min(
        harm(found, list(chosen))
        for chosen in itertools.product(*(range(len(table)) for table in found))
        if bits(found, list(chosen)) <= budget
    )


@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_best_there_is_and_within_the_budget(seed: int, unit: float) -> None:
    found = tables(seed, unit=unit)
    least, most = (bits(found, [at] * len(found)) for at in (0, 2))
    for share in (0.0, 0.1, 0.35, 0.8, 1.0):
        budget = int(least + share * (most - least))
        chosen = exact(found, budget)
        assert bits(found, chosen) <= budget
        assert harm(found, chosen) == pytest.approx(best(found, budget), rel=1e-9)


def test_harms_of_very_different_sizes_are_all_seen() -> None:
    """One huge harm among tiny ones: a solver's tolerance must not swallow the tiny ones."""
    found = [*tables(3, unit=1e-9), (Option("int4", 400, 50.0), Option("int8", 800, 1e-11))]
    for budget in range(bits(found, [0] * 8) + 400, bits(found, [1] * 8), 3001):
        assert harm(found, exact(found, budget)) == pytest.approx(best(found, budget), rel=1e-9)


def test_what_the_solver_says_below_python_is_no_result(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    solve = allocation.milp

    def talking(*given: Any, **more: Any) -> Any:
        os.write(1, b"HighsMipSolverData\n")
        return solve(*given, **more)

    monkeypatch.setattr(allocation, "milp", talking)
    found = tables(0)
    assert exact(found, sum(table[1].bits for table in found))
    os.write(1, b"and after\n")
    assert capfd.readouterr().out == "and after\n"


def test_greedy_can_be_beaten() -> None:
    # The best rate uses room that two others would have used better together.
    found = [(Option("int4", 1, 10.0), Option("int8", 4, 0.0)), *[(Option("int4", 1, 6.0), Option("int8", 3, 0.0))] * 2]
    assert harm(found, greedy(found, 7)) == 12.0 and harm(found, exact(found, 7)) == 10.0
    for made in (tables(seed, 9) for seed in range(20)):
        budget = int(1.4 * bits(made, [0] * 9))
        assert harm(made, exact(made, budget)) <= harm(made, greedy(made, budget))


def test_a_large_instance_is_solved_and_no_room_is_left_that_could_be_used() -> None:
    found = tables(5, groups=448, unit=1e-8)
    budget = int(0.3 * bits(found, [2] * 448))
    if budget < bits(found, [0] * 448):
        budget = int(1.2 * bits(found, [0] * 448))
    chosen = exact(found, budget)
    assert harm(found, chosen) <= harm(found, greedy(found, budget))
    assert 0.999 * budget < bits(found, chosen) <= budget
    assert shortfall(found, chosen, budget) == ""


def test_what_is_left_over_is_explained() -> None:
    found = [(Option("int4", 400, 1.0), Option("int8", 800, 0.1))]
    assert "takes 400" in shortfall(found, exact(found, 700), 700)
    assert "no larger format lowers" in shortfall(found, exact(found, 2000), 2000)
    assert "the rule does not use" in shortfall(found, [0], 2000)


@pytest.mark.parametrize("harm_", [float("nan"), float("inf"), -1.0])
def test_a_harm_that_is_none_is_refused(harm_: float) -> None:
    with pytest.raises(BadInputError, match="expected a finite harm"):
        exact([(Option("int4", 4, harm_),)], 10)


def test_a_budget_below_the_smallest_formats_is_refused_with_both_sizes() -> None:
    with pytest.raises(BadInputError, match="39 bits: the smallest formats take 40"):
        exact([(Option("int4", 40, 1.0), Option("int8", 80, 0.0))], 39)


def test_spread_mixes_two_neighbours_evenly_and_ignores_harm() -> None:
    one = (Option("int4", 450, 9.0), Option("int8", 810, 1.0), Option("bf16", 1600, 0.0))
    found = [one] * 12
    # Room for 6 of 12 to go from 450 to 810.
    chosen = spread(found, 6 * 450 + 6 * 810)
    assert sum(chosen) == 6 and max(chosen) == 1
    assert all(sum(chosen[at : at + 4]) == 2 for at in range(0, 12, 4))
    assert spread(found, 12 * 450) == [0] * 12 and spread(found, 12 * 5000) == [2] * 12


def group(layer: int) -> Group:
    return Group(f"l{layer}", layer, (Linear(f"l{layer}", 10, 10),))


def test_thresholds_are_those_of_the_table_and_layers_move_to_the_budget() -> None:
    groups = [group(layer) for layer in (0, 0, 1, 2, 3)]
    one = (Option("int4", 450, 3.0), Option("int8", 810, 2.0), Option("bf16", 1600, 0.0))
    found, losses = [one] * 5, {0: 0.30, 1: 0.10, 2: 0.02, 3: 0.01}
    # 16 bits for the layer above 15 %, 8 for the one above 5 %, 4 for the others: two groups are in layer 0.
    fitting = 2 * 1600 + 810 + 2 * 450
    assert by_thresholds(groups, found, fitting, losses) == [2, 2, 1, 0, 0]
    # Room for one more step goes to the layer that loses most of those that can still rise by it.
    assert by_thresholds(groups, found, fitting + 360, losses) == [2, 2, 1, 1, 0]
    # Too little: the only layer at 16 goes down to 8; of the 1579 bits that frees, layer 1 takes 790 to get to 16,
    # layers 2 and 3 take 360 each to get to 8, and 69 are left.
    assert by_thresholds(groups, found, fitting - 1, losses) == [1, 1, 2, 1, 1]
    # All losses are small, and there is room: nobody gets 16 bits while another one could get 8.
    less = {layer: loss / 20 for layer, loss in losses.items()}
    assert by_thresholds(groups, found, 4 * 810 + 450, less) == [1, 1, 1, 1, 0]
    # Nothing to spare: from the top down, those that lose least first.
    assert by_thresholds(groups, found, 5 * 450, losses) == [0] * 5
