"""Power laws against exact data, numpy's and scipy's fits, and the coverage of the exponent."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats

from noisescope.core.errors import BadInputError
from noisescope.measure.power_law import fit_power_law

SCALES = np.array([0.0125, 0.025, 0.05, 0.1])


def test_an_exact_law_is_found_exactly() -> None:
    fit = fit_power_law(SCALES, 3.0 * SCALES**2)
    assert (fit.factor, fit.exponent.estimate, fit.quadratic_factor) == pytest.approx((3.0, 2.0, 3.0))
    assert (fit.residual, fit.quadratic_residual) == pytest.approx((0.0, 0.0), abs=1e-9)
    assert fit.left_at is None
    assert fit_power_law(SCALES, 0.4 * SCALES**1.3).exponent.estimate == pytest.approx(1.3)


def test_a_weighted_fit_is_numpys_and_its_error_is_scipys() -> None:
    relative = np.array([0.3, 0.1, 0.05, 0.02])
    responses = 2 * SCALES**1.9 * np.array([1.2, 0.95, 1.03, 0.99])
    fit = fit_power_law(SCALES, responses, errors=relative * responses)
    slope, height = np.polyfit(np.log(SCALES), np.log(responses), 1, w=1 / relative)
    _, covariance = optimize.curve_fit(
        lambda u, a, b: a + b * u, np.log(SCALES), np.log(responses), sigma=relative, absolute_sigma=True
    )
    half = stats.norm.ppf(0.975) * math.sqrt(covariance[1, 1])
    assert (fit.exponent.estimate, math.log(fit.factor)) == pytest.approx((slope, height))
    assert (fit.exponent.low, fit.exponent.high) == pytest.approx((slope - half, slope + half), rel=1e-4)
    left = np.log(responses) - 2 * np.log(SCALES)
    assert math.log(fit.quadratic_factor) == pytest.approx(np.average(left, weights=relative**-2.0))


def test_without_errors_the_residuals_tell_as_in_a_regression() -> None:
    responses = 2 * SCALES**1.9 * np.array([1.2, 0.95, 1.03, 0.99])
    theirs = stats.linregress(np.log(SCALES), np.log(responses))
    fit = fit_power_law(SCALES, responses)
    half = stats.t.ppf(0.975, 2) * theirs.stderr
    assert (fit.exponent.low, fit.exponent.high) == pytest.approx((theirs.slope - half, theirs.slope + half))
    off = np.log(responses) - theirs.intercept - theirs.slope * np.log(SCALES)
    assert fit.residual == pytest.approx(math.sqrt(np.mean(off**2)))


def test_the_exponent_of_samples_is_covered() -> None:
    """The same samples at every scale: hard ones respond more at all of them, which must not widen the interval."""
    generator, covered, widths = np.random.default_rng(0), 0, []
    for _ in range(1500):
        hardness = generator.lognormal(0.0, 0.8, 60)
        responses = hardness * SCALES[:3, None] ** 2 * generator.lognormal(-0.045, 0.3, (3, 60))
        exponent = fit_power_law(SCALES[:3], responses).exponent
        covered += exponent.low <= 2.0 <= exponent.high
        widths.append(exponent.high - exponent.low)
    assert 92 <= covered / 15 <= 98
    assert np.mean(widths) < 0.35


def test_two_scales_of_samples_are_enough() -> None:
    hardness = np.random.default_rng(1).lognormal(0.0, 0.8, 60)
    exponent = fit_power_law([0.05, 0.1], np.stack([hardness, 4 * hardness])).exponent
    assert (exponent.estimate, exponent.low, exponent.high) == pytest.approx((2.0, 2.0, 2.0))


def test_the_quadratic_law_is_left_where_the_response_saturates() -> None:
    # r = s^2 / (1 + 10 s) is 20 % below s^2 (at the smallest scale: nearly 1) where 1 + 10 s = 1.25 (1 + 10 s_0).
    scales = np.geomspace(0.0001, 0.3, 200)
    expected = (1.25 * (1 + 0.001) - 1) / 10
    assert fit_power_law(scales, scales**2 / (1 + 10 * scales)).left_at == pytest.approx(expected, rel=0.002)


def test_the_quadratic_law_is_left_upwards_at_an_avalanche() -> None:
    # A straight line in logarithms from 1 at 0.05 to 2 at 0.1 passes 1.2 after log 1.2 / log 2 of the octave.
    fit = fit_power_law(SCALES, SCALES**2 * np.array([1.0, 1.1, 1.0, 2.0]))
    assert fit.left_at == pytest.approx(0.05 * 2 ** (math.log(1.2) / math.log(2)))
    assert fit_power_law(SCALES, SCALES**2 * np.array([1.0, 1.1, 1.0, 2.0]), tolerance=0.999).left_at is not None


def test_what_returns_to_the_law_has_not_left_it() -> None:
    assert fit_power_law(SCALES, SCALES**2 * np.array([1.0, 1.5, 1.0, 1.1])).left_at is None
    assert fit_power_law(SCALES, SCALES**2 * np.array([1.0, 1.2, 0.8, 1.2])).left_at is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_power_law([0.1, 0.05], [1.0, 2.0]), "rising scales"),
        (lambda: fit_power_law([0.0, 0.05], [1.0, 2.0]), "above 0"),
        (lambda: fit_power_law([0.05], [1.0]), "at least 2"),
        (lambda: fit_power_law([0.05, 0.1], [0.0, 1.0], errors=[1, 1]), "mean response 0 at scale 0.05"),
        (lambda: fit_power_law([0.05, 0.1], [1.0, 4.0]), "at least 3 scales"),
        (lambda: fit_power_law([0.05, 0.1], [1.0, 4.0], errors=[0.1]), "one standard error"),
        (lambda: fit_power_law([0.05, 0.1], [[1.0], [4.0]]), "responses of 1 sample"),
        (lambda: fit_power_law(SCALES, SCALES**2, tolerance=20), "tolerance 20"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        call()
