"""The names of figures on and beside their limits, and the search for the threshold against known responses."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from noisescope.core.errors import BadInputError
from noisescope.measure import indices
from noisescope.measure.indices import CriticalThreshold, critical_threshold, next_scale


@pytest.mark.parametrize(
    ("bands", "values", "names"),
    [
        (indices.TOLERANCE, (20.1, 20, 10, 9.9, 5, 4.9), ("excellent", "good", "good", "fair", "fair", "poor")),
        (indices.SNR, (40.1, 40, 30, 20, 19.9), ("excellent", "good", "good", "fair", "poor")),
        (indices.BRITTLENESS, (0.11, 0.10, 0.05, 0.02, 0.019), ("low", "moderate", "moderate", "high", "critical")),
        (indices.MAE, (9e-5, 1e-4, 1e-3, 1e-2, 2e-2), ("excellent", "good", "good", "fair", "poor")),
        (indices.MAPE, (0.009, 0.01, 0.05, 0.1, 0.2), ("excellent", "good", "good", "fair", "poor")),
        (indices.PEARSON, (0.995, 0.99, 0.95, 0.9, 0.8), ("excellent", "good", "good", "fair", "poor")),
    ],
    ids=["tolerance", "snr", "brittleness", "mae", "mape", "pearson"],
)
def test_grades(bands: indices.Bands, values: tuple[float, ...], names: tuple[str, ...]) -> None:
    assert tuple(bands.grade(value) for value in values) == names
    assert bands.grade(math.nan) == bands.grade(None) == "undefined"


def test_the_worst_grade_passes_over_what_is_undefined() -> None:
    assert indices.MAE.worst(["good", "undefined", "fair", "excellent"]) == "fair"
    assert indices.MAE.worst(["undefined"]) == "undefined"
    assert indices.divergence_verdict(1e-5, 0.03, math.nan) == "good"
    assert indices.divergence_verdict(0.0, 0.0, 1.0, mismatches=1) == "poor"


def test_relative_degradation() -> None:
    assert indices.relative_degradation(0.8, 0.6) == pytest.approx(0.25)
    assert indices.relative_degradation(0.8, 1.0) == pytest.approx(-0.25)
    assert indices.relative_degradation(10.0, 12.0, higher_is_better=False) == pytest.approx(0.2)
    assert indices.relative_degradation(-2.0, -3.0) == pytest.approx(0.5)
    for clean in (0.0, math.nan):
        with pytest.raises(BadInputError, match="nll"):
            indices.relative_degradation(clean, 0.5)


def test_noise_tolerance_index() -> None:
    assert indices.noise_tolerance_index(0.04) == pytest.approx(25)
    assert indices.noise_tolerance_index(0.0) == indices.noise_tolerance_index(-0.1) == math.inf
    assert math.isnan(indices.noise_tolerance_index(math.nan))


def test_snr() -> None:
    assert indices.snr_db(100.0, 1.0) == pytest.approx(20)
    assert indices.snr_db(1.0, 0.0) == math.inf
    assert indices.snr_db(0.0, 1.0) == -math.inf
    assert math.isnan(indices.snr_db(0.0, 0.0))


@pytest.mark.parametrize(
    ("ratio", "name"),
    [(1.0, "stable"), (0.9, "stable"), (1.11, "moderate"), (0.7, "moderate"), (1.5, "concerning"), (0.49, "critical"),
     (2.0, "critical"), (math.inf, "critical"), (math.nan, "undefined")],
)  # fmt: skip
def test_gradient_grades(ratio: float, name: str) -> None:
    assert indices.gradient_grade(ratio) == name


def test_gradient_norm_ratio() -> None:
    assert indices.gradient_norm_ratio(3.0, 2.0) == 1.5
    with pytest.raises(BadInputError, match="requires_grad"):
        indices.gradient_norm_ratio(1.0, 0.0)


def test_cumulative_curve() -> None:
    curve = indices.cumulative_curve({"a": 1.0, "b": 0.0, "c": 3.0})
    assert [(p.layer, p.value, p.total, p.share) for p in curve] == [
        ("a", 1.0, 1.0, 0.25),
        ("b", 0.0, 1.0, 0.25),
        ("c", 3.0, 4.0, 1.0),
    ]
    assert indices.cumulative_curve({}) == ()
    assert indices.cumulative_curve({0: 0.0})[0].share == 0.0


def counted(response: Callable[[float], float]) -> tuple[Callable[[float], float], list[float]]:
    asked: list[float] = []

    def measure(scale: float) -> float:
        asked.append(scale)
        return response(scale)

    return measure, asked


@pytest.mark.parametrize("true", [0.0004, 0.0123, 0.05, 0.0999, 0.137, 0.19951])
def test_the_threshold_is_found_within_the_tolerance(true: float) -> None:
    measure, asked = counted(lambda scale: 0.1 * (scale / true) ** 2)
    found = critical_threshold(measure)
    assert found.scale is not None
    assert found.low < true <= found.scale <= found.low + 0.001 + 1e-12
    assert found.monotone
    # The top, then eight halvings of 0.2 down to 0.00078.
    assert len(asked) == len(set(asked)) == 9


def test_what_is_known_is_not_measured_again() -> None:
    measure, asked = counted(lambda scale: 2 * scale)
    found = critical_threshold(measure, {0.05: 0.1, 0.048: 0.096, 0.5: 0.9, 0.0: 0.0})
    assert found.scale is not None
    assert 0.049 <= found.scale <= 0.05
    assert asked == [0.049]
    assert critical_threshold(measure, {0.05: 0.1, 0.049: 0.098}) == CriticalThreshold(0.05, 0.049)
    assert len(asked) == 1


def test_the_next_scale_is_a_function_of_what_is_known() -> None:
    assert next_scale({}) == 0.2
    assert next_scale({0.2: 0.5}) == 0.1
    assert next_scale({0.2: 0.5, 0.1: 0.02}) == pytest.approx(0.15)
    assert next_scale({0.1: 0.02, 0.2: 0.5}) == pytest.approx(0.15)
    assert next_scale({0.5: 0.9}) == 0.2
    assert next_scale({0.05: 0.09}, cost=0.05, tolerance=0.05) == CriticalThreshold(0.05, 0.0)


def test_a_model_that_no_scale_breaks() -> None:
    found = critical_threshold(lambda scale: 0.01)
    assert found == CriticalThreshold(None, 0.2)
    assert found.brittleness == "low"


def test_noisy_measurements_still_end_and_say_so() -> None:
    # A dip at the top: 10 % is lost at 0.1 and less than that at 0.15.
    response = {0.2: 0.3, 0.1: 0.12, 0.15: 0.08}
    found = critical_threshold(lambda scale: 0.0, response)
    assert found.scale == 0.1
    assert not found.monotone


def test_a_degradation_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"at scale 0\.1 is NaN"):
        next_scale({0.1: math.nan})


def test_brittleness_of_thresholds() -> None:
    scales = (0.15, 0.1, 0.03, 0.01)
    names = ["low", "moderate", "high", "critical"]
    assert [CriticalThreshold(scale, scale - 0.001).brittleness for scale in scales] == names
