"""A diagnosis as lines of plain text for a terminal.

It works out nothing that the records do not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from noisescope.core.words import many
from noisescope.diagnose.channel import ChannelLevel
from noisescope.diagnose.ledger import Answer
from noisescope.diagnose.operator import OperatorResult
from noisescope.diagnose.robustness import LevelResult, Robustness
from noisescope.diagnose.whole import Diagnosis
from noisescope.diagnose.window import WindowResult
from noisescope.measure.metrics import METRICS
from noisescope.measure.statistics import Interval

_BAR = 24


def dashboard(diagnosis: Diagnosis) -> list[str]:
    """The whole diagnosis, most important first within each part."""
    is_share = METRICS[diagnosis.setting.metric].clean != 0.0
    parts = (
        _head(diagnosis),
        _operators(diagnosis, is_share=is_share),
        _windows(diagnosis.windows, is_share=is_share),
        _channels(diagnosis.channels),
        _findings(diagnosis),
        _tail(diagnosis),
    )
    return [line for part in parts if part for line in ("", *part)][1:]


def _head(diagnosis: Diagnosis) -> list[str]:
    setting, risk = diagnosis.setting, diagnosis.risk
    clean = "not measured" if diagnosis.clean is None else _plain(diagnosis.clean)
    control = {True: "exact", False: "BROKEN", None: "not measured"}[diagnosis.control.holds]
    summed = (
        f"Risk {risk.level} ({risk.points:.0f} points: {many(risk.critical_operators, 'critical operator')}, "
        f"{many(risk.avalanche_points, 'avalanche point')}, {risk.outlier_percent:.2f} % outlier channels)"
    )
    return [
        summed if diagnosis.control.holds else "Risk unknown: nothing was judged",
        f"{setting.metric} without noise {clean} on {setting.samples} samples; {setting.kind} noise of "
        f"{setting.scale:g}; zero-noise control {control}",
    ]


def _plain(interval: Interval) -> str:
    return f"{interval.estimate:.4g} ({interval.low:.4g} to {interval.high:.4g})"


def _shown(answer: Answer, *, is_share: bool) -> str:
    """Harm with its interval, as a share in percent or in the unit of the metric."""
    harm = answer.harm
    if harm is None:
        return "not measured"
    if not is_share:
        return _plain(harm)
    return f"{harm.estimate:7.2%} ({harm.low:.2%} to {harm.high:.2%})"


def _verdict(answer: Answer, *, is_share: bool) -> str:
    if answer.gaps:
        return f"undecided: {answer.gaps[0]}"
    if not is_share:
        return "no bands for this metric"
    verdict = answer.verdict
    if verdict.decided or not verdict.bands:
        return verdict.name
    more = "" if verdict.more_samples is None else f", {verdict.more_samples} more samples would decide"
    return f"undecided: {' or '.join(verdict.bands)}{more}"


def _operators(diagnosis: Diagnosis, *, is_share: bool) -> list[str]:
    if not diagnosis.operators:
        return []
    lines = ["Operators                 harm                             score   ranks  verdict"]
    lines += [_operator(result, is_share=is_share) for result in diagnosis.operators]
    return lines + [f"  not told apart: {', '.join(tie)}" for tie in diagnosis.ties]


def _operator(result: OperatorResult, *, is_share: bool) -> str:
    score = "" if result.score is None else f"{result.score.estimate:.2f}"
    rank = "" if result.rank is None else f"{result.rank.low}-{result.rank.high}"
    verdict = _verdict(result.answer, is_share=is_share)
    return f"  {result.operator:<12}{_shown(result.answer, is_share=is_share):>40}  {score:>6}  {rank:>6}  {verdict}"


def _windows(windows: Sequence[WindowResult], *, is_share: bool) -> list[str]:
    if not windows:
        return []
    top = max((result.answer.harm.estimate for result in windows if result.answer.harm), default=0.0)
    return ["Windows of layers", *(_window(result, top, is_share=is_share) for result in windows)]


def _window(result: WindowResult, top: float, *, is_share: bool) -> str:
    harm = result.answer.harm
    length = 0 if harm is None or top <= 0 else round(_BAR * max(0.0, harm.estimate) / top)
    shown = _shown(result.answer, is_share=is_share)
    notes = [_verdict(result.answer, is_share=is_share)]
    if harm is None and result.verdict.decided:
        notes.append(result.evidence)
    if result.interaction is not None:
        notes.append(f"interaction {result.interaction.harm.estimate:+.2%}" if is_share else "")
    if result.avalanche is not None and result.avalanche.is_point == "yes":
        notes.append(f"AVALANCHE ({result.avalanche.severity})")
    return f"  {result.name:<14}{'#' * length:<{_BAR}} {shown:>26}  {'; '.join(note for note in notes if note)}"


def _channels(level: ChannelLevel | None) -> list[str]:
    if level is None:
        return []
    places = ", ".join(f"{count} at {place}" for place, count in level.places) or "none"
    lines = [f"Channels: {level.percentage:.2f} % are outliers ({places})"]
    worst = sorted((one for one in level.layers if one.outliers), key=lambda one: -one.max_ratio)
    lines += [
        f"  layer {one.layer:<4}{one.outliers:5} of {one.channels} channels, largest {one.max_ratio:.0f} medians, "
        f"{one.severity}"
        for one in worst[:5]
    ]
    return lines + [f"  {one.format}: {one.remedy}, because {one.why}" for one in level.remedies]


def _findings(diagnosis: Diagnosis) -> list[str]:
    if not diagnosis.findings:
        return ["Findings: none"]
    return ["Findings", *(f"  [{finding.severity}] {finding.statement}" for finding in diagnosis.findings)]


def _tail(diagnosis: Diagnosis) -> list[str]:
    agreement = diagnosis.agreement
    lines = [f"Cost: {diagnosis.cost:.1f} clean evaluations"]
    if agreement is not None:
        lines.append(
            f"Screening ranked the {agreement.interval.samples} measured windows as measuring did, Spearman "
            f"{agreement.interval.estimate:.2f} ({agreement.interval.low:.2f} to {agreement.interval.high:.2f})"
        )
    return lines + _listed("Not measured", diagnosis.unmeasured)


def _listed(title: str, items: Iterable[str], most: int = 8) -> list[str]:
    listed = list(items)
    if not listed:
        return []
    rest = [f"  and {len(listed) - most} more"] if len(listed) > most else []
    return [title, *(f"  {item}" for item in listed[:most]), *rest]


def robustness_lines(found: Robustness) -> list[str]:
    """A table of the levels, the scale at which the model breaks, and what follows."""
    setting = found.setting
    lines = [
        f"{setting.metric} on {setting.samples} samples, {len(setting.seeds)} seeds, {setting.kind} noise everywhere",
        "  scale  score                            retention                        tolerance  injections",
    ]
    lines += [_level_line(level) for level in found.levels]
    if found.threshold is not None:
        scale = found.threshold.scale
        where = f"no scale up to {found.threshold.low:g} costs 10 %" if scale is None else f"{scale:.4g} costs 10 %"
        lines.append(f"Critical threshold: {where}; brittleness {found.threshold.brittleness}")
    lines += [f"  [{finding.severity}] {finding.statement}" for finding in found.findings]
    return [*lines, *_listed("Not measured", found.unmeasured), f"Cost: {found.cost:.1f} clean evaluations"]


def _level_line(level: LevelResult) -> str:
    score = "not measured" if level.score is None else _plain(level.score)
    kept = "" if level.retention is None else _plain(level.retention)
    tolerance = "" if level.tolerance is None else f"{level.tolerance:.3g}, {level.grade}"
    proof = (
        "none asked" if level.scale == 0 else f"{level.injections:,} verified" if level.is_verified else "NOT VERIFIED"
    )
    return f"  {level.scale:<6g} {score:<32} {kept:<32} {tolerance:<10} {proof}"
