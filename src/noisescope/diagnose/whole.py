"""A whole diagnosis: operators, windows and channels within one budget, what follows from them, and the risk.

It is a pure question: what it plans is run elsewhere, and channels are judged from summaries that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from noisescope.core.errors import BadInputError
from noisescope.core.records import Finding, Reading, Trial
from noisescope.diagnose.channel import ChannelLevel, channel_findings
from noisescope.diagnose.findings import window_findings
from noisescope.diagnose.harm import clean_score
from noisescope.diagnose.ledger import Control, Ledger
from noisescope.diagnose.operator import (
    SCORES,
    OperatorLevel,
    OperatorResult,
    climb_operators,
    climb_undecided,
    conclude_operators,
    limits_of,
    operator_findings,
    scale_findings,
    units_of,
)
from noisescope.diagnose.search import WindowLevel, climb_more, climb_windows, conclude_level, correlated
from noisescope.diagnose.setting import Setting, Unit
from noisescope.diagnose.trust import control_findings, nonfinite_findings, unit_findings
from noisescope.diagnose.window import AvalanchePoint, WindowQuestion, WindowResult
from noisescope.measure.correlations import Correlation
from noisescope.measure.statistics import Interval

SEVERITIES = ("error", "critical", "high", "moderate", "warning", "undecided", "note")
_PER_OPERATOR, _PER_POINT, _PER_PERCENT = 30.0, 25.0, 5.0
_HIGH, _MODERATE = 100.0, 50.0
OUTLIERS_EXPECTED = 0.6
# The share of the budget that undecided operators leave to the windows.
_FOR_WINDOWS = 0.4


@dataclass(frozen=True)
class Risk:
    """30 points per critical operator, 25 per avalanche point, 5 per percent of outlier channels.

    Above 100 is HIGH, above 50 MODERATE, else LOW. Levels that were not asked about add nothing.
    """

    points: float
    level: str
    critical_operators: int
    avalanche_points: int
    outlier_percent: float


def risk_of(critical_operators: int, avalanche_points: int, outlier_percent: float) -> Risk:
    """The risk that the figures add up to."""
    points = _PER_OPERATOR * critical_operators + _PER_POINT * avalanche_points + _PER_PERCENT * outlier_percent
    level = "HIGH" if points > _HIGH else "MODERATE" if points > _MODERATE else "LOW"
    return Risk(points, level, critical_operators, avalanche_points, outlier_percent)


@dataclass(frozen=True)
class Diagnosis:
    """What was found out about a model.

    `clean` is the score without noise, `agreement` how well screening ranked the windows that were measured, `cost` in
    clean evaluations with what was spent before. `unmeasured` says what failed or is missing, and what the budget left
    out.
    """

    setting: Setting
    clean: Interval | None
    operators: tuple[OperatorResult, ...]
    ties: tuple[tuple[str, ...], ...]
    windows: tuple[WindowResult, ...]
    points: tuple[AvalanchePoint, ...]
    agreement: Correlation | None
    channels: ChannelLevel | None
    findings: tuple[Finding, ...]
    risk: Risk
    control: Control
    cost: float
    unmeasured: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """Any of the three levels as one diagnosis: plan(known) asks for trials, conclude(known) answers.

    `windows` has a setting equal to this one; None leaves the level out, as does None for `channels`. `notes` are
    what was found before any trial was asked for.
    """

    setting: Setting
    operators: bool = True
    windows: WindowQuestion | None = None
    channels: ChannelLevel | None = None
    notes: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        if self.windows is not None and self.windows.setting != self.setting:
            raise BadInputError("windows have a setting of their own; expected the one of the whole question.")

    def plan(self, known: Mapping[str, Reading], /) -> Sequence[Trial]:
        return tuple(self._walk(known, is_final=False).asked.values())

    def conclude(self, known: Mapping[str, Reading], /) -> Diagnosis:
        ledger = self._walk(known, is_final=True)
        by_operator = conclude_operators(ledger) if self.operators else OperatorLevel()
        by_window = conclude_level(ledger, self.windows) if self.windows else WindowLevel()
        channels = _correlated(self, by_window)
        answers = [one.answer for one in by_operator.operators] + [one.answer for one in by_window.windows]
        findings = (
            *control_findings(ledger.control),
            *operator_findings(self.setting, by_operator.operators),
            *(window_findings(self.windows, by_window) if self.windows else ()),
            *(channel_findings(channels) if channels else ()),
            *(_correlation_findings(channels) if channels else ()),
            *self.notes,
            *nonfinite_findings(answers),
            *unit_findings(self.setting),
            *(scale_findings(self.setting) if self.operators else ()),
        )
        critical = sum(result.verdict.name == SCORES.names[-1] for result in by_operator.operators)
        return Diagnosis(
            self.setting,
            None if ledger.clean is None else clean_score(self.setting, ledger.clean),
            by_operator.operators,
            by_operator.ties,
            by_window.windows,
            by_window.points,
            by_window.agreement,
            channels,
            tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))),
            risk_of(critical, len(by_window.points), channels.percentage if channels else 0.0),
            ledger.control,
            ledger.cost + self.setting.spent,
            (*ledger.gaps, *_left_out(ledger, by_window.windows)),
        )

    def _walk(self, known: Mapping[str, Reading], *, is_final: bool) -> Ledger:
        """Operators first, then windows, then more seeds for what is still undecided, while the budget lasts."""
        ledger = Ledger(self.setting, known, is_final=is_final)
        ledger.open()
        operators, limits = list(units_of(self.setting).values()) if self.operators else [], limits_of(self.setting)
        reserve = _FOR_WINDOWS * (self.setting.budget or 0.0) if self.windows else 0.0
        steps: tuple[Callable[[], bool], ...] = (
            lambda: not self.operators or climb_operators(ledger),
            lambda: climb_undecided(ledger, operators, limits, reserve),
            lambda: self.windows is None or climb_windows(ledger, self.windows),
            lambda: climb_undecided(ledger, operators, limits),
            lambda: self.windows is None or climb_more(ledger, self.windows),
        )
        all(step() for step in steps)
        return ledger


def _left_out(ledger: Ledger, windows: Sequence[WindowResult]) -> tuple[str, ...]:
    """What the budget had no room for, but for windows whose verdict follows from others."""
    settled = {result.layers for result in windows if result.verdict.decided}
    return tuple(
        reason
        for unit, reason in ledger.refused.items()
        if unit.operators is not None or not _windows_in(unit, windows) or not _windows_in(unit, windows) <= settled
    )


def _windows_in(unit: Unit, windows: Sequence[WindowResult]) -> set[tuple[int, ...]]:
    return {result.layers for result in windows if set(result.layers) <= set(unit.layers or ())}


def _correlated(question: Question, level: WindowLevel) -> ChannelLevel | None:
    """Channels with the correlation of outlier counts with the measured and the predicted harm of windows."""
    channels = question.channels
    if channels is None or not level.windows:
        return channels
    counts = {one.layer: one.outliers for one in channels.layers}
    pairs: dict[str, list[tuple[float, float]]] = {"measured harm of windows": [], "predicted harm of windows": []}
    for result in level.windows:
        count = float(sum(counts.get(layer, 0) for layer in result.layers))
        if result.answer.harm is not None and not result.answer.gaps:
            pairs["measured harm of windows"].append((count, result.answer.harm.estimate))
        if result.predicted is not None:
            pairs["predicted harm of windows"].append((count, result.predicted))
    confidence = question.setting.confidence
    found = {name: correlated(*_columns(rows), confidence) for name, rows in pairs.items()}
    return replace(channels, correlations=tuple((name, one) for name, one in found.items() if one is not None))


def _columns(rows: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [one for one, _ in rows], [other for _, other in rows]


def _correlation_findings(channels: ChannelLevel) -> list[Finding]:
    return [
        Finding(
            f"Outlier counts and the {name} correlate by {one.interval.estimate:.2f} ({one.interval.low:.2f} to "
            f"{one.interval.high:.2f}, p = {one.p_value:.2g}); more than {OUTLIERS_EXPECTED} was expected",
            "note",
            (("spearman", one.interval.estimate), ("p", one.p_value)),
        )
        for name, one in channels.correlations
    ]
