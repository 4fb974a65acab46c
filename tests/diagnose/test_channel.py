"""Level 3 on summaries made by hand, each with one cause planted."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.synthetic import World, ask, setting
from noisescope.diagnose.channel import channel_findings, channel_level, remedies
from noisescope.diagnose.whole import Question
from noisescope.diagnose.window import WindowQuestion
from noisescope.measure.outliers import ChannelSummary, OutlierRules, find_outliers

PATHS = tuple(f"model.layers.{i}" for i in range(4))


def summary(path: str, peaks: list[float], place: str = "other", **changes: Any) -> ChannelSummary:
    n, none = len(peaks), (0.0,) * len(peaks)
    ones = (1.0,) * n
    places = {
        "other": (ones, none, tuple(peaks)),
        "first": (tuple(peaks), none, ones),
        "delimiter": (ones, tuple(peaks), ones),
    }
    given: dict[str, Any] = {
        "path": path,
        "side": "input",
        "tokens": 500,
        "unplaced": 0,
        "peaks": tuple(peaks),
        "means": none,
        "deviations": ones,
        "medians": tuple(p / 4 for p in peaks),
        "q99": tuple(p * 0.9 for p in peaks),
        "place_peaks": places[place],
        "peak_positions": tuple(range(n)),
        "peak_tokens": (-1,) * n,
        "position_peaks": (),
        "sparsity": 0.0,
        "non_finite": (0,) * n,
    }
    return ChannelSummary(**{**given, **changes})


FLAT = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.2]
SPIKED = [1.0, 1.0, 60.0, 1.0, 1.0, 15.0, 1.0, 1.0]


def names(found: Any) -> dict[str, str]:
    return {one.format: one.remedy for one in found}


def test_a_planted_channel_is_named_with_its_layer_ratio_and_share_of_the_real_channels() -> None:
    level = channel_level(
        [summary("model.layers.1.mlp.down_proj", SPIKED), summary("model.layers.2.mlp.down_proj", FLAT)], PATHS
    )
    spiked = level.modules[0]
    assert (spiked.layer, spiked.outliers.indices, spiked.outliers.ratios) == (1, (2, 5), (60.0, 15.0))
    assert spiked.percentage == 25.0 and level.percentage == 12.5
    first, second = level.layers
    assert (first.layer, first.outliers, first.channels, first.max_ratio, first.severity) == (1, 2, 8, 60.0, "critical")
    assert (second.outliers, second.severity) == (0, "none")
    (finding,) = channel_findings(level)
    assert finding.severity == "critical" and "channel 2 at the input of model.layers.1.mlp.down_proj" in (
        finding.statement
    )


def test_where_no_channel_stands_out_nothing_is_found_and_no_remedy_is_sold() -> None:
    level = channel_level([summary(f"{path}.mlp.down_proj", FLAT) for path in PATHS], PATHS)
    assert not channel_findings(level) and level.percentage == 0.0 and level.places == ()
    assert names(level.remedies) == {
        "W8A8": "none needed",
        "W4A16": "rounding to nearest in groups, or GPTQ",
        "W4A4": "a scale per block",
    }


def test_all_three_detectors_are_kept() -> None:
    wide = summary("model.layers.0.o_proj", FLAT, q99=(1.0, 1.0, 9.0, *[1.0] * 5), medians=(1.0,) * 8)
    ranked = summary("model.layers.0.q_proj", FLAT, squared_gradients=(0.0, 1.0, 9.0, *[0.0] * 5))
    level = channel_level([wide, ranked], PATHS, rules=OutlierRules(fisher_share=0.2))
    assert level.modules[0].outliers.by_spread == (2,) and level.modules[1].outliers.by_fisher == (2,)


@pytest.mark.parametrize(
    ("place", "w8a8"), [("other", "SmoothQuant"), ("first", "one activation scale per token"), ("delimiter", None)]
)
def test_the_remedy_fits_where_the_outliers_sit(place: str, w8a8: str | None) -> None:
    level = channel_level([summary("model.layers.1.o_proj", SPIKED, place)], PATHS)
    found = names(level.remedies)
    assert found["W8A8"] == (w8a8 or "one activation scale per token")
    assert found["W4A16"] == ("AWQ" if place == "other" else "rounding to nearest in groups, or GPTQ")
    assert found["W4A4"].startswith("learned transforms")
    assert all(one.why for one in level.remedies)
    assert dict(level.places).popitem()[1] == 2


def test_inputs_decide_on_the_remedy_where_they_were_watched() -> None:
    quiet_input, loud_output = summary("a", FLAT), summary("a", SPIKED, side="output")
    assert names(remedies([find_outliers(quiet_input), find_outliers(loud_output)]))["W8A8"] == "none needed"
    assert names(remedies([find_outliers(loud_output)]))["W8A8"] == "SmoothQuant"
    assert remedies([]) == ()


def test_a_leap_of_the_residual_stream_is_found_at_its_layer() -> None:
    stream = [summary(path, FLAT, deviations=(size,) * 8) for path, size in zip(PATHS, (1, 2, 40, 41), strict=True)]
    level = channel_level([summary("model.layers.0.o_proj", FLAT)], PATHS, stream=stream)
    assert [point.growth for point in level.growth] == pytest.approx([1.0, 2.0, 20.0, 41 / 40])
    (finding,) = channel_findings(level)
    assert "20 times at model.layers.2" in finding.statement


def test_values_that_are_not_finite_are_reported() -> None:
    level = channel_level([summary("model.layers.0.o_proj", FLAT, non_finite=(0, 3, *[0] * 6))], PATHS)
    (finding,) = channel_findings(level)
    assert finding.severity == "warning" and finding.statement.startswith("1 channels at the input")


def test_outlier_counts_are_set_against_the_sensitivity_of_windows() -> None:
    world = World(metric="nll", samples=60, layers={i: 0.004 * i for i in range(10)})
    asked = setting(metric="nll", shape="text", samples=60, layers=10, exhaustive=True, resamples=300)
    peaks = [[1.0] * (40 - i) + [50.0] * i for i in range(10)]
    summaries = [summary(f"layers.{i}.down_proj", row) for i, row in enumerate(peaks)]
    level = channel_level(summaries, [f"layers.{i}" for i in range(10)])
    question = Question(
        asked, operators=False, windows=WindowQuestion(asked, predicted=world.profile(10)), channels=level
    )
    found = ask(question, world)
    correlations = dict(found.channels.correlations)
    assert correlations["measured harm of windows"].interval.estimate > 0.95
    assert correlations["predicted harm of windows"].interval.estimate > 0.95
    # 45 of 400 channels are 11.25 percent: 56.25 points for channels.
    assert found.risk.outlier_percent == pytest.approx(11.25)
    assert found.risk.points - 25 * found.risk.avalanche_points == pytest.approx(56.25)
