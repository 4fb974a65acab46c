"""Fault tests from a diagnosis: a case for each critical operator, each avalanche window, and the worst channels.

Where nothing is critical it takes the worst there is, and says so. It plants nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from noisescope.core.errors import BadInputError
from noisescope.core.words import many
from noisescope.diagnose.channel import ModuleChannels
from noisescope.diagnose.fault_tests import Accepted, FaultCase, FaultPlan, Side
from noisescope.diagnose.harm import shown_harm
from noisescope.diagnose.operator import SCORES, OperatorResult
from noisescope.diagnose.setting import Setting
from noisescope.diagnose.whole import Diagnosis
from noisescope.diagnose.window import AvalanchePoint, WindowResult

RATE = 0.01
# Modules with outlier channels that get a case, those with the largest ratios.
MOST_MODULES = 3
OPERATOR = Accepted(loss=0.05, nonfinite=0.001)
WINDOW = Accepted(loss=0.10, recovery=5)
CHANNEL = Accepted(loss=0.15, located=True)
Part = tuple[list[FaultCase], list[str]]


def fault_plan(found: Diagnosis, model: str, fingerprint: str) -> FaultPlan:
    """The cases that a diagnosis asks for, never none."""
    parts = (_operators(found), _windows(found), _channels(found))
    cases = [case for part, _ in parts for case in part]
    notes = [note for _, part in parts for note in part]
    if not cases:
        raise BadInputError(f"no fault test can be made: {'; '.join(notes)}. Run noisescope diagnose --mode full.")
    return FaultPlan(model, fingerprint, tuple(cases), tuple(notes))


def _operators(found: Diagnosis) -> Part:
    measured = [result for result in found.operators if result.answer.harm is not None]
    critical = [result for result in measured if result.verdict.name == SCORES.names[-1]]
    if critical:
        return [_operator(found.setting, result, is_critical=True) for result in critical], []
    if not measured:
        return [], ["the diagnosis measured no operator"]
    worst = max(measured, key=lambda result: result.answer.harm.estimate if result.answer.harm else 0.0)
    note = f"no operator is {SCORES.names[-1]}: the case is for the worst there is, {worst.operator}"
    return [_operator(found.setting, worst, is_critical=False)], [note]


def _operator(setting: Setting, result: OperatorResult, *, is_critical: bool) -> FaultCase:
    harm = result.answer.harm
    cost = "" if harm is None else f", noise of {setting.scale:g} costs {shown_harm(setting, harm)}"
    how = "is" if is_critical else "is the worst operator, not critical:"
    return FaultCase(
        name=f"bit_flip {result.operator}",
        level="operator",
        kind="bit_flip",
        magnitude=1.0,
        rate=RATE,
        channels=None,
        operators=(result.operator,),
        layers=None,
        path="",
        side="",
        moment="always",
        accepted=OPERATOR,
        is_critical=is_critical,
        because=f"{result.operator} {how} {result.verdict.name}{cost}",
    )


def _windows(found: Diagnosis) -> Part:
    if found.points:
        by_name = {result.name: result for result in found.windows}
        return [_window(found.setting, by_name[point.peak], point) for point in found.points], []
    measured = [result for result in found.windows if result.answer.harm is not None]
    if not measured:
        return [], ["the diagnosis measured no window of layers"]
    worst = max(measured, key=lambda result: result.answer.harm.estimate if result.answer.harm else 0.0)
    note = f"no window of layers is an avalanche point: the case is for the worst that was measured, {worst.name}"
    return [_window(found.setting, worst, None)], [note]


def _window(setting: Setting, result: WindowResult, point: AvalanchePoint | None) -> FaultCase:
    harm = result.answer.harm
    cost = "" if harm is None else f", noise of {setting.scale:g} costs {shown_harm(setting, harm)}"
    what = (
        "is the worst window measured, no avalanche point"
        if point is None
        else f"is an avalanche point, {point.severity}"
    )
    return FaultCase(
        name=f"stuck_at_zero {result.name}",
        level="window",
        kind="stuck_at_zero",
        magnitude=1.0,
        rate=RATE,
        channels=None,
        operators=None,
        layers=result.layers,
        path="",
        side="",
        moment="one step",
        accepted=WINDOW,
        is_critical=point is not None,
        because=f"{result.name} {what}{cost}",
    )


def _channels(found: Diagnosis) -> Part:
    if found.channels is None:
        return [], ["the diagnosis looked at no channels"]
    modules = [one for one in found.channels.modules if one.outliers.indices]
    modules.sort(key=lambda one: -one.outliers.max_ratio)
    if not modules:
        return [], ["no channel is an outlier, so there is no channel to test"]
    notes = []
    if len(modules) > MOST_MODULES:
        rest = many(len(modules) - MOST_MODULES, "more module side")
        notes.append(f"{rest} with outlier channels: the cases are for the {MOST_MODULES} with the largest ratios")
    return [_channel(one) for one in modules[:MOST_MODULES]], notes


def _channel(one: ModuleChannels) -> FaultCase:
    outliers = one.outliers
    side: Side = "input" if outliers.side == "input" else "output"
    return FaultCase(
        name=f"value_corruption {outliers.path} {side}",
        level="channel",
        kind="value_corruption",
        magnitude=1.0,
        rate=RATE,
        channels=outliers.indices,
        operators=None,
        layers=None,
        path=outliers.path,
        side=side,
        moment="always",
        accepted=CHANNEL,
        is_critical=True,
        because=f"{_listed(outliers.indices)} at the {side} of {outliers.path}: up to {outliers.max_ratio:.0f} times "
        f"the median channel ({outliers.severity})",
    )


def _listed(indices: Sequence[int], most: int = 5) -> str:
    shown = ", ".join(map(str, indices[:most])) + (" and more" if len(indices) > most else "")
    return f"outlier channel{'' if len(indices) == 1 else 's'} {shown}"
