"""A diagnosis as a view: verdict, risk, what to do, and a section for each level.

It judges nothing and uses the words of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from noisescope.core.records import Finding
from noisescope.core.words import many
from noisescope.diagnose.operator import SCORES
from noisescope.diagnose.whole import Diagnosis
from noisescope.measure.profile import Profile
from noisescope.report.advice import recommendations
from noisescope.report.channel_part import channel_section
from noisescope.report.judged import figure_of, harm_unit, score_unit, severity_of
from noisescope.report.operator_part import map_section, operator_section
from noisescope.report.origin import Origin, reproduce_section
from noisescope.report.view import (
    Block,
    Column,
    Fact,
    Facts,
    Figure,
    Gap,
    Note,
    NotMeasured,
    Risk,
    Row,
    Section,
    Severity,
    Share,
    Table,
    Threshold,
    View,
)
from noisescope.report.window_part import window_section
from noisescope.report.wording import label, number

_WORTH_A_VERDICT = ("error", "critical", "high", "moderate")
_LIMITS = (Threshold(50.0, "MODERATE", "moderate"), Threshold(100.0, "HIGH", "high"))


def diagnosis_view(
    diagnosis: Diagnosis, origin: Origin, profile: Profile | None = None, more: Sequence[Section] = ()
) -> View:
    """The report of a diagnosis. `profile` is what screening predicted; `more` are sections of other questions."""
    severity, verdict = _verdict(diagnosis)
    sections = (
        map_section(diagnosis, profile) if profile is not None else None,
        operator_section(diagnosis),
        window_section(diagnosis),
        channel_section(diagnosis.channels),
        *more,
        _findings(diagnosis.findings),
        _trust(diagnosis),
        _gaps(diagnosis, profile),
        reproduce_section(origin, _setting(diagnosis)),
    )
    return View(
        title=f"Diagnosis of {origin.model}",
        subject=", ".join(
            part for part in (f"{diagnosis.setting.layers} layers", origin.device, origin.workload) if part
        ),
        verdict=verdict,
        severity=severity,
        sections=tuple(section for section in sections if section is not None),
        actions=recommendations(diagnosis),
        risk=_risk(diagnosis),
        facts=_facts(diagnosis),
        made_by=origin.made_by,
    )


def _verdict(diagnosis: Diagnosis) -> tuple[Severity, str]:
    """The worst severity that any finding has, and what was found in one sentence."""
    worst = next((f for f in diagnosis.findings if f.severity in _WORTH_A_VERDICT), None)
    if worst is not None and worst.severity == "error":
        return severity_of("error"), worst.statement
    counts = _counts(diagnosis)
    if worst is not None:
        return severity_of(worst.severity), f"{worst.statement}. In all: {counts}."
    undecided = [f for f in diagnosis.findings if not f.decided]
    scale = label(diagnosis.setting.scale, "percent")
    if undecided:
        return severity_of(
            "undecided"
        ), f"Nothing is shown to be fragile at noise of {scale}, but not all is decided: {counts}."
    return severity_of("robust"), f"Nothing that was measured is fragile at noise of {scale}: {counts}."


def _counts(diagnosis: Diagnosis) -> str:
    """How many of each level are what; what there is none of is named only where nothing is open."""
    unit = harm_unit(diagnosis.setting.metric)
    parts = [] if unit.is_share else [f"no limits apply to {unit.name}"]
    if diagnosis.operators and unit.is_share:
        undecided = sum(bool(one.verdict.bands) and not one.verdict.decided for one in diagnosis.operators)
        parts += _told(diagnosis.risk.critical_operators, undecided, "operator", len(diagnosis.operators))
    if diagnosis.windows:
        all_, points = len(diagnosis.windows), diagnosis.risk.avalanche_points
        undecided = sum(bool(one.verdict.bands) and not one.verdict.decided for one in diagnosis.windows)
        unmeasured = sum(one.answer.harm is None and not one.verdict.decided for one in diagnosis.windows)
        parts += [many(points, "avalanche point") if points else "no avalanche point"]
        parts += [f"{undecided} of {all_} windows undecided"] if undecided else []
        parts += [f"{unmeasured} of {all_} not measured"] if unmeasured else []
    if diagnosis.channels is not None:
        parts.append(f"{diagnosis.risk.outlier_percent:.2f} % outlier channels")
    return ", ".join(parts) or "nothing was asked about"


def _told(critical: int, undecided: int, what: str, all_: int) -> list[str]:
    parts = [f"{critical} of {all_} {what}s {SCORES.names[-1]}"] if critical else []
    parts += [f"{undecided} of {all_} {what}s undecided"] if undecided else []
    return parts or [f"no {what} {SCORES.names[-1]}"]


def _risk(diagnosis: Diagnosis) -> Risk | None:
    """None where nothing was judged: no points are then no sign of health."""
    risk = diagnosis.risk
    if diagnosis.control.holds is not True:
        return None
    operators, points, percent = risk.critical_operators, risk.avalanche_points, risk.outlier_percent
    shares = (
        Share("critical operators", 30.0 * operators, f"{operators} at 30 points"),
        Share("avalanche points", 25.0 * points, f"{points} at 25 points"),
        Share("outlier channels", 5.0 * percent, f"{number(percent / 100.0, 'percent')} at 5 points a percent"),
    )
    asked = {"operators": diagnosis.operators, "layers": diagnosis.windows, "channels": diagnosis.channels}
    left = [name for name, found in asked.items() if not found]
    how = "The score counts; the verdict is the most severe single finding."
    how += f" Not asked about, so without points: {', '.join(left)}." if left else ""
    return Risk(severity_of(risk.level), risk.points, _LIMITS, shares, how)


def _facts(diagnosis: Diagnosis) -> tuple[Fact, ...]:
    setting, unit = diagnosis.setting, score_unit(diagnosis.setting.metric)
    clean = figure_of(diagnosis.clean)
    found: list[Fact] = [Fact("metric", unit.name)]
    found.append(Fact("clean score", "not measured" if clean is None else clean, unit.form, unit.unit))
    found.append(Fact("noise", f"{setting.kind.replace('_', ' ')}, {label(setting.scale, 'percent')}"))
    found.append(Fact("samples", f"{setting.samples:,}, {many(len(setting.seeds), 'seed')}"))
    found.append(Fact("cost", Figure(diagnosis.cost), "plain", "clean evaluations"))
    found.append(Fact("zero-noise control", _control(diagnosis)))
    return tuple(found)


def _control(diagnosis: Diagnosis) -> str:
    control = diagnosis.control
    if control.holds is None:
        return "not measured"
    if control.holds:
        return f"exact on {control.samples:,} samples"
    return f"BROKEN, off by up to {number(control.largest)} on {control.samples:,} samples"


def _findings(findings: Sequence[Finding]) -> Section:
    rows = tuple(
        Row(
            (
                severity_of(finding.severity),
                finding.statement,
                "yes" if finding.decided else "no",
                Figure(float(len(finding.evidence))) if finding.evidence else None,
            )
        )
        for finding in findings
    )
    columns = (
        Column("severity", "severity"),
        Column("finding"),
        Column("decided"),
        Column("trials behind it", "figure", "count"),
    )
    block: Block = Table("All findings, most severe first", columns, rows) if rows else Note("There are none.")
    return Section("findings-list", "Findings", (block,))


def _trust(diagnosis: Diagnosis) -> Section:
    """What speaks for and against believing the figures."""
    setting = diagnosis.setting
    budget = "none: everything was measured" if setting.exhaustive else "none"
    facts = (
        Fact("zero-noise control", _control(diagnosis)),
        Fact("cost", Figure(diagnosis.cost), "plain", "clean evaluations"),
        Fact("budget", budget)
        if setting.budget is None
        else Fact("budget", Figure(setting.budget), "plain", "clean evaluations"),
        Fact("confidence", Figure(setting.confidence), "percent"),
    )
    notes = (
        Note(
            "What no noise can tell: the root cause inside a chip, errors that only build up over a long time, and "
            "faults that fire more seldom than the runs made here."
        ),
    )
    return Section("trust", "Control and cost", (Facts("This diagnosis", facts), *notes))


def _gaps(diagnosis: Diagnosis, profile: Profile | None) -> Section | None:
    asked = (
        ("operators", bool(diagnosis.operators), "the operator level was not asked for"),
        ("windows of layers", bool(diagnosis.windows), "the layer level was not asked for"),
        ("channels", diagnosis.channels is not None, "the channel level was not asked for"),
        ("the map of operators and layers", profile is not None, "there was no screening"),
    )
    gaps = [Gap(what, why) for what, is_there, why in asked if not is_there]
    gaps += _by_reason(chain(diagnosis.unmeasured, diagnosis.control.gaps))
    if not gaps:
        return Section("gaps", "What was not measured", (Note("Everything that was asked for was measured."),))
    return Section("gaps", "What was not measured", (NotMeasured(tuple(gaps)),))


def _by_reason(texts: Iterable[str]) -> list[Gap]:
    """One gap for all that share a reason."""
    by_reason: dict[str, list[str]] = {}
    for what, _, why in (text.partition(": ") for text in texts):
        by_reason.setdefault(why or "no reason is known", []).append(what)
    return [Gap(", ".join(dict.fromkeys(named)), why) for why, named in by_reason.items()]


def _setting(diagnosis: Diagnosis) -> tuple[tuple[str, str], ...]:
    setting = diagnosis.setting
    return (
        ("samples", f"{setting.samples:,}"),
        ("seeds", ", ".join(map(str, setting.seeds))),
        ("noise scale", f"{setting.scale:g}"),
        ("metric", setting.metric),
    )
