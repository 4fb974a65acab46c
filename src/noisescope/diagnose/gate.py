"""The gate: whether noise costs a checkpoint more than it cost a baseline on the same samples, or more than a limit.

It is a pure question. Whether two checkpoints may be compared at all is seen to where a baseline is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from noisescope.core.errors import BadInputError
from noisescope.core.records import Finding, Reading, Trial, is_number
from noisescope.diagnose.harm import Measured, clean_score, shown_harm, yardstick
from noisescope.diagnose.ledger import Control, Ledger
from noisescope.diagnose.operator import units_of
from noisescope.diagnose.setting import Setting
from noisescope.diagnose.trust import control_findings
from noisescope.measure.metrics import METRICS
from noisescope.measure.noninferiority import Cost, Excess, beyond, excess
from noisescope.measure.significance import holm
from noisescope.measure.statistics import Interval, Resampling, are_hits, difference
from noisescope.measure.verdicts import Limits, judge

WITHIN, BEYOND, UNDECIDED = "within", "beyond", "undecided"
PASSED, GATE_FAILED, ERROR = "pass", "fail", "error"
_SIDES = Limits((0.0,), (WITHIN, BEYOND))


@dataclass(frozen=True)
class GateRules:
    """What a checkpoint may lose: `factor` times what the baseline loses, and at most `max_degradation`.

    Losses up to `ignore_below` are not held against the baseline's: a multiple of next to nothing is next to nothing.
    """

    factor: float = 1.2
    max_degradation: float | None = 0.15
    ignore_below: float = 0.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        limit = self.max_degradation
        for name, value, least in (("factor", self.factor, 1.0), ("ignore_below", self.ignore_below, 0.0)):
            if not is_number(value) or not least <= value < float("inf"):
                raise BadInputError(f"{name} {value!r}: expected a number of at least {least:g}.")
        if limit is not None and (not is_number(limit) or not 0 < limit < float("inf")):
            raise BadInputError(f"max_degradation {limit!r}: expected a share above 0, such as 0.15.")
        if not 0.5 < self.confidence < 1.0:
            raise BadInputError(f"confidence {self.confidence!r}: expected a share such as 0.95.")


@dataclass(frozen=True)
class OperatorRows:
    """Noisy values of one operator, by round over the samples."""

    operator: str
    rows: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Fragility:
    """What noise costs a checkpoint, operator by operator, sample by sample. `gaps` say what could not be measured."""

    setting: Setting
    clean: tuple[float, ...]
    operators: tuple[OperatorRows, ...]
    gaps: tuple[str, ...] = ()

    def cost(self, operator: str) -> Cost | None:
        """Of one operator; None where it was not measured."""
        rows = next((one.rows for one in self.operators if one.operator == operator), None)
        if rows is None:
            return None
        by, logarithmic = yardstick(self.setting), METRICS[self.setting.metric].geometric
        harm = by.of_samples(Measured(self.clean, rows)).mean(axis=0)
        share_of = self.clean if by.is_share and not logarithmic else np.ones(len(self.clean))
        return Cost(harm, np.array(share_of), logarithmic, are_hits(self.clean, np.array(rows)))

    def interval(self, operator: str, confidence: float) -> Interval | None:
        """The harm of one operator by itself; None where it was not measured."""
        rows = next((one.rows for one in self.operators if one.operator == operator), None)
        if rows is None:
            return None
        by = yardstick(self.setting)
        return by.interval(self.clean, by.of_samples(Measured(self.clean, rows)), confidence)


def whole(setting: Setting) -> Setting:
    """The setting with all that the gate does not take up at its usual value: it measures everything in all seeds."""
    return replace(setting, budget=None, exhaustive=False, spent=0.0)


def fragility_of(setting: Setting, known: Mapping[str, Reading]) -> Fragility:
    """What readings say of a checkpoint under a setting; what is missing or failed is a gap."""
    ledger = _walk(whole(setting), known, is_final=True)
    return _fragility(ledger)


def _walk(setting: Setting, known: Mapping[str, Reading], *, is_final: bool) -> Ledger:
    ledger = Ledger(setting, known, is_final=is_final)
    ledger.open()
    ledger.climb(units_of(setting).values(), None, rounds=len(setting.seeds), until_decided=False)
    return ledger


def _fragility(ledger: Ledger) -> Fragility:
    rows = []
    gaps = list(ledger.gaps)
    for name, unit in units_of(ledger.setting).items():
        measured = ledger.measured(unit)
        if measured is not None and measured.rounds == len(ledger.setting.seeds):
            rows.append(OperatorRows(name, measured.noisy))
        elif not gaps:
            gaps.append(f"{name}: not measured")
    return Fragility(ledger.setting, ledger.clean or (), tuple(rows), tuple(gaps))


@dataclass(frozen=True)
class OperatorGate:
    """One operator at the gate. `excess` is its harm less the factor times the baseline's.

    `beyond` names the limits that it is shown to be above, the baseline's or the maximum. The p-values are adjusted
    for all limits of all operators, None where there is no such limit.
    """

    operator: str
    verdict: str
    harm: Interval | None
    baseline: Interval | None = None
    excess: Interval | None = None
    beyond: tuple[str, ...] = ()
    p_baseline: float | None = None
    p_maximum: float | None = None
    more_samples: int | None = None
    nonfinite: int = 0
    trials: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gate:
    """What the gate says of a checkpoint.

    "pass": every operator is shown to be within its limits; "fail": one at least is shown to be beyond; "undecided":
    neither; "error": it could not be measured. `clean_change` is what the clean score gained over the baseline's,
    negative where it got worse, in the metric's own unit.
    """

    setting: Setting
    rules: GateRules
    verdict: str
    operators: tuple[OperatorGate, ...]
    clean: Interval | None
    clean_change: Interval | None
    findings: tuple[Finding, ...]
    control: Control
    cost: float
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True)
class GateQuestion:
    """Noise in every operator in all seeds on all samples, and what follows beside a baseline, if there is one."""

    setting: Setting
    rules: GateRules = GateRules()
    baseline: Fragility | None = None

    def plan(self, known: Mapping[str, Reading], /) -> Sequence[Trial]:
        return tuple(_walk(whole(self.setting), known, is_final=False).asked.values())

    def conclude(self, known: Mapping[str, Reading], /) -> Gate:
        ledger = _walk(whole(self.setting), known, is_final=True)
        here = _fragility(ledger)
        is_sound = ledger.control.holds is True and not here.gaps
        operators = _judged(self, here, ledger) if is_sound else ()
        change = _clean_change(self, here) if is_sound else None
        return Gate(
            ledger.setting,
            self.rules,
            _verdict(operators),
            operators,
            clean_score(ledger.setting, ledger.clean) if ledger.clean is not None else None,
            change,
            (*control_findings(ledger.control), *_findings(self, operators, change, here.gaps)),
            ledger.control,
            ledger.cost,
            here.gaps,
        )


def _verdict(operators: Sequence[OperatorGate]) -> str:
    if not operators:
        return ERROR
    verdicts = {one.verdict for one in operators}
    return GATE_FAILED if BEYOND in verdicts else PASSED if verdicts == {WITHIN} else UNDECIDED


@dataclass(frozen=True)
class _Held:
    """One operator held against one limit: the p-values of either side, and the interval of what is above it."""

    operator: str
    limit: str
    p_above: float
    p_below: float
    more_samples: int | None
    excess: Interval


def _judged(question: GateQuestion, here: Fragility, ledger: Ledger) -> tuple[OperatorGate, ...]:
    """All operators, those beyond a limit first, then by harm."""
    held = [one for rows in here.operators for one in _held(question, here, rows.operator)]
    adjusted = holm([one.p_above for one in held]).tolist() if held else []
    found = [_one(question, here, ledger, rows.operator, held, adjusted) for rows in here.operators]
    order = (BEYOND, UNDECIDED, WITHIN)
    return tuple(sorted(found, key=lambda one: (order.index(one.verdict), -(one.harm.estimate if one.harm else 0.0))))


def _held(question: GateQuestion, here: Fragility, operator: str) -> list[_Held]:
    rules, by = question.rules, yardstick(here.setting)
    cost = here.cost(operator)
    other = question.baseline.cost(operator) if question.baseline else None
    # Fine enough for every limit of every operator at once.
    among = 2 * len(here.operators)
    found = []
    if cost is not None and other is not None:
        found.append(_against_baseline(question, operator, cost, other, among))
    if cost is not None and by.is_share and rules.max_degradation is not None:
        over = beyond(cost, rules.max_degradation, plan=_plan(question, among))
        found.append(_Held(operator, "maximum", over.p_above, over.p_below, _more(over), over.interval))
    return found


def _against_baseline(question: GateQuestion, operator: str, cost: Cost, other: Cost, among: int) -> _Held:
    """The limit is the larger of the factor times the baseline's cost, and what is ignored: it has to be above both."""
    rules = question.rules
    over = excess(cost, other, rules.factor, plan=_plan(question, among))
    least = beyond(cost, rules.ignore_below, plan=_plan(question, among))
    below = over.p_below if rules.ignore_below == 0.0 else min(1.0, 2.0 * min(over.p_below, least.p_below))
    shown = excess(cost, other, rules.factor, plan=Resampling(rules.confidence, question.setting.resamples)).interval
    return _Held(operator, "baseline", max(over.p_above, least.p_above), below, _more(over), shown)


