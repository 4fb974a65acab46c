"""How a model holds out against more and more noise everywhere: score and retention by level, and where it breaks.

It tells no operator and no layer from another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from noisescope.core.errors import BadInputError
from noisescope.core.records import Finding, Reading, Trial, is_number
from noisescope.diagnose.harm import Measured, clean_score, percent, score_of, yardstick
from noisescope.diagnose.ledger import Control, Ledger
from noisescope.diagnose.setting import Setting, Unit
from noisescope.diagnose.trust import control_findings
from noisescope.measure.indices import BRITTLENESS, TOLERANCE, CriticalThreshold, next_scale, noise_tolerance_index
from noisescope.measure.metrics import METRICS
from noisescope.measure.power_law import PowerLaw, fit_power_law
from noisescope.measure.statistics import Interval
from noisescope.measure.verdicts import Limits

LEVELS = (0.0, 0.05, 0.10)
_LESS, _MORE = "less", "more"


@dataclass(frozen=True)
class RobustnessQuestion:
    """Which levels of noise are measured, in all seeds, and whether to look for the scale that costs too much.

    The levels are scales of noise in all operators, or in those named. `cost`, `top` and `tolerance` say what is too
    much, the largest scale that is tried, and how near the answer has to be.
    """

    setting: Setting
    levels: tuple[float, ...] = LEVELS
    operators: tuple[str, ...] | None = None
    seeks_threshold: bool = True
    cost: float = 0.10
    top: float = 0.2
    tolerance: float = 0.001

    def __post_init__(self) -> None:
        wrong = [level for level in self.levels if not is_number(level) or not 0 <= level < float("inf")]
        if wrong or len(set(self.levels)) != len(self.levels) or not self.levels:
            raise BadInputError(f"noise levels {self.levels!r}: expected finite numbers >= 0, each only once.")
        object.__setattr__(self, "levels", tuple(float(level) for level in sorted(self.levels)))

    def plan(self, known: Mapping[str, Reading], /) -> Sequence[Trial]:
        return tuple(self._walk(known, is_final=False)[0].asked.values())

    def conclude(self, known: Mapping[str, Reading], /) -> Robustness:
        ledger, threshold = self._walk(known, is_final=True)
        levels = tuple(_level(ledger, self.unit(level)) for level in self.levels)
        sure = _sure(ledger, self) if self.is_sought else None
        findings = (*control_findings(ledger.control), *_findings(ledger, self, levels, threshold))
        return Robustness(
            ledger.setting,
            levels,
            threshold,
            sure,
            _law(ledger, self),
            findings,
            ledger.control,
            ledger.cost,
            ledger.gaps,
        )

    def unit(self, scale: float) -> Unit:
        """Noise of one scale everywhere."""
        return Unit(operators=self.operators, scale=float(scale))

    @property
    def is_sought(self) -> bool:
        """Whether there is a scale to look for: a metric that is 0 when clean has no share to lose."""
        return self.seeks_threshold and yardstick(self.setting).is_share

    def _walk(self, known: Mapping[str, Reading], *, is_final: bool) -> tuple[Ledger, CriticalThreshold | None]:
        """All levels in all seeds; then one scale after the other, each until it is decided on which side it is."""
        setting = replace(self.setting, budget=None, exhaustive=False)
        ledger = Ledger(setting, known, is_final=is_final)
        ledger.open(thoroughly=True)
        sides = Limits((self.cost,), (_LESS, _MORE)) if yardstick(setting).is_share else None
        units = [self.unit(level) for level in self.levels if level > 0]
        if not ledger.climb(units, sides, rounds=len(setting.seeds), until_decided=False) or not self.is_sought:
            return ledger, None
        while ledger.is_sound:
            step = next_scale(_costs(ledger), cost=self.cost, top=self.top, tolerance=self.tolerance)
            if isinstance(step, CriticalThreshold):
                return ledger, step
            ledger.climb([self.unit(step)], sides, rounds=len(setting.seeds))
            if ledger.measured(self.unit(step)) is None:
                break
        return ledger, None


def _costs(ledger: Ledger) -> dict[float, float]:
    """The degradation at every scale that was measured without a gap."""
    found = {}
    for unit in ledger.climbs:
        harm = ledger.answer(unit).harm
        if unit.scale is not None and harm is not None and ledger.measured(unit) is not None:
            found[unit.scale] = harm.estimate
    return found


@dataclass(frozen=True)
class LevelResult:
    """What noise of one scale everywhere leaves of the score.

    `retention` is the share of the score that is kept: noisy over clean, or clean over noisy where less is better.
    `tolerance` is 1 / degradation. `is_verified` says that every trial behind it counted injections, of which there
    were `injections` in all, and was run by a bench that refuses one that changes nothing.
    """

    scale: float
    score: Interval | None
    degradation: Interval | None
    retention: Interval | None
    tolerance: float | None
    grade: str
    rounds: int
    nonfinite: int
    is_verified: bool
    gaps: tuple[str, ...] = ()
    trials: tuple[str, ...] = ()
    injections: int = 0


@dataclass(frozen=True)
class Robustness:
    """The levels, the scale at which the model breaks, and how harm grows with the scale.

    `sure` are the largest scale that is decided to cost less, 0 if need be, and the smallest that is decided to cost
    more, None where there is none. `law` is fitted to the mean harm at all scales that were measured in all seeds.
    """

    setting: Setting
    levels: tuple[LevelResult, ...]
    threshold: CriticalThreshold | None
    sure: tuple[float, float | None] | None
    law: PowerLaw | None
    findings: tuple[Finding, ...]
    control: Control
    cost: float
    unmeasured: tuple[str, ...] = ()


def _level(ledger: Ledger, unit: Unit) -> LevelResult:
    scale = unit.scale or 0.0
    if scale == 0.0:
        return _clean_level(ledger)
    answer, measured = ledger.answer(unit), ledger.measured(unit)
    is_share = yardstick(ledger.setting).is_share
    counts = ledger.climbs[unit].injections if unit in ledger.climbs else []
    gaps = answer.gaps or _silent(counts)
    if measured is None or answer.harm is None or gaps:
        return LevelResult(
            scale, None, None, None, None, "undefined", 0, answer.nonfinite, is_verified=False, gaps=gaps
        )
    harm = answer.harm
    index = noise_tolerance_index(harm.estimate) if is_share else None
    return LevelResult(
        scale,
        score_of(ledger.setting, measured.noisy),
        harm if is_share else None,
        retention_of(ledger.setting, harm) if is_share else None,
        index,
        TOLERANCE.grade(index),
        answer.rounds,
        answer.nonfinite,
        True,
        gaps,
        answer.trials,
        sum(counts),
    )


def _silent(counts: Sequence[int]) -> tuple[str, ...]:
    """That noise was asked for and some trial made none; nothing where all did."""
    silent = sum(count == 0 for count in counts)
    return (f"{silent} of {len(counts)} trials made no injection",) if silent else ()


def _clean_level(ledger: Ledger) -> LevelResult:
    """Level 0 is the baseline; that the control equals it has been seen to on all samples."""
    clean = ledger.clean
    if clean is None or ledger.control.holds is not True:
        return LevelResult(0.0, None, None, None, None, "undefined", 0, 0, is_verified=False, gaps=ledger.control.gaps)
    is_share, samples = yardstick(ledger.setting).is_share, len(clean)
    none, all_ = (Interval(value, value, value, ledger.setting.confidence, samples) for value in (0.0, 1.0))
    index = noise_tolerance_index(0.0) if is_share else None
    return LevelResult(
        0.0,
        clean_score(ledger.setting, clean),
        none if is_share else None,
        all_ if is_share else None,
        index,
        TOLERANCE.grade(index),
        1,
        0,
        is_verified=True,
    )


def retention_of(setting: Setting, degradation: Interval) -> Interval:
    """The share of the score that a degradation leaves."""

    def kept(lost: float) -> float:
        return 1.0 - lost if METRICS[setting.metric].higher_is_better else 1.0 / (1.0 + lost)

    middle, low, high = (kept(value) for value in (degradation.estimate, degradation.high, degradation.low))
    return Interval(middle, low, high, degradation.confidence, degradation.samples)


def _sure(ledger: Ledger, question: RobustnessQuestion) -> tuple[float, float | None]:
    sides: dict[str, list[float]] = {_LESS: [], _MORE: []}
    for unit in ledger.climbs:
        verdict = ledger.verdict(unit)
        if verdict.decided and unit.scale is not None and unit.scale <= question.top:
            sides[verdict.name].append(unit.scale)
    return max(sides[_LESS], default=0.0), min(sides[_MORE], default=None)


def _law(ledger: Ledger, question: RobustnessQuestion) -> PowerLaw | None:
    """How mean harm grows with the scale; None below 2 scales, or where some scale does no harm on the whole."""
    by, rounds = yardstick(ledger.setting), len(ledger.setting.seeds)
    rows: dict[float, Measured] = {}
    for unit in ledger.climbs:
        measured = ledger.measured(unit)
        if unit.scale is not None and measured is not None and measured.rounds == rounds:
            rows[unit.scale] = measured
    scales = sorted(rows)
    harm = [by.of_samples(rows[scale]).mean(axis=0) for scale in scales]
    if len(scales) < 2 or any(row.mean() <= 0.0 for row in harm):
        return None
    return fit_power_law(scales, np.stack(harm), confidence=question.setting.confidence)


def _findings(
    ledger: Ledger, question: RobustnessQuestion, levels: Sequence[LevelResult], threshold: CriticalThreshold | None
) -> list[Finding]:
    found = [_gap(level) for level in levels if level.gaps]
    if threshold is not None:
        found.append(_breaking(ledger.setting, question, threshold))
    elif question.is_sought and ledger.gaps:
        statement = f"The scale that costs {question.cost:.0%} is undecided: {ledger.gaps[0]}"
        found.append(Finding(statement, "undecided", decided=False))
    found += [_kept(ledger.setting, level) for level in levels if level.scale > 0 and level.retention is not None]
    return found


def _gap(level: LevelResult) -> Finding:
    return Finding(
        f"noise of {level.scale:g}: undecided, {level.gaps[0]}", "undecided", (), level.trials, decided=False
    )


def _kept(setting: Setting, level: LevelResult) -> Finding:
    kept = "nothing measured" if level.retention is None else percent(level.retention)
    figures = () if level.retention is None else (("retention", level.retention.estimate), ("scale", level.scale))
    return Finding(f"Noise of {level.scale:g} leaves {kept} of the {setting.metric}", "note", figures, level.trials)


def _breaking(setting: Setting, question: RobustnessQuestion, threshold: CriticalThreshold) -> Finding:
    if threshold.scale is None:
        statement = f"Noise up to {question.top:g} costs less than {question.cost:.0%} of the {setting.metric}"
        return Finding(statement, "note")
    statement = (
        f"Noise of {threshold.scale:.4g} costs {question.cost:.0%} of the {setting.metric}: {threshold.brittleness} "
        f"brittleness (limits {', '.join(f'{limit:g}' for limit in BRITTLENESS.limits)})"
    )
    severity = {"low": "note", "moderate": "moderate", "high": "high", "critical": "critical"}[threshold.brittleness]
    return Finding(statement, severity, (("critical threshold", threshold.scale), ("below", threshold.low)))
