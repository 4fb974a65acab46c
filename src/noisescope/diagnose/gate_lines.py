"""The answer of a gate as lines for a terminal. They say what the record holds, and judge nothing."""

from __future__ import annotations

from collections.abc import Sequence

from noisescope.diagnose.gate import Gate, OperatorGate
from noisescope.diagnose.gated import Gated
from noisescope.diagnose.harm import shown_harm, yardstick
from noisescope.diagnose.setting import Setting
from noisescope.measure.statistics import Interval

_MEANING = {
    "pass": "every operator is shown to be within its limits",
    "fail": "an operator is shown to be beyond a limit",
    "undecided": "no operator is shown to be beyond a limit, and not all are shown to be within",
    "error": "it could not be judged",
}

_HEADS = ("operator", "here", "baseline", "p", "verdict")


def gate_lines(gated: Gated) -> list[str]:
    """The verdict, what it was judged by, a line for each operator, and the findings."""
    gate = gated.gate
    lines = [f"Gate: {gate.verdict.upper()}, {_MEANING[gate.verdict]}", *_terms(gated)]
    if gate.operators:
        lines += _aligned([_HEADS, *(_cells(gate.setting, one) for one in gate.operators)])
    lines += [f"  [{finding.severity}] {finding.statement}" for finding in gate.findings]
    return [*lines, f"Cost: {gate.cost:.1f} clean evaluations"]


def _terms(gated: Gated) -> list[str]:
    gate = gated.gate
    setting, rules = gate.setting, gate.rules
    limits = []
    if gated.baseline:
        ignored = f", losses up to {rules.ignore_below:.2%} ignored" if rules.ignore_below else ""
        limits.append(f"at most {rules.factor:g} times what {gated.baseline} loses{ignored}")
    if rules.max_degradation is not None and yardstick(setting).is_share:
        limits.append(f"at most {rules.max_degradation:.0%}")
    what = (
        f"{setting.metric} on {setting.samples} samples, {len(setting.seeds)} seeds, {setting.kind} {setting.scale:g}"
    )
    return [f"{what}; {' and '.join(limits) or 'no limit'}", *_clean(gate)]


def _clean(gate: Gate) -> list[str]:
    if gate.clean is None:
        return []
    told, change = f"{gate.setting.metric} without noise {_plain(gate.clean)}", gate.clean_change
    return [told if change is None else f"{told}; gained over the baseline {_plain(change)}"]


def _plain(interval: Interval) -> str:
    return f"{interval.estimate:.4g} ({interval.low:.4g} to {interval.high:.4g})"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _cells(setting: Setting, one: OperatorGate) -> tuple[str, ...]:
    here = "" if one.harm is None else shown_harm(setting, one.harm)
    there = "" if one.baseline is None else shown_harm(setting, one.baseline)
    shown = ", ".join(f"{value:.2g}" for value in (one.p_baseline, one.p_maximum) if value is not None)
    more = f", about {one.more_samples} more samples would decide" if one.more_samples else ""
    limits = f" ({' and '.join(one.beyond)})" if one.beyond else ""
    return one.operator, here, there, shown, f"{one.verdict}{limits}{more}"