def _plan(question: GateQuestion, among: int) -> Resampling:
    alpha = (1.0 - question.rules.confidence) / among
    return Resampling(1.0 - 2.0 * alpha, max(question.setting.resamples, int(20.0 / alpha)))


def _more(over: Excess) -> int | None:
    return judge(over.interval, _SIDES).more_samples or None


def _one(
    question: GateQuestion,
    here: Fragility,
    ledger: Ledger,
    operator: str,
    held: Sequence[_Held],
    adjusted: Sequence[float],
) -> OperatorGate:
    alpha = 1.0 - question.rules.confidence
    mine = {one.limit: (one, p) for one, p in zip(held, adjusted, strict=True) if one.operator == operator}
    broken = tuple(limit for limit, (_, p) in mine.items() if p <= alpha)
    is_within = bool(mine) and all(one.p_below <= alpha for one, _ in mine.values())
    verdict = BEYOND if broken else WITHIN if is_within else UNDECIDED
    open_ = [one.more_samples for one, _ in mine.values() if one.p_below > alpha]
    known = [more for more in open_ if more is not None]
    against, maximum = mine.get("baseline"), mine.get("maximum")
    answer = ledger.answer(units_of(ledger.setting)[operator])
    return OperatorGate(
        operator,
        verdict,
        here.interval(operator, question.rules.confidence),
        question.baseline.interval(operator, question.rules.confidence) if question.baseline else None,
        against[0].excess if against else None,
        broken,
        against[1] if against else None,
        maximum[1] if maximum else None,
        max(known) if verdict == UNDECIDED and len(known) == len(open_) and known else None,
        answer.nonfinite,
        answer.trials,
    )


