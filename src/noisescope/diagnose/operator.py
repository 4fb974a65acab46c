"""Level 1: how much each operator kind, perturbed everywhere at once, costs the model.

The score is the degradation over the scale of the noise. It does not look at layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from noisescope.core.records import Finding
from noisescope.diagnose.harm import Measured, percent, shared, yardstick
from noisescope.diagnose.ledger import Answer, Ledger
from noisescope.diagnose.setting import Setting, Unit
from noisescope.measure.ranks import UnitRank, rank_units
from noisescope.measure.statistics import Interval, Resampling
from noisescope.measure.verdicts import Limits, Verdict

SCORES = Limits((1.5, 3.0), ("ROBUST", "MODERATE", "CRITICAL"))


@dataclass(frozen=True)
class OperatorResult:
    """One operator kind. `rank` says which ranks it may have; None where it was not measured without a gap.

    Of a metric that is 0 when clean there is no score, and bands do not apply.
    """

    operator: str
    answer: Answer
    score: Interval | None
    rank: UnitRank | None

    @property
    def verdict(self) -> Verdict:
        return self.answer.verdict


@dataclass(frozen=True)
class OperatorLevel:
    """All operators, the most harmful first as far as that is known, and the groups whose order is not decided."""

    operators: tuple[OperatorResult, ...] = ()
    ties: tuple[tuple[str, ...], ...] = ()


def limits_of(setting: Setting, limits: Limits = SCORES) -> Limits | None:
    """Limits of a score as limits of a degradation; None where bands do not apply."""
    if not yardstick(setting).is_share:
        return None
    return Limits(tuple(value * setting.scale for value in limits.values), limits.names)


def units_of(setting: Setting) -> dict[str, Unit]:
    """What is perturbed for each operator."""
    return {name: Unit(operators=(name,)) for name in setting.operators}


def climb_operators(ledger: Ledger) -> bool:
    """Measure each operator for one round over the samples; False while readings are awaited."""
    rounds = len(ledger.setting.seeds) if ledger.setting.exhaustive else 1
    return ledger.climb(units_of(ledger.setting).values(), limits_of(ledger.setting), rounds=rounds)


def conclude_operators(ledger: Ledger) -> OperatorLevel:
    """Results, the most harmful first, those without a figure last."""
    units = units_of(ledger.setting)
    ranks, ties = _ranks(ledger, units)
    results = [_result(ledger, name, unit, ranks.get(name)) for name, unit in units.items()]
    return OperatorLevel(tuple(sorted(results, key=_place)), ties)


def _place(result: OperatorResult) -> tuple[bool, float]:
    harm = result.answer.harm
    return harm is None or bool(result.answer.gaps), -(harm.estimate if harm else 0.0)


def _result(ledger: Ledger, name: str, unit: Unit, rank: UnitRank | None) -> OperatorResult:
    answer = ledger.answer(unit)
    is_scored = yardstick(ledger.setting).is_share and answer.harm is not None
    score = answer.harm.scaled(1.0 / ledger.setting.scale) if is_scored and answer.harm else None
    return OperatorResult(name, answer, score, rank)


def _ranks(ledger: Ledger, units: Mapping[str, Unit]) -> tuple[dict[str, UnitRank], tuple[tuple[str, ...], ...]]:
    """Ranks among the operators that were measured without a gap, on the samples that all of them have."""
    found = {name: ledger.measured(unit) for name, unit in units.items()}
    whole: dict[str, Measured] = {name: measured for name, measured in found.items() if measured is not None}
    if len(whole) < 2:
        return {}, ()
    by, names = yardstick(ledger.setting), tuple(whole)
    harm = np.stack([by.of_samples(part).mean(axis=0) for part in shared(tuple(whole.values()))])
    ranking = rank_units(harm, plan=Resampling(ledger.setting.confidence, min(by.resamples, 2000)))
    ties = tuple(tuple(names[unit] for unit in group) for group in ranking.groups if len(group) > 1)
    return {names[rank.unit]: rank for rank in ranking.units}, ties


def operator_findings(setting: Setting, results: Sequence[OperatorResult]) -> tuple[Finding, ...]:
    """A statement on every operator that is not robust, or not decided."""
    found = [_finding(setting, result) for result in results]
    return tuple(finding for finding in found if finding is not None)


def scale_findings(setting: Setting) -> tuple[Finding, ...]:
    """A warning where the noise is so strong that losing everything is no score above the last limit."""
    by, largest = yardstick(setting), 1.0 / setting.scale
    if not by.is_share or not by.is_bounded or largest > SCORES.values[-1]:
        return ()
    statement = (
        f"At a noise scale of {setting.scale:g} no score (degradation / scale) can exceed {largest:.3g}, and "
        f"{SCORES.names[-1]} begins above {SCORES.values[-1]:g}: operators are judged too kindly. Take a scale below "
        f"{1.0 / SCORES.values[-1]:.2f}, or a metric without a ceiling, such as nll."
    )
    return (Finding(statement, "warning", (("largest score", largest),)),)


def _finding(setting: Setting, result: OperatorResult) -> Finding | None:
    answer, score = result.answer, result.score
    verdict = answer.verdict
    if answer.gaps:
        return Finding(f"{result.operator}: undecided, {answer.gaps[0]}", "undecided", (), answer.trials, decided=False)
    if score is None or answer.harm is None or verdict.name == SCORES.names[0]:
        return None
    figures = _figures(score, answer)
    share = f"costs {percent(answer.harm)} of the {setting.metric}"
    if not verdict.decided:
        between = " or ".join(verdict.bands)
        more = "" if verdict.more_samples is None else f"; about {verdict.more_samples} more samples would decide"
        statement = f"{result.operator}: {between}, noise of {setting.scale:g} {share}{more}"
        return Finding(statement, "undecided", figures, answer.trials, decided=False)
    statement = f"{result.operator} is {verdict.name}: noise of {setting.scale:g} {share}"
    return Finding(statement, verdict.name.lower(), figures, answer.trials)


def _figures(score: Interval, answer: Answer) -> tuple[tuple[str, float], ...]:
    named = {"score": score.estimate, "score low": score.low, "score high": score.high, "samples": score.samples}
    return (*((name, float(value)) for name, value in named.items()), ("rounds", float(answer.rounds)))


def climb_undecided(ledger: Ledger, units: Iterable[Unit], limits: Limits | None, reserve: float = 0.0) -> bool:
    """More seeds for what one round left undecided, first for what the fewest more samples would decide."""
    open_ = [unit for unit in units if unit in ledger.climbs and ledger.climbs[unit].is_open]
    ranked = sorted(open_, key=lambda unit: _more(ledger.verdict(unit)))
    if limits is None:
        return not ledger.waits
    return ledger.climb(ranked, limits, rounds=len(ledger.setting.seeds), reserve=reserve)


def _more(verdict: Verdict) -> float:
    return float("inf") if verdict.more_samples is None else verdict.more_samples
