"""Scales by layer from what noise costs there."""

import pytest

from noisescope.core.errors import BadInputError
from noisescope.diagnose.ledger import Answer
from noisescope.diagnose.window import WindowResult
from noisescope.measure.statistics import Interval
from noisescope.measure.verdicts import Verdict
from noisescope.prescribe.noise_training import adaptive_factors, factor_of, layer_degradation


@pytest.mark.parametrize(
    ("degradation", "factor"),
    [(0.151, 0.5), (0.9, 0.5), (0.15, 1.0), (0.10, 1.0), (0.05, 1.0), (0.049, 2.0), (-0.02, 2.0), (None, 1.0)],
)
def test_the_fragile_get_half_and_the_tolerant_twice(degradation, factor):
    assert factor_of(degradation) == factor


def test_layers_that_were_not_measured_keep_the_base_scale():
    assert adaptive_factors({0: 0.3, 2: 0.01}, 4) == {0: 0.5, 1: 1.0, 2: 2.0, 3: 1.0}


def test_equal_mean_keeps_the_noise_of_all_layers_together():
    factors = adaptive_factors({0: 0.3, 1: 0.01, 2: 0.01}, 3, equal_mean=True)
    assert factors == pytest.approx({0: 1 / 3, 1: 4 / 3, 2: 4 / 3})


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(BadInputError, match="layers 0 to 1"):
        adaptive_factors({2: 0.1}, 2)
    with pytest.raises(BadInputError, match="NaN"):
        factor_of(float("nan"))


def window(layers, cost):
    harm = None if cost is None else Interval(cost, cost, cost, 0.95, 10)
    return WindowResult(layers, Answer("w", Verdict("", (), None), harm), None, "measured", None)


def test_a_layer_costs_what_its_measured_windows_cost_on_average():
    windows = [window((0, 1), 0.1), window((1, 2), 0.3), window((2, 3), None)]
    assert layer_degradation(windows) == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3, 3: None})
