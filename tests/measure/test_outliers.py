"""The detectors against cases worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from noisescope.core.codec import decode, encode
from noisescope.core.errors import BadInputError
from noisescope.measure.outliers import (
    ChannelOutliers,
    ChannelSummary,
    OutlierRules,
    find_outliers,
    severity_of,
    stream_growth,
)


def summary(peaks: list[float], **changes: Any) -> ChannelSummary:
    """Channels that differ in their largest value alone, all of which sit at other tokens."""
    n = len(peaks)
    none = (0.0,) * n
    given: dict[str, Any] = {
        "path": "a.o_proj",
        "side": "output",
        "tokens": 100,
        "unplaced": 0,
        "peaks": tuple(peaks),
        "means": none,
        "deviations": (1.0,) * n,
        "medians": tuple(p / 4 for p in peaks),
        "q99": tuple(p * 0.9 for p in peaks),
        "place_peaks": (tuple(p / 3 for p in peaks), none, tuple(peaks)),
        "peak_positions": tuple(range(n)),
        "peak_tokens": (-1,) * n,
        "position_peaks": (),
        "sparsity": 0.25,
        "non_finite": (0,) * n,
    }
    return ChannelSummary(**{**given, **changes})


def test_ratios_to_the_median_channel() -> None:
    # The median of 2, 2, 3, 3, 4, 33, 100 is 3.
    found = find_outliers(summary([2, 33, 3, 100, 3, 4, 2]))
    assert (found.indices, found.ratios) == ((1, 3), (11.0, pytest.approx(100 / 3)))
    assert (found.max_ratio, found.median_peak, found.severity) == (pytest.approx(100 / 3), 3, "high")
    assert found.percentage == pytest.approx(200 / 7)
    assert (found.peak_positions, found.peak_tokens) == ((1, 3), (-1, -1))
    assert (found.path, found.side, found.channels, found.sparsity) == ("a.o_proj", "output", 7, 0.25)


def test_ten_times_is_not_more_than_ten_times() -> None:
    assert find_outliers(summary([1, 1, 1, 10])).indices == ()
    assert find_outliers(summary([1, 1, 1, 10.1])).indices == (3,)
    assert find_outliers(summary([1, 1, 1, 5]), OutlierRules(ratio=4)).indices == (3,)


@pytest.mark.parametrize(
    ("ratio", "threshold", "name"),
    [(10, 10, "none"), (10.1, 10, "moderate"), (20, 10, "moderate"), (21, 10, "high"), (50, 10, "high"),
     (51, 10, "critical"), (6, 5, "moderate"), (40, 30, "high"), (60, 100, "none")],
)  # fmt: skip
def test_severities(ratio: float, threshold: float, name: str) -> None:
    assert severity_of(ratio, threshold) == name


def test_dead_channels_do_not_make_the_median_zero() -> None:
    found = find_outliers(summary([0, 0, 0, 0, 1, 1, 30]))
    assert (found.indices, found.ratios) == ((6,), (30.0,))
    silent = find_outliers(summary([0, 0, 0]))
    assert (silent.indices, silent.max_ratio, silent.severity) == ((), 0.0, "none")


def test_spread_of_quantiles() -> None:
    found = find_outliers(summary([10, 10, 10, 10], medians=(1.0, 2.0, 0.0, 1.5), q99=(6.0, 9.0, 8.0, 7.5)))
    assert found.by_spread == (0, 2)
    # A median that cannot be told from 0 counts as 2**-16 of the largest value.
    assert found.spreads == (6.0, 8.0 / 10 * 2**16)
    assert find_outliers(summary([0, 0])).by_spread == ()


def test_ranking_by_squared_gradients() -> None:
    gradients = tuple(float(i * 7 % 40) for i in range(40))
    found = find_outliers(summary([1.0] * 40, squared_gradients=gradients))
    assert found.by_fisher == tuple(sorted(range(40), key=lambda i: -gradients[i])[:2])
    assert find_outliers(summary([1.0] * 3, squared_gradients=(0.0, 2.0, 1.0))).by_fisher == (1,)
    assert find_outliers(summary([1.0] * 3, squared_gradients=(0.0,) * 3)).by_fisher == ()
    assert find_outliers(summary([1.0] * 3)).by_fisher == ()


def test_places() -> None:
    first = (500.0, 1.0, 1.0, 90.0, 1.0)
    delimiters = (1.0, 200.0, 1.0, 1.0, 1.0)
    other = (1.0, 1.0, 1.0, 80.0, 1.0)
    peaks = [max(column) for column in zip(first, delimiters, other, strict=True)]
    found = find_outliers(summary(peaks, place_peaks=(first, delimiters, other)), OutlierRules(ratio=1.5))
    assert found.indices == (0, 1)
    assert found.places == ("first token", "delimiters")
    wide = OutlierRules(ratio=10)
    lone = (1.0,) * 6
    everywhere = find_outliers(summary([90, *lone], place_peaks=((90.0, *lone), (0.0,) * 7, (80.0, *lone))), wide)
    assert everywhere.places == ("every token",)
    unknown = find_outliers(summary([90, *lone], place_peaks=((0.0,) * 7, (0.0,) * 7, (90.0, *lone))), wide)
    assert unknown.places == ("unknown",)


def test_channels_that_are_not_finite_are_named() -> None:
    assert find_outliers(summary([1, 1, 1], non_finite=(0, 4, 0))).non_finite == (1,)


def test_growth_of_a_stream() -> None:
    stream = [
        summary([1, 2, 4], path="0", means=(0.0, 0.0, 0.0), deviations=(3.0, 3.0, 3.0)),
        summary([1, 2, 40], path="1", means=(0.0, 0.0, 9.0), deviations=(0.0, 0.0, 0.0)),
        summary([1, 2, 40], path="2", means=(0.0, 0.0, 0.0), deviations=(0.0, 0.0, 0.0)),
    ]
    points = stream_growth(stream)
    assert [p.path for p in points] == ["0", "1", "2"]
    assert [p.rms for p in points] == pytest.approx([3.0, 27**0.5, 0.0])
    assert [p.growth for p in points] == pytest.approx([1.0, 27**0.5 / 3, 0.0])
    assert [(p.peak, p.ratio, p.channel) for p in points] == [(4, 2, 2), (40, 20, 2), (40, 20, 2)]
    assert stream_growth([]) == ()


def test_records_are_plain() -> None:
    seen = summary([1, 2, 40])
    assert decode(ChannelSummary, encode(seen)) == seen
    assert decode(ChannelOutliers, encode(find_outliers(seen))) == find_outliers(seen)


@pytest.mark.parametrize("rules", [{"ratio": 0.5}, {"spread": float("nan")}, {"fisher_share": 0.0}])
def test_rules_that_make_no_sense(rules: dict[str, float]) -> None:
    with pytest.raises(BadInputError, match="ratios of 1 or more"):
        OutlierRules(**rules)
