"""Statements on windows of layers: where errors pile up, what costs how much, what could not be decided.

It measures and infers nothing; operators and channels have their statements beside their records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from noisescope.core.records import Finding
from noisescope.diagnose.harm import percent, shown_harm, yardstick
from noisescope.diagnose.search import WindowLevel
from noisescope.diagnose.setting import Setting, span_name
from noisescope.diagnose.window import AvalanchePoint, WindowQuestion, WindowResult

# From this share of the clean score on an interaction is worth a statement; of a metric that is 0 when clean, from
# this share of what the window costs.
_WORTH_SAYING, _WORTH_OF_HARM = 0.05, 0.25


def window_findings(question: WindowQuestion, level: WindowLevel) -> tuple[Finding, ...]:
    """All statements on windows, those that say most first."""
    windows = level.windows
    return (
        *(_avalanche(point, windows) for point in level.points),
        *(_run(question, run) for run in _runs(question, windows)),
        *_interactions(question.setting, windows),
        *_gaps(windows),
        *_undecided(windows),
        *_agreement(level),
    )


def _avalanche(point: AvalanchePoint, windows: Iterable[WindowResult]) -> Finding:
    peak = next(result for result in windows if result.name == point.peak)
    against = " and ".join(peak.avalanche.neighbours) if peak.avalanche else ""
    ratio = peak.avalanche.ratio if peak.avalanche and peak.avalanche.ratio is not None else 0.0
    statement = (
        f"Avalanche point at {span_name(point.layers)}: noise in {point.peak} costs {percent(point.harm)}, "
        f"far more than in {against}"
    )
    figures = (("degradation", point.harm.estimate), ("ratio to neighbours", ratio))
    return Finding(statement, point.severity.lower(), figures, peak.answer.trials)


def _runs(question: WindowQuestion, windows: Sequence[WindowResult]) -> list[list[WindowResult]]:
    """Neighbouring windows of one decided verdict that is not robust."""
    runs: list[list[WindowResult]] = []
    previous: WindowResult | None = None
    for result in windows:
        harmful = result.verdict.decided and result.verdict.name != question.limits.names[0]
        same = previous is not None and previous.verdict.bands == result.verdict.bands
        if harmful and same and runs:
            runs[-1].append(result)
        elif harmful:
            runs.append([result])
        previous = result
    return runs


def _run(question: WindowQuestion, run: Sequence[WindowResult]) -> Finding:
    measured = [result for result in run if result.answer.harm is not None]
    layers = tuple(range(run[0].layers[0], run[-1].layers[-1] + 1))
    verdict = run[0].verdict.name
    what = f"{span_name(layers)} {'is' if len(layers) == 1 else 'are'} {verdict}"
    if not measured:
        return Finding(f"{what}: {run[0].evidence}", verdict, (), ())
    worst = max(measured, key=lambda result: result.answer.harm.estimate if result.answer.harm else 0.0)
    harm = worst.answer.harm
    if harm is None:
        return Finding(what, verdict, (), ())
    statement = f"{what}: noise of {question.setting.scale:g} in {worst.name} costs {percent(harm)}"
    figures = (("degradation", harm.estimate), ("low", harm.low), ("high", harm.high))
    return Finding(statement, verdict, figures, worst.answer.trials)


def _interactions(setting: Setting, windows: Iterable[WindowResult]) -> list[Finding]:
    """Windows that cost more than their layers do one by one; of those that overlap, the one where it is largest."""
    extra = {
        result: result.interaction.harm.estimate
        for result in windows
        if result.interaction is not None and result.interaction.p_value <= setting.alpha / 2.0
        if result.interaction.harm.estimate >= _least(setting, result)
    }
    chosen: list[WindowResult] = []
    for result in sorted(extra, key=lambda one: -extra[one]):
        if not any(set(result.layers) & set(other.layers) for other in chosen):
            chosen.append(result)
    return [_interaction(setting, result) for result in chosen]


def _least(setting: Setting, result: WindowResult) -> float:
    if yardstick(setting).is_share or result.answer.harm is None:
        return _WORTH_SAYING
    return _WORTH_OF_HARM * result.answer.harm.estimate


def _interaction(setting: Setting, result: WindowResult) -> Finding:
    harm = result.interaction.harm if result.interaction is not None else None
    shown = "" if harm is None else f" by {shown_harm(setting, harm)}"
    figures = () if harm is None else (("interaction", harm.estimate), ("low", harm.low), ("high", harm.high))
    statement = f"The layers of {result.name} make each other worse: together they cost more than one by one{shown}"
    return Finding(statement, "high", figures, result.answer.trials)


def _gaps(windows: Iterable[WindowResult]) -> list[Finding]:
    return [
        Finding(f"{result.name}: undecided, {result.answer.gaps[0]}", "undecided", (), result.answer.trials, False)
        for result in windows
        if result.answer.gaps
    ]


def _undecided(windows: Sequence[WindowResult]) -> list[Finding]:
    """One statement on all windows that are undecided without a gap."""
    open_ = [result for result in windows if result.verdict.bands and not result.verdict.decided]
    open_ = [result for result in open_ if not result.answer.gaps]
    if not open_:
        return []
    told = [r.verdict.more_samples for r in open_ if r.verdict.more_samples is not None]
    more = (
        f"; {min(told)} more samples would decide the nearest, about {max(told)} all that can be told" if told else ""
    )
    names = ", ".join(result.name for result in open_[:5]) + (" and more" if len(open_) > 5 else "")
    statement = f"{len(open_)} of {len(windows)} windows are undecided ({names}){more}"
    return [Finding(statement, "undecided", (("windows", float(len(open_))),), (), decided=False)]


def _agreement(level: WindowLevel) -> list[Finding]:
    """A warning where verdicts that say something rest on a ranking that measuring did not bear out."""
    found = level.agreement
    inferred = [result for result in level.windows if result.evidence.startswith("ranked")]
    if found is None or not inferred or found.interval.low > 0.0:
        return []
    # Where all windows do as good as no harm, there is no order to agree on.
    if not any(result.verdict.decided and result.verdict.name != "robust" for result in level.windows):
        return []
    statement = (
        f"Predicted and measured harm rank the {found.interval.samples} measured windows alike only to "
        f"{found.interval.estimate:.2f}: verdicts inferred from the ranking are weak; --exhaustive measures all windows"
    )
    return [Finding(statement, "warning", (("spearman", found.interval.estimate),), (), decided=False)]
