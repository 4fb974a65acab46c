"""Judges channel statistics: which channels are outliers, how badly, where in the text they peak, how a stream grows.

It works on records of plain numbers, without torch; `noisescope.measure.channels` collects them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from noisescope.core.errors import BadInputError

Floats = tuple[float, ...]
Indices = tuple[int, ...]
PLACES = ("first token", "delimiters", "other tokens")
EVERYWHERE, UNKNOWN = "every token", "unknown"
# The octaves that quantiles reach down from the largest value; a median further down counts as the lowest.
_OCTAVES = 16


@dataclass(frozen=True)
class ChannelSummary:
    """What was seen of each channel at one side of one module, over all tokens but padding.

    `peaks` is max|x|, `place_peaks` the same over first tokens, over delimiters and over all others (0 where there were
    none). `peak_positions` and `peak_tokens` say where the largest value sat, -1 where that is not known.
    `position_peaks` is max|x| over all channels at positions 0, 1, 2, 3, 4-7, 8-15 and so on. Quantiles are of |x|.
    `unplaced` of the `tokens` came without a place in the batch (rows that a router has sorted), so that padding may be
    among them. Values that are not finite are counted in `non_finite` and are in no other figure.
    """

    path: str
    side: str
    tokens: int
    unplaced: int
    peaks: Floats
    means: Floats
    deviations: Floats
    medians: Floats
    q99: Floats
    place_peaks: tuple[Floats, Floats, Floats]
    peak_positions: Indices
    peak_tokens: Indices
    position_peaks: Floats
    sparsity: float
    non_finite: Indices
    squared_gradients: Floats = ()


@dataclass(frozen=True)
class OutlierRules:
    """From where a channel is an outlier.

    `ratio` of its largest value to the median channel's, `spread` of its 99 % quantile to its median, and the share of
    channels that rank highest by squared gradient.
    """

    ratio: float = 10.0
    spread: float = 5.0
    fisher_share: float = 0.05

    def __post_init__(self) -> None:
        if not self.ratio >= 1 or not self.spread >= 1 or not 0 < self.fisher_share <= 1:
            raise BadInputError(
                f"ratio {self.ratio!r}, spread {self.spread!r}, fisher_share {self.fisher_share!r}: expected ratios of "
                "1 or more and a share above 0 and up to 1."
            )


@dataclass(frozen=True)
class ChannelOutliers:
    """The outlier channels at one side of one module, by index.

    `indices` are those by ratio, with `ratios`, where each peaks (`places`) and at which position and token.
    `by_spread` and `by_fisher` come from the other two detectors, the latter highest first and empty without gradients.
    """

    path: str
    side: str
    channels: int
    severity: str
    indices: Indices
    ratios: Floats
    places: tuple[str, ...]
    peak_positions: Indices
    peak_tokens: Indices
    max_ratio: float
    median_peak: float
    by_spread: Indices
    spreads: Floats
    by_fisher: Indices
    non_finite: Indices
    sparsity: float

    @property
    def percentage(self) -> float:
        """Outliers by ratio in percent of the channels there are."""
        return 100 * len(self.indices) / self.channels


def severity_of(ratio: float, threshold: float = 10.0) -> str:
    """critical above 50, high above 20, moderate above the threshold, else none."""
    if ratio <= threshold:
        return "none"
    return "critical" if ratio > 50 else "high" if ratio > 20 else "moderate"


def find_outliers(summary: ChannelSummary, rules: OutlierRules = OutlierRules()) -> ChannelOutliers:
    """The outlier channels of one summary, by all three detectors."""
    middle, ratios = _ratios(summary.peaks)
    chosen = [i for i, ratio in enumerate(ratios) if ratio > rules.ratio]
    spreads = _spreads(summary)
    wide = [i for i, spread in enumerate(spreads) if spread > rules.spread]
    return ChannelOutliers(
        path=summary.path,
        side=summary.side,
        channels=len(summary.peaks),
        severity=severity_of(max(ratios, default=0.0), rules.ratio),
        indices=tuple(chosen),
        ratios=tuple(ratios[i] for i in chosen),
        places=_places(summary, chosen, rules.ratio),
        peak_positions=tuple(summary.peak_positions[i] for i in chosen),
        peak_tokens=tuple(summary.peak_tokens[i] for i in chosen),
        max_ratio=max(ratios, default=0.0),
        median_peak=middle,
        by_spread=tuple(wide),
        spreads=tuple(spreads[i] for i in wide),
        by_fisher=_highest(summary.squared_gradients, rules.fisher_share),
        non_finite=tuple(i for i, count in enumerate(summary.non_finite) if count),
        sparsity=summary.sparsity,
    )


def _ratios(peaks: Sequence[float]) -> tuple[float, list[float]]:
    """The median peak and each one's ratio to it. Channels that are always 0 are not in the median."""
    alive = [peak for peak in peaks if peak > 0]
    middle = statistics.median(alive) if alive else 0.0
    return middle, [peak / middle if middle else 0.0 for peak in peaks]


def _spreads(summary: ChannelSummary) -> list[float]:
    """q99 / q50; a median that is 0, or too small to be told from it, counts as the smallest that can be."""
    return [
        q99 / max(median, peak * 2.0**-_OCTAVES) if peak > 0 else 0.0
        for q99, median, peak in zip(summary.q99, summary.medians, summary.peaks, strict=True)
    ]


def _places(summary: ChannelSummary, chosen: Sequence[int], threshold: float) -> tuple[str, ...]:
    """Where each outlier peaks; 'every token' if it is one by the other tokens alone as well."""
    first, delimiters, other = summary.place_peaks
    if not any(first):
        return (UNKNOWN,) * len(chosen)
    _, others = _ratios(other)
    return tuple(
        EVERYWHERE if others[i] > threshold else PLACES[_argmax((first[i], delimiters[i], other[i]))] for i in chosen
    )


def _argmax(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _highest(values: Sequence[float], share: float) -> Indices:
    """Indices of the highest values, a share of all but at least one; what is 0 ranks nowhere."""
    most = max(1, int(share * len(values)))
    ranked = sorted((i for i, value in enumerate(values) if value > 0), key=lambda i: (-values[i], i))
    return tuple(ranked[:most])


@dataclass(frozen=True)
class StreamPoint:
    """How large the stream is at one place: root mean square, largest value, the channel that holds it.

    `growth` is the rms over that of the place before, `ratio` the largest value over the median channel's.
    """

    path: str
    rms: float
    growth: float
    peak: float
    ratio: float
    channel: int


def stream_growth(stream: Sequence[ChannelSummary]) -> tuple[StreamPoint, ...]:
    """Growth along the residual stream, from summaries of the outputs of consecutive layers."""
    points: list[StreamPoint] = []
    for summary in stream:
        squares = [m * m + s * s for m, s in zip(summary.means, summary.deviations, strict=True)]
        rms = statistics.fmean(squares) ** 0.5
        channel = _argmax(summary.peaks)
        _, ratios = _ratios(summary.peaks)
        before = points[-1].rms if points else rms
        growth = rms / before if before else 1.0
        points.append(StreamPoint(summary.path, rms, growth, summary.peaks[channel], ratios[channel], channel))
    return tuple(points)
