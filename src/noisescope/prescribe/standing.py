"""How fragile each layer and operator of a diagnosis is, as a priority for a migration with its reason.

It knows nothing of the target; what diverges there is the plan's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from noisescope.diagnose.harm import shown_harm, yardstick
from noisescope.diagnose.operator import SCORES, OperatorResult
from noisescope.diagnose.whole import Diagnosis
from noisescope.diagnose.window import BANDS, WindowResult
from noisescope.measure.verdicts import UNDECIDED

# By band of the loss, from robust to critical; of operators by band of the score.
_BY_BAND, _BY_SCORE = (3, 2, 2, 1), (3, 2, 1)
# Where a metric has no limits: the layers that make up this share of all harm, the worst first, and the next ones.
_MOST, _NEARLY_ALL = 0.5, 0.8
NOT_MEASURED = "not measured"
_UNKNOWN = 2


@dataclass(frozen=True)
class Standing:
    """The priority of a layer or operator by its fragility alone: 1 to 3, with the word of the verdict and why."""

    priority: int
    word: str
    harm: float | None
    reason: str


def layer_standings(diagnosis: Diagnosis) -> dict[int, Standing]:
    """By layer. A layer alone costs no more than a window with it, so the least harmful of those counts."""
    if not diagnosis.windows:
        return {}
    layers = range(diagnosis.setting.layers)
    if not yardstick(diagnosis.setting).is_share:
        return _by_share(diagnosis)
    found = {layer: _banded(diagnosis, layer) for layer in layers}
    for point in diagnosis.points:
        peak = next(window for window in diagnosis.windows if window.name == point.peak)
        for layer in peak.layers:
            reason = f"in {point.peak}, the peak of an avalanche point that costs {_cost(diagnosis, peak)}"
            harm = found[layer].harm
            found[layer] = Standing(1, "critical", point.harm.estimate if harm is None else harm, reason)
    return found


def _windows_with(diagnosis: Diagnosis, layer: int) -> list[WindowResult]:
    return [window for window in diagnosis.windows if layer in window.layers]


def _banded(diagnosis: Diagnosis, layer: int) -> Standing:
    standings = [_of_window(diagnosis, window) for window in _windows_with(diagnosis, layer)]
    known = [one for one in standings if one.word != NOT_MEASURED]
    if not known:
        return Standing(_UNKNOWN, NOT_MEASURED, None, "no window with it was measured, so nothing says it is robust")
    harms = [one.harm for one in known if one.harm is not None]
    least = max(known, key=lambda one: (one.priority, -(one.harm if one.harm is not None else 0.0)))
    return replace(least, harm=min(harms, default=None))


def _of_window(diagnosis: Diagnosis, window: WindowResult) -> Standing:
    verdict, harm = window.verdict, window.answer.harm
    if verdict.decided:
        rests = f"costs {_cost(diagnosis, window)}" if harm is not None else f"is {window.evidence}"
        priority = _BY_BAND[BANDS.names.index(verdict.name)]
        return Standing(priority, verdict.name, harm.estimate if harm else None, f"noise in {window.name} {rests}")
    if harm is None:
        return Standing(_UNKNOWN, NOT_MEASURED, None, "")
    word = BANDS.name(harm.estimate)
    reason = f"noise in {window.name} costs {_cost(diagnosis, window)}, undecided between {' and '.join(_ends(window))}"
    return Standing(_BY_BAND[BANDS.names.index(word)], word, harm.estimate, reason)


def _ends(result: WindowResult | OperatorResult) -> tuple[str, ...]:
    bands = result.verdict.bands or (UNDECIDED,)
    return tuple(dict.fromkeys((bands[0], bands[-1])))


def _cost(diagnosis: Diagnosis, result: WindowResult | OperatorResult) -> str:
    harm = result.answer.harm
    return "an amount that was not measured" if harm is None else shown_harm(diagnosis.setting, harm)


def _by_share(diagnosis: Diagnosis) -> dict[int, Standing]:
    """Of a metric without limits: by how much of all harm a layer and those above it make up."""
    harms = _least(diagnosis)
    order = sorted(harms, key=lambda layer: -harms[layer])
    whole = sum(harms.values())
    found, before = {}, 0.0
    for rank, layer in enumerate(order, start=1):
        share = before / whole if whole > 0 else 1.0
        priority = 1 if share < _MOST else 2 if share < _NEARLY_ALL else 3
        reason = f"number {rank} of {len(order)} by harm; those before it make up {share:.0%} of all"
        found[layer] = Standing(priority, "note", harms[layer], reason)
        before += harms[layer]
    for layer in range(diagnosis.setting.layers):
        found.setdefault(layer, Standing(_UNKNOWN, NOT_MEASURED, None, "no window with it was measured"))
    return found


def _least(diagnosis: Diagnosis) -> Mapping[int, float]:
    """The harm of the least harmful window of each layer: as measured if all were, else as predicted."""
    measured = {w.layers: w.answer.harm.estimate for w in diagnosis.windows if w.answer.harm is not None}
    predicted = {w.layers: w.predicted for w in diagnosis.windows if w.predicted is not None}
    values = measured if len(measured) == len(diagnosis.windows) or not predicted else predicted
    found: dict[int, float] = {}
    for layers, value in values.items():
        for layer in layers:
            found[layer] = min(found.get(layer, value), value)
    return {layer: max(value, 0.0) for layer, value in found.items()}


def operator_standings(diagnosis: Diagnosis) -> Iterator[tuple[str, Standing]]:
    """Of every operator that was measured and has limits."""
    for result in diagnosis.operators:
        harm, score = result.answer.harm, result.score
        if harm is None or score is None:
            continue
        verdict = result.verdict
        word = verdict.name if verdict.decided else SCORES.name(score.estimate)
        open_ = "" if verdict.decided else f", undecided between {' and '.join(_ends(result))}"
        reason = f"noise in {result.operator} alone costs {_cost(diagnosis, result)}, score {score.estimate:.2g}{open_}"
        yield result.operator, Standing(_BY_SCORE[SCORES.names.index(word)], word, harm.estimate, reason)
