"""Level 2: what noise in consecutive layers costs, how layers interact, and where errors pile up.

It makes records of what was measured; which windows are measured is `noisescope.diagnose.search`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.diagnose.harm import Measured, looks, p_values, shared, yardstick
from noisescope.diagnose.ledger import Answer, Ledger
from noisescope.diagnose.setting import Setting, Unit, elementary, span_name
from noisescope.measure.metrics import METRICS
from noisescope.measure.profile import Profile
from noisescope.measure.significance import holm
from noisescope.measure.statistics import Interval
from noisescope.measure.verdicts import UNDECIDED, Limits, Verdict, judge

Layers = tuple[int, ...]
Neighbours = Literal["apart", "adjacent"]
NEIGHBOURS = ("apart", "adjacent")
BANDS = Limits((0.05, 0.10, 0.15), ("robust", "moderate", "high", "critical"))
AVALANCHE, SEVERE, TIMES = 0.15, 0.20, 1.5


@dataclass(frozen=True)
class WindowQuestion:
    """Which windows there are, and what is predicted of each layer.

    `predicted` is harm by layer from screening; without it there is nothing to go by, and all windows are measured.
    `neighbours` says with which windows one is compared that may be an avalanche point: the nearest ones apart from
    it, or the adjacent ones, which share most of its layers and so hide nearly every avalanche.
    """

    setting: Setting
    size: int = 3
    step: int = 1
    neighbours: Neighbours = "apart"
    predicted: tuple[float, ...] = ()
    limits: Limits = BANDS
    candidates: int = 3
    controls: int = 3

    def __post_init__(self) -> None:
        if self.neighbours not in NEIGHBOURS:
            raise unknown_name("kind of neighbours", self.neighbours, NEIGHBOURS)
        if not 1 <= self.size <= self.setting.layers:
            raise BadInputError(
                f"window size {self.size!r}: expected 1 to {self.setting.layers}, the layers there are."
            )
        if self.step < 1:
            raise BadInputError(f"step size {self.step!r}: expected a whole number >= 1.")
        if self.predicted and len(self.predicted) != self.setting.layers:
            raise BadInputError(f"{len(self.predicted)} predictions: expected one for each of {self.setting.layers}.")

    @property
    def windows(self) -> tuple[Layers, ...]:
        """All windows; the last layers have one even if the step does not divide."""
        last = self.setting.layers - self.size
        starts = list(range(0, last + 1, self.step))
        if starts[-1] != last:
            starts.append(last)
        return tuple(tuple(range(start, start + self.size)) for start in starts)

    @property
    def bands(self) -> Limits | None:
        """The limits of a degradation; None where bands do not apply."""
        return self.limits if yardstick(self.setting).is_share else None

    @property
    def is_screened(self) -> bool:
        return bool(self.predicted) and not self.setting.exhaustive

    def prediction(self, layers: Layers) -> float | None:
        """The predicted harm of a window: the sum over its layers."""
        return sum(self.predicted[layer] for layer in layers) if self.predicted else None

    def beside(self, layers: Layers) -> tuple[Layers, ...]:
        """The windows that one is compared with, at most one on either side."""
        gap = self.size if self.neighbours == "apart" else 1
        before = [other for other in self.windows if other[0] <= layers[0] - gap]
        after = [other for other in self.windows if other[0] >= layers[0] + gap]
        return (*before[-1:], *after[:1])


def predicted_by_layer(profile: Profile, layers: int, scale: float) -> tuple[float, ...]:
    """The predicted harm of each layer, from the sites that a window perturbs."""
    found = [0.0] * layers
    for (layer, operator), harm in profile.at_scale(scale).harm.items():
        if layer is not None and elementary((operator,)):
            found[layer] += harm
    return tuple(found)


def unit_of(layers: Layers) -> Unit:
    """All operators of some layers."""
    return Unit(layers=layers)


@dataclass(frozen=True)
class Interaction:
    """Harm of a window minus the sum of its layers' harm, and the p-value that it is above 0, adjusted over windows."""

    harm: Interval
    p_value: float


