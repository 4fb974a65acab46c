"""Where the quadratic law ends: planted departures, what chance alone may say, and what is told of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from noisescope.core.errors import BadInputError
from noisescope.measure.validity import conclude_validity, judge_validity

SCALES = np.array([0.02, 0.05, 0.1])


def responses(exponent: float = 2.0, samples: int = 40, spread: float = 0.02, seed: int = 0) -> np.ndarray:
    """Hard samples respond more at all scales, and each response has some luck of its own."""
    draw = np.random.default_rng(seed)
    hardness = draw.lognormal(0.0, 1.0, samples)
    return hardness * SCALES[:, None] ** exponent * draw.lognormal(-(spread**2) / 2, spread, (3, samples))


def test_a_law_that_is_kept_is_known_to_be_kept_up_to_the_largest_scale() -> None:
    found = judge_validity("silu", SCALES, responses())
    assert (found.holds_to, found.left_at, found.is_decided) == (0.1, None, True)
    assert [d.estimate for d in found.departures] == pytest.approx([1.0, 1.0, 1.0], abs=0.05)
    assert "within 20% of the quadratic law up to 0.1" in found.statement


@pytest.mark.parametrize(("exponent", "over"), [(1.7, 5**-0.3), (2.3, 5**0.3)])
def test_a_law_that_is_left_is_left_where_a_straight_line_crosses_the_tolerance(exponent: float, over: float) -> None:
    """s^p over s^2 is (s / 0.02)^(p - 2), and that is 0.8 or 1.2 at a scale that can be worked out."""
    found = judge_validity("softmax", SCALES, responses(exponent))
    edge = 0.8 if exponent < 2.0 else 1.2
    assert found.left_at == pytest.approx(0.02 * edge ** (1.0 / (exponent - 2.0)), rel=0.05)
    assert found.departures[-1].estimate == pytest.approx(over, rel=0.05)
    assert found.holds_to < found.left_at
    assert f"{found.departures[-1].estimate:.2f} times the quadratic law at 0.1" in found.statement


def test_what_a_few_loud_samples_leave_open_stays_open() -> None:
    found = judge_validity("linear", SCALES, responses(samples=6, spread=0.3))
    assert not found.is_decided and found.left_at is None
    assert "only up to" in found.statement


def test_the_law_is_seldom_said_to_be_left_where_it_holds() -> None:
    """On the very edge of the tolerance, where being outside is said by chance in 2.5 % at most."""
    exponent = 2.0 + math.log(1.2) / math.log(5.0)
    runs = [judge_validity("x", SCALES, responses(exponent, spread=0.3, seed=seed)) for seed in range(400)]
    said = np.mean([run.departures[-1].low > 1.2 for run in runs])
    assert said <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 400)


def test_the_conclusion_warns_where_the_scale_that_is_asked_about_is_beyond_the_law() -> None:
    kept, left = judge_validity("silu", SCALES, responses()), judge_validity("softmax", SCALES, responses(1.7))
    found = conclude_validity([kept, left], 0.05)
    assert found.severity == "warning" and found.decided
    assert "left by 1 of 2 groups: softmax: harm grows as scale^1." in found.statement
    assert dict(found.figures)["left at softmax"] == left.left_at
    assert conclude_validity([kept, left], 0.03).severity == "note"
    assert conclude_validity([kept, left]).severity == "warning"
    quiet = conclude_validity([kept, kept])
    assert (quiet.severity, quiet.decided) == ("note", True)
    assert "kept by all 2 groups measured, within 20% up to scale 0.1" in quiet.statement


def test_a_group_that_is_undecided_makes_the_conclusion_so() -> None:
    vague = judge_validity("linear", SCALES, responses(samples=6, spread=0.3))
    found = conclude_validity([vague])
    assert not found.decided and "undecided in 1 group: linear" in found.statement
    both = conclude_validity([vague, judge_validity("softmax", SCALES, responses(1.7))])
    assert not both.decided and "left by 1 of 2 groups; 1 undecided" in both.statement


def test_bad_input_is_named() -> None:
    with pytest.raises(BadInputError, match="at least one group"):
        conclude_validity([])
    with pytest.raises(BadInputError, match=r"expected \[scales, samples\]"):
        judge_validity("x", SCALES, SCALES**2)
