"""Level 3: channels that are far larger than the rest, where they sit, and which remedy fits them.

It works on summaries that were collected from a calibration set; it collects none and asks for no trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from noisescope.core.layout import Layout
from noisescope.core.records import Finding
from noisescope.core.words import many
from noisescope.measure.correlations import Correlation
from noisescope.measure.outliers import (
    EVERYWHERE,
    PLACES,
    UNKNOWN,
    ChannelOutliers,
    ChannelSummary,
    OutlierRules,
    StreamPoint,
    find_outliers,
    severity_of,
    stream_growth,
)

RULES = OutlierRules()
# A stream that grows this much from one layer to the next has met a massive activation.
_LEAP = 10.0


@dataclass(frozen=True)
class ModuleChannels:
    """The outliers at one side of one module, with its layer; `percentage` is of the module's real channels."""

    layer: int | None
    outliers: ChannelOutliers
    percentage: float


@dataclass(frozen=True)
class LayerChannels:
    """All watched modules of a layer together."""

    layer: int
    outliers: int
    channels: int
    percentage: float
    max_ratio: float
    severity: str


@dataclass(frozen=True)
class Remedy:
    """A known remedy for one format: whether it fits what was seen, and why."""

    format: str
    remedy: str
    why: str


@dataclass(frozen=True)
class ChannelLevel:
    """Channels of all watched modules, by module and by layer.

    `places` counts outliers by where in the text they peak. `correlations` are of outlier counts with the harm of
    windows; the expectation is above 0.6, and what is found is reported.
    """

    modules: tuple[ModuleChannels, ...] = ()
    layers: tuple[LayerChannels, ...] = ()
    percentage: float = 0.0
    places: tuple[tuple[str, int], ...] = ()
    growth: tuple[StreamPoint, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    tokens: int = 0
    correlations: tuple[tuple[str, Correlation], ...] = ()


def channel_level(
    summaries: Sequence[ChannelSummary],
    layer_paths: Sequence[str],
    *,
    stream: Sequence[ChannelSummary] = (),
    rules: OutlierRules = RULES,
) -> ChannelLevel:
    """What the summaries of watched modules show; `stream` are those of the layers' own outputs, in order."""
    layout = Layout(layers=tuple(layer_paths))
    found = [find_outliers(summary, rules) for summary in summaries]
    modules = tuple(ModuleChannels(layout.layer_of(one.path)[0], one, one.percentage) for one in found)
    channels = sum(one.channels for one in found)
    return ChannelLevel(
        modules,
        _by_layer(modules, rules),
        100.0 * sum(len(one.indices) for one in found) / channels if channels else 0.0,
        _counted(place for one in found for place in one.places),
        stream_growth(stream),
        remedies(found, rules),
        max((summary.tokens for summary in summaries), default=0),
    )


def _by_layer(modules: Iterable[ModuleChannels], rules: OutlierRules) -> tuple[LayerChannels, ...]:
    groups: dict[int, list[ChannelOutliers]] = {}
    for module in modules:
        if module.layer is not None:
            groups.setdefault(module.layer, []).append(module.outliers)
    return tuple(_layer(layer, groups[layer], rules) for layer in sorted(groups))


def _layer(layer: int, found: Sequence[ChannelOutliers], rules: OutlierRules) -> LayerChannels:
    count, channels = sum(len(one.indices) for one in found), sum(one.channels for one in found)
    worst = max(one.max_ratio for one in found)
    return LayerChannels(layer, count, channels, 100.0 * count / channels, worst, severity_of(worst, rules.ratio))


def _counted(places: Iterable[str]) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for place in places:
        counts[place] = counts.get(place, 0) + 1
    return tuple((place, counts[place]) for place in (EVERYWHERE, *PLACES, UNKNOWN) if place in counts)


def outlier_counts(level: ChannelLevel) -> dict[int, int]:
    """Outlier channels by layer."""
    return {one.layer: one.outliers for one in level.layers}


def remedies(found: Sequence[ChannelOutliers], rules: OutlierRules = RULES) -> tuple[Remedy, ...]:
    """Which known remedy fits for 8 bit weights and activations, 4 bit weights, and 4 bits for both."""
    inputs = [one for one in found if one.side == "input"] or list(found)
    if not inputs:
        return ()
    counts = dict(_counted(place for one in inputs for place in one.places))
    steady = counts.get(EVERYWHERE, 0) + counts.get(PLACES[2], 0) + counts.get(UNKNOWN, 0)
    seldom = counts.get(PLACES[0], 0) + counts.get(PLACES[1], 0)
    worst = max(inputs, key=lambda one: one.max_ratio)
    spread = sum(bool(one.by_spread) for one in inputs)
    return (_w8a8(worst, steady, seldom, rules), _w4(worst, steady), _w4a4(worst, steady + seldom, spread, len(inputs)))


def _w8a8(worst: ChannelOutliers, steady: int, seldom: int, rules: OutlierRules) -> Remedy:
    seen = f"the largest channel of {worst.path} ({worst.side}) reaches {worst.max_ratio:.0f} times the median one"
    if not steady and not seldom:
        return Remedy("W8A8", "none needed", f"no channel exceeds {rules.ratio:g} times the median; {seen}")
    if steady >= seldom:
        why = (
            f"{steady} channels are large all through the text ({seen}): noisescope smooth scales them into the weights"
        )
        return Remedy("W8A8", "SmoothQuant", why)
    why = (
        f"{seldom} of {steady + seldom} outliers are large at first tokens or delimiters only ({seen}): a factor per "
        "channel would shrink all other tokens for the sake of these; one scale per token keeps them apart"
    )
    return Remedy("W8A8", "one activation scale per token", why)


def _w4(worst: ChannelOutliers, steady: int) -> Remedy:
    if steady:
        why = f"{steady} channels carry far larger activations, so that errors of the weights they meet count most; "
        return Remedy("W4A16", "AWQ", why + "AWQ scales just those weights up before rounding")
    why = f"no channel is large all through the text (largest ratio {worst.max_ratio:.1f}), so no weights stand out"
    return Remedy("W4A16", "rounding to nearest in groups, or GPTQ", why)


def _w4a4(worst: ChannelOutliers, outliers: int, spread: int, modules: int) -> Remedy:
    if outliers or spread:
        why = (
            f"{many(outliers, 'outlier channel')} and {spread} of {modules} modules with long tails leave 15 "
            f"levels for a range of {worst.max_ratio:.0f} medians: factors per channel are not enough, rotations "
            "spread it"
        )
        return Remedy("W4A4", "learned transforms (rotations, as in SpinQuant or FlatQuant)", why)
    why = f"no outliers and no long tails: blocks of 32 with a scale each (MXFP4) hold a ratio of {worst.max_ratio:.1f}"
    return Remedy("W4A4", "a scale per block", why)


def channel_findings(level: ChannelLevel) -> tuple[Finding, ...]:
    """A statement on every layer with outliers, on leaps of the stream, and on values that were not finite."""
    return (*map(_layer_finding, _worst_first(level)), *_leaps(level.growth), *_broken(level.modules))


def _worst_first(level: ChannelLevel) -> list[tuple[LayerChannels, ModuleChannels]]:
    chosen = sorted((one for one in level.layers if one.outliers), key=lambda one: -one.max_ratio)
    return [(one, _worst_module(level.modules, one.layer)) for one in chosen]


def _worst_module(modules: Iterable[ModuleChannels], layer: int) -> ModuleChannels:
    return max((m for m in modules if m.layer == layer), key=lambda module: module.outliers.max_ratio)


def _layer_finding(pair: tuple[LayerChannels, ModuleChannels]) -> Finding:
    layer, module = pair
    worst = module.outliers
    at = max(range(len(worst.indices)), key=lambda i: worst.ratios[i])
    statement = (
        f"Layer {layer.layer}: {many(layer.outliers, 'outlier channel')} ({layer.percentage:.2f} % of "
        f"{layer.channels}), the largest channel {worst.indices[at]} at the {worst.side} of {worst.path}, "
        f"{worst.ratios[at]:.0f} times the median one ({worst.places[at]})"
    )
    figures = (("outliers", float(layer.outliers)), ("percent", layer.percentage), ("ratio", worst.ratios[at]))
    return Finding(statement, layer.severity, figures)


def _leaps(growth: Iterable[StreamPoint]) -> list[Finding]:
    return [
        Finding(
            f"The residual stream grows {point.growth:.0f} times at {point.path}, by channel {point.channel} at "
            f"{point.peak:.3g}, {point.ratio:.0f} times the median one",
            "high",
            (("growth", point.growth), ("peak", point.peak), ("ratio", point.ratio)),
        )
        for point in growth
        if point.growth > _LEAP
    ]


def _broken(modules: Iterable[ModuleChannels]) -> list[Finding]:
    return [
        Finding(
            f"{len(one.outliers.non_finite)} channels at the {one.outliers.side} of {one.outliers.path} had values "
            "that are not finite",
            "warning",
            (("channels", float(len(one.outliers.non_finite))),),
        )
        for one in modules
        if one.outliers.non_finite
    ]