@dataclass(frozen=True)
class Avalanche:
    """Whether errors pile up in a window: "yes", "no" or "undecided", with the reason.

    `ratio` is its harm over the largest of its neighbours, infinite where those have none.
    """

    is_point: str
    severity: str
    ratio: float | None
    neighbours: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class WindowResult:
    """One window. `evidence` says what its verdict rests on: measured, or inferred from windows that were.

    `p_value` is that of a harm above the first limit, adjusted over the measured windows.
    """

    layers: Layers
    answer: Answer
    score: Interval | None
    evidence: str
    predicted: float | None
    p_value: float | None = None
    interaction: Interaction | None = None
    avalanche: Avalanche | None = None

    @property
    def name(self) -> str:
        return span_name(self.layers)

    @property
    def verdict(self) -> Verdict:
        return self.answer.verdict


MEASURED, NOT_MEASURED = "measured", "not measured"


def window_results(ledger: Ledger, question: WindowQuestion) -> tuple[WindowResult, ...]:
    """A result for each window, in the order of the layers; those that were not measured are left undecided."""
    results = [_result(ledger, question, layers) for layers in question.windows]
    adjusted = _adjusted(ledger, question, results)
    interactions = _interactions(ledger, question)
    found = [replace(result, interaction=interactions.get(result.layers)) for result in adjusted]
    return tuple(replace(result, avalanche=_avalanche(ledger, question, result)) for result in found)


def _result(ledger: Ledger, question: WindowQuestion, layers: Layers) -> WindowResult:
    answer = ledger.answer(unit_of(layers))
    is_scored = question.bands is not None and answer.harm is not None
    score = answer.harm.scaled(1.0 / ledger.setting.scale) if is_scored and answer.harm else None
    evidence = NOT_MEASURED if answer.harm is None else MEASURED
    return WindowResult(layers, answer, score, evidence, question.prediction(layers))


def _adjusted(ledger: Ledger, question: WindowQuestion, results: Sequence[WindowResult]) -> list[WindowResult]:
    """Verdicts that allow for the number of windows.

    For each limit, with half of the allowed error: not one window is said to be above it that is not (Holm). A band
    that a window alone would be given, but not among so many, is undecided.
    """
    limits = question.bands
    parts = {result.layers: ledger.measured(unit_of(result.layers)) for result in results}
    whole = {layers: part for layers, part in parts.items() if part is not None}
    if limits is None or not whole:
        return list(results)
    p = np.array([p_values(ledger.setting, part, limits, len(whole)) for part in whole.values()])
    adjusted = dict(zip(whole, np.stack([holm(column) for column in p.T], axis=1).tolist(), strict=True))
    return [
        _among(ledger, result, limits, adjusted[result.layers]) if result.layers in whole else result
        for result in results
    ]


def _among(ledger: Ledger, result: WindowResult, limits: Limits, adjusted: Sequence[float]) -> WindowResult:
    answer, alpha = result.answer, ledger.setting.alpha
    proven = next((i for i, p in enumerate(adjusted) if p > alpha / 2.0), len(limits.values))
    own = [limits.names.index(name) for name in answer.verdict.bands] or [0]
    if min(own) > proven:
        bands = limits.names[proven : max(own) + 1]
        answer = replace(answer, verdict=Verdict(UNDECIDED, bands, _more_among(ledger, result, limits)))
    return replace(result, answer=answer, p_value=float(adjusted[0]))


def _more_among(ledger: Ledger, result: WindowResult, limits: Limits) -> int | None:
    """The samples that would decide a window among as many as there are, each with its part of the error."""
    measured = ledger.measured(unit_of(result.layers))
    if measured is None:
        return None
    by, size = yardstick(ledger.setting), len(result.layers)
    among = sum(unit.operators is None and len(unit.layers or ()) == size for unit in ledger.climbs)
    share = min(look.share for look in looks(ledger.setting) if not look.anytime)
    confidence = 1.0 - ledger.setting.alpha * share / among
    return judge(by.interval(measured.clean, by.of_samples(measured), confidence), limits).more_samples or None


def _interactions(ledger: Ledger, question: WindowQuestion) -> dict[Layers, Interaction]:
    """The interaction of each window whose layers were measured one by one as well."""
    parts = {
        layers: [ledger.measured(unit) for unit in (unit_of(layers), *(unit_of((layer,)) for layer in layers))]
        for layers in question.windows
        if len(layers) > 1
    }
    whole = {layers: [part for part in found if part is not None] for layers, found in parts.items()}
    whole = {layers: found for layers, found in whole.items() if len(found) == len(layers) + 1}
    if not whole:
        return {}
    finest = ledger.setting.alpha / 2.0 / len(whole)
    found = [_interaction(ledger.setting, shared(parts), finest) for parts in whole.values()]
    adjusted = holm([p for _, p in found])
    return {layers: Interaction(harm, float(p)) for layers, (harm, _), p in zip(whole, found, adjusted, strict=True)}


