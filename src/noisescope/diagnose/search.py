"""Which windows are measured: all of them, or those that the predicted harm makes the most of.

By prediction: the highest peaks and a random control group first; then down the predicted ranking, halving each
stretch between two measured windows whose verdicts differ. What lies between two that agree has their verdict. Runs of
windows from which little is expected are then measured as wholes, for what a prediction by sums cannot see: if a run
together is robust, so is each window in it, given that more noise does no less harm; if not, it is halved until the
window is found. It judges nothing itself.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from noisescope.core.errors import BadInputError
from noisescope.diagnose.ledger import Ledger
from noisescope.diagnose.operator import climb_undecided
from noisescope.diagnose.setting import span_name
from noisescope.diagnose.window import (
    AVALANCHE,
    MEASURED,
    AvalanchePoint,
    Layers,
    WindowQuestion,
    WindowResult,
    avalanche_points,
    unit_of,
    window_results,
)
from noisescope.measure.correlations import Correlation, correlate
from noisescope.measure.statistics import Resampling
from noisescope.measure.verdicts import Verdict

Bands = tuple[str, ...]
# Windows whose interaction is looked into, each at the cost of all its layers.
_LOOKED_INTO = 2
# A run of windows is measured as a whole if it is expected to cost this share of the first limit at most: more could
# not be told from the limit.
_HOPEFUL = 0.4


def climb_windows(ledger: Ledger, question: WindowQuestion) -> bool:
    """Measure what the budget allows of the windows; False while readings are awaited."""
    if not question.is_screened:
        rounds = len(ledger.setting.seeds) if ledger.setting.exhaustive else 1
        units = [unit_of(layers) for layers in question.windows]
        singles = [unit_of((layer,)) for layer in range(ledger.setting.layers)] if ledger.setting.exhaustive else []
        if not ledger.climb([*units, *singles], question.bands, rounds=rounds):
            return False
    told_apart = (_compare_neighbours, _look_into)
    screened = (_begin, _find_bounds, *told_apart, _cover) if question.is_screened else ()
    return all(stage(ledger, question) for stage in (*screened, *told_apart))


def climb_more(ledger: Ledger, question: WindowQuestion) -> bool:
    """What is left of the budget: windows not measured so far, then more seeds for what is still undecided.

    Where bands do not apply nothing is decided, and windows are measured down the ranking.
    """
    if question.bands is None:
        reserve = _LOOKED_INTO * question.size if question.is_screened else 0.0
        units = [unit_of(layers) for layers in ranking(question)]
        return ledger.climb(units, None, reserve=reserve) and _look_into(ledger, question)
    if question.is_screened and not _refine(ledger, question):
        return False
    return climb_undecided(ledger, [unit_of(layers) for layers in question.windows], question.bands)


def ranking(question: WindowQuestion) -> list[Layers]:
    """All windows, the most harmful by prediction first."""
    return sorted(question.windows, key=lambda layers: (-(question.prediction(layers) or 0.0), layers))


def peaks(question: WindowQuestion) -> list[Layers]:
    """The windows that are predicted to be the worst, none overlapping another."""
    chosen: list[Layers] = []
    for layers in ranking(question):
        if len(chosen) < question.candidates and not any(set(layers) & set(other) for other in chosen):
            chosen.append(layers)
    return chosen


def control_group(question: WindowQuestion) -> list[Layers]:
    """Windows drawn at random from the rest, and the one that is predicted to be the least harmful."""
    order = ranking(question)
    rest = [layers for layers in order[:-1] if layers not in peaks(question)]
    drawn = random.Random(question.setting.seeds[0]).sample(  # noqa: S311
        rest, min(question.controls, len(rest))
    )
    return [*drawn, order[-1]]


def _begin(ledger: Ledger, question: WindowQuestion) -> bool:
    return _climb(ledger, question, [*peaks(question), *control_group(question)])


def _climb(ledger: Ledger, question: WindowQuestion, windows: Sequence[Layers], *, fully: bool = False) -> bool:
    units = [unit_of(layers) for layers in windows]
    return ledger.climb(units, question.bands, until_decided=not fully)


def _find_bounds(ledger: Ledger, question: WindowQuestion) -> bool:
    """Halve the stretches of the ranking between measured windows that cannot have the same verdict."""
    return _halve(ledger, question, lambda above, below: not set(above) & set(below))


def _refine(ledger: Ledger, question: WindowQuestion) -> bool:
    """Halve the stretches between all that differ, if only in what is undecided about them."""
    return _halve(ledger, question, lambda above, below: above != below)


def _halve(ledger: Ledger, question: WindowQuestion, differ: Callable[[Bands, Bands], bool]) -> bool:
    order, tried = ranking(question), set[Layers]()
    while question.bands is not None and not ledger.waits:
        settled = _contained(ledger, question)
        places = [place for place, layers in enumerate(order) if ledger.measured(unit_of(layers)) is not None]
        probes = [
            order[(above + below) // 2]
            for above, below in itertools.pairwise(places)
            if below - above > 1
            if differ(*(ledger.verdict(unit_of(order[place])).bands for place in (above, below)))
        ]
        probes = [layers for layers in probes if layers not in tried and layers not in settled]
        if not probes:
            break
        tried.update(probes)
        _climb(ledger, question, probes)
    return not ledger.waits


def _compare_neighbours(ledger: Ledger, question: WindowQuestion) -> bool:
    """What may be an avalanche point, in full and beside it the windows that it is compared with."""
    if question.bands is None:
        return not ledger.waits
    found: list[Layers] = []
    for layers, harm in _measured(ledger, question):
        if harm > AVALANCHE and not _overlaps(layers, found):
            found.append(layers)
    return _climb(ledger, question, [w for layers in found for w in (layers, *question.beside(layers))], fully=True)


def _overlaps(layers: Layers, others: Sequence[Layers]) -> bool:
    return any(set(layers) & set(other) for other in others)


def _measured(ledger: Ledger, question: WindowQuestion) -> list[tuple[Layers, float]]:
    """The measured windows with their harm, worst first."""
    answers = {layers: ledger.answer(unit_of(layers)) for layers in question.windows}
    harms = [(layers, a.harm.estimate) for layers, a in answers.items() if a.harm is not None and not a.gaps]
    return sorted(harms, key=lambda pair: (-pair[1], pair[0]))


def _look_into(ledger: Ledger, question: WindowQuestion) -> bool:
    """The layers, one by one, of the worst windows that do not overlap."""
    chosen: list[Layers] = []
    least = question.limits.values[0] if question.bands is not None else 0.0
    for layers, harm in _measured(ledger, question):
        if len(chosen) < _LOOKED_INTO and harm > least and not _overlaps(layers, chosen):
            chosen.append(layers)
    parts = [part for layers in chosen for part in (layers, *((layer,) for layer in layers))]
    return _climb(ledger, question, parts, fully=True)


def _cover(ledger: Ledger, question: WindowQuestion) -> bool:
    """Measure runs of windows that are expected to be robust together; halve what turns out not to be."""
    runs = _runs(ledger, question) if question.bands is not None else []
    while runs and not ledger.waits:
        if not _climb(ledger, question, [_layers_of(run) for run in runs]):
            return False
        runs = [half for run in runs if len(run) > 1 and _is_harmful(ledger, question, run) for half in _halves(run)]
    return not ledger.waits


def _runs(ledger: Ledger, question: WindowQuestion) -> list[list[Layers]]:
    """Overlapping windows that were not measured, as many together as are expected to be robust still."""
    most, rate = _HOPEFUL * question.limits.values[0], _rate(ledger, question)
    runs: list[list[Layers]] = []
    for layers in question.windows:
        if ledger.measured(unit_of(layers)) is not None or rate * (question.prediction(layers) or 0.0) > most:
            continue
        last = runs[-1] if runs else []
        together = _layers_of([*last, layers])
        if last and last[-1][-1] >= layers[0] and rate * (question.prediction(together) or 0.0) <= most:
            last.append(layers)
        else:
            runs.append([layers])
    return runs


def _rate(ledger: Ledger, question: WindowQuestion) -> float:
    """Harm per predicted harm, over the measured windows together."""
    found = _measured(ledger, question)
    predicted = sum(question.prediction(layers) or 0.0 for layers, _ in found)
    return max(0.0, sum(harm for _, harm in found)) / predicted if predicted > 0.0 else 0.0


def _layers_of(run: Sequence[Layers]) -> Layers:
    return tuple(range(run[0][0], run[-1][-1] + 1))


def _halves(run: Sequence[Layers]) -> list[list[Layers]]:
    middle = len(run) // 2
    return [list(run[:middle]), list(run[middle:])]


def _is_harmful(ledger: Ledger, question: WindowQuestion, run: Sequence[Layers]) -> bool:
    harm = ledger.answer(unit_of(_layers_of(run))).harm
    return harm is not None and harm.estimate > question.limits.values[0]


def conclude_windows(ledger: Ledger, question: WindowQuestion) -> tuple[WindowResult, ...]:
    """A result for every window: from measuring it, or inferred from what was measured."""
    results = window_results(ledger, question)
    if not question.is_screened or question.bands is None:
        return results
    adjusted = {result.layers: result.verdict for result in results if result.evidence == MEASURED}
    inferred = _ranked_between(ledger, question, adjusted) | _contained(ledger, question)
    return tuple(_inferred(result, inferred.get(result.layers)) for result in results)


def _inferred(result: WindowResult, found: tuple[Verdict, str] | None) -> WindowResult:
    if found is None or result.evidence == MEASURED or result.answer.gaps:
        return result
    verdict, reason = found
    return replace(result, answer=replace(result.answer, verdict=verdict), evidence=reason)


def _ranked_between(
    ledger: Ledger, question: WindowQuestion, adjusted: Mapping[Layers, Verdict] | None = None
) -> dict[Layers, tuple[Verdict, str]]:
    """The verdict of a window that was not measured, where those next to it in the ranking are decided and agree."""
    order = ranking(question)
    verdicts = {
        layers: (adjusted or {}).get(layers, ledger.verdict(unit_of(layers)))
        for layers in order
        if ledger.measured(unit_of(layers)) is not None
    }
    found: dict[Layers, tuple[Verdict, str]] = {}
    for place, layers in enumerate(order):
        above = next((other for other in reversed(order[:place]) if other in verdicts), None)
        below = next((other for other in order[place + 1 :] if other in verdicts), None)
        if layers in verdicts or above is None or below is None:
            continue
        verdict = verdicts[above]
        if verdict.decided and verdict.bands == verdicts[below].bands:
            reason = f"ranked between {span_name(above)} and {span_name(below)}"
            found[layers] = (Verdict(verdict.name, verdict.bands), reason)
    return found


def _contained(ledger: Ledger, question: WindowQuestion) -> dict[Layers, tuple[Verdict, str]]:
    """Windows inside a longer run of layers that was measured and is robust."""
    robust = question.limits.names[0]
    runs = [
        unit.layers
        for unit in ledger.climbs
        if unit.operators is None and unit.layers is not None and len(unit.layers) > question.size
        if ledger.verdict(unit).bands == (robust,)
    ]
    return {
        layers: (Verdict(robust, (robust,)), f"inside {span_name(run)}, which together are {robust}")
        for layers in question.windows
        for run in runs
        if set(layers) <= set(run)
    }


@dataclass(frozen=True)
class WindowLevel:
    """All windows in the order of the layers, where errors pile up, and how well screening ranked what was measured."""

    windows: tuple[WindowResult, ...] = ()
    points: tuple[AvalanchePoint, ...] = ()
    agreement: Correlation | None = None


def agreement(ledger: Ledger, question: WindowQuestion) -> Correlation | None:
    """Spearman's correlation of predicted and measured harm over the measured windows; None below 4 or if constant."""
    found = _measured(ledger, question)
    if not question.predicted or len(found) < 4:
        return None
    predicted = [question.prediction(layers) or 0.0 for layers, _ in found]
    return correlated(predicted, [harm for _, harm in found], ledger.setting.confidence)


def correlated(first: Sequence[float], second: Sequence[float], confidence: float) -> Correlation | None:
    """The rank correlation, or None where one side is constant or there are fewer than 4 units."""
    try:
        return correlate(first, second, plan=Resampling(confidence, 2000))
    except BadInputError:
        return None


def conclude_level(ledger: Ledger, question: WindowQuestion) -> WindowLevel:
    """The level as a whole."""
    results = conclude_windows(ledger, question)
    return WindowLevel(results, avalanche_points(results), agreement(ledger, question))