def _clean_change(question: GateQuestion, here: Fragility) -> Interval | None:
    """What the clean score gained; None where a metric compares with the clean run, or there is no baseline."""
    metric = METRICS[here.setting.metric]
    if question.baseline is None or metric.against_clean:
        return None
    gained = difference(here.clean, question.baseline.clean, plan=Resampling(question.rules.confidence))
    return gained if metric.higher_is_better else gained.scaled(-1.0)


def _findings(
    question: GateQuestion, operators: Sequence[OperatorGate], change: Interval | None, gaps: Sequence[str]
) -> list[Finding]:
    found = [Finding(f"Not measured: {gap}", "error", decided=False) for gap in gaps]
    found += [_beyond(question, one) for one in operators if one.verdict == BEYOND]
    found += [_open(question, one) for one in operators if one.verdict == UNDECIDED]
    if change is not None and change.high < 0.0:
        statement = (
            f"Without noise the {question.setting.metric} is worse than the baseline's by {-change.estimate:.3g} "
            f"({-change.high:.3g} to {-change.low:.3g}); degradations are shares of it"
        )
        found.append(Finding(statement, "warning", (("clean change", change.estimate),)))
    return found


def _beyond(question: GateQuestion, one: OperatorGate) -> Finding:
    rules, setting = question.rules, question.setting
    shown = "" if one.harm is None else shown_harm(setting, one.harm)
    limits = []
    if "baseline" in one.beyond and one.baseline is not None:
        limits.append(f"more than {rules.factor:g} times the baseline's {shown_harm(setting, one.baseline)}")
    if "maximum" in one.beyond and rules.max_degradation is not None:
        limits.append(f"above the limit of {rules.max_degradation:.0%}")
    p = min(value for value in (one.p_baseline, one.p_maximum) if value is not None)
    statement = f"{one.operator}: noise of {setting.scale:g} costs {shown}, {' and '.join(limits)}, p = {p:.2g}"
    figures = () if one.harm is None else (("degradation", one.harm.estimate), ("p", p))
    return Finding(statement, "critical", figures, one.trials)


def _open(question: GateQuestion, one: OperatorGate) -> Finding:
    shown = "" if one.harm is None else shown_harm(question.setting, one.harm)
    more = "" if one.more_samples is None else f"; about {one.more_samples} more samples would decide"
    return Finding(
        f"{one.operator}: not shown to be beyond its limits, nor within them ({shown}){more}",
        "undecided",
        (),
        one.trials,
        decided=False,
    )