def _interaction(setting: Setting, parts: Sequence[Measured], finest: float) -> tuple[Interval, float]:
    by, clean = yardstick(setting), parts[0].clean
    window, *singles = (by.of_samples(part) for part in parts)
    extra = window - sum(singles)
    return by.interval(clean, extra, setting.confidence), by.p_above(clean, extra, 0.0, finest)


def _avalanche(ledger: Ledger, question: WindowQuestion, result: WindowResult) -> Avalanche | None:
    """The rule of avalanche points, on what was measured; None where it does not apply or nothing was."""
    harm = result.answer.harm
    if question.bands is None or harm is None or result.answer.gaps:
        return None
    others = question.beside(result.layers)
    names = tuple(span_name(other) for other in others)
    severity = "CRITICAL" if harm.estimate > SEVERE else "HIGH"
    if harm.high < AVALANCHE or _is_below(result.verdict, question.limits):
        return Avalanche("no", "", None, names, f"costs no more than {AVALANCHE:.0%}")
    if not others:
        return Avalanche("undecided", severity, None, (), "no window is apart from it")
    sides = [_stands_out(ledger, result.layers, other) for other in others]
    ratio = _ratio(ledger, result, others)
    if "no" in sides:
        return Avalanche("no", "", ratio, names, f"less than {TIMES:g} times the windows beside it")
    if result.verdict.bands == (question.limits.names[-1],) and set(sides) == {"yes"}:
        return Avalanche("yes", severity, ratio, names, f"more than {TIMES:g} times the windows beside it")
    missing = [span_name(other) for other, side in zip(others, sides, strict=True) if side == "unmeasured"]
    reason = f"{' and '.join(missing)} not measured" if missing else "too few samples"
    return Avalanche("undecided", severity, ratio, names, reason)


def _is_below(verdict: Verdict, limits: Limits) -> bool:
    return limits.names[-1] not in verdict.bands


def _stands_out(ledger: Ledger, layers: Layers, other: Layers) -> str:
    """Whether a window costs more than 1.5 times what another does, on the samples that both have."""
    parts = [ledger.measured(unit_of(layers)), ledger.measured(unit_of(other))]
    whole = [part for part in parts if part is not None]
    if len(whole) < 2:
        return "unmeasured"
    by = yardstick(ledger.setting)
    mine, theirs = shared(whole)
    if not METRICS[by.metric].geometric and not any(mine.clean):
        return "undecided"
    ahead = by.interval(mine.clean, by.of_samples(mine) - TIMES * by.of_samples(theirs), ledger.setting.confidence)
    return "yes" if ahead.low > 0.0 else "no" if ahead.high < 0.0 else "undecided"


def _ratio(ledger: Ledger, result: WindowResult, others: Sequence[Layers]) -> float | None:
    found = [ledger.answer(unit_of(other)).harm for other in others]
    most = max((harm.estimate for harm in found if harm is not None), default=None)
    if most is None or result.answer.harm is None:
        return None
    return result.answer.harm.estimate / most if most > 0.0 else float("inf")


@dataclass(frozen=True)
class AvalanchePoint:
    """Overlapping windows in which errors pile up, as one place: all layers of them, and the worst of the windows."""

    layers: Layers
    peak: str
    severity: str
    harm: Interval


def avalanche_points(results: Sequence[WindowResult]) -> tuple[AvalanchePoint, ...]:
    """The places where errors pile up, worst first."""
    groups: list[list[WindowResult]] = []
    for result in results:
        if result.avalanche is None or result.avalanche.is_point != "yes":
            continue
        if groups and set(groups[-1][-1].layers) & set(result.layers):
            groups[-1].append(result)
        else:
            groups.append([result])
    return tuple(sorted(map(_point, groups), key=lambda point: -point.harm.estimate))


def _point(group: Sequence[WindowResult]) -> AvalanchePoint:
    harms: Mapping[str, Interval] = {r.name: r.answer.harm for r in group if r.answer.harm is not None}
    peak = max(harms, key=lambda name: harms[name].estimate)
    layers = tuple(sorted({layer for result in group for layer in result.layers}))
    severity = next(r.avalanche.severity for r in group if r.name == peak and r.avalanche is not None)
    return AvalanchePoint(layers, peak, severity, harms[peak])
