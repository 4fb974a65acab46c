"""Robustness over noise levels as a section of a report, or as a report of its own.

It judges nothing and uses the words of the records.
"""

from __future__ import annotations

from noisescope.core.words import many
from noisescope.diagnose.robustness import LevelResult, Robustness
from noisescope.measure.indices import BRITTLENESS
from noisescope.report.judged import figure_of, score_unit, severity_of
from noisescope.report.origin import Origin, reproduce_section
from noisescope.report.view import (
    Action,
    Block,
    Column,
    Curve,
    Curves,
    Fact,
    Facts,
    Figure,
    Gap,
    NotMeasured,
    Point,
    Row,
    Section,
    Severity,
    Table,
    View,
)
from noisescope.report.wording import label, number


def robustness_view(robustness: Robustness, origin: Origin) -> View:
    """The report of a robustness evaluation."""
    severity, verdict = _verdict(robustness)
    return View(
        title=f"Robustness of {origin.model}",
        subject=", ".join(part for part in (origin.device, origin.workload) if part),
        verdict=verdict,
        severity=severity,
        sections=(robustness_section(robustness), reproduce_section(origin)),
        actions=_actions(robustness),
        facts=_head(robustness),
        made_by=origin.made_by,
    )


def _verdict(robustness: Robustness) -> tuple[Severity, str]:
    first = next(iter(robustness.findings), None)
    if first is not None and first.severity in ("error", "undecided"):
        return severity_of(first.severity), first.statement
    threshold = robustness.threshold
    statements = [f"{finding.statement}." for finding in robustness.findings if finding.severity != "error"]
    word = "no bands" if threshold is None else f"{threshold.brittleness} brittleness"
    level = severity_of("" if threshold is None else threshold.brittleness).level
    return Severity(word, level), " ".join(statements[:2]) or "Nothing was found."


def _actions(robustness: Robustness) -> tuple[Action, ...]:
    """What to do about a model that breaks early."""
    threshold = robustness.threshold
    if threshold is None or threshold.scale is None or severity_of(threshold.brittleness).level == "low":
        return ()
    action = Action(
        "whole model",
        "Find the operators and layers that break first (noisescope diagnose), and keep those in higher precision",
        f"Noise of {number(threshold.scale, 'percent')} everywhere costs 10 % of the clean score.",
        severity_of(threshold.brittleness),
        tuple(finding.statement for finding in robustness.findings[:2]),
    )
    return (action,)


def _head(robustness: Robustness) -> tuple[Fact, ...]:
    setting = robustness.setting
    return (
        Fact("metric", score_unit(setting.metric).name),
        Fact("samples", f"{setting.samples:,}, {many(len(setting.seeds), 'seed')}"),
        Fact("scale that costs 10 %", _threshold(robustness)),
    )


def robustness_section(robustness: Robustness) -> Section:
    """Score and retention by level, and where the model breaks."""
    blocks: list[Block] = [_curve(robustness), _table(robustness), _facts(robustness)]
    if robustness.unmeasured:
        blocks.append(NotMeasured(tuple(Gap("a trial", text) for text in robustness.unmeasured)))
    intro = "Noise in all operators and layers at once, at rising scales."
    return Section("robustness", "Robustness", tuple(blocks), intro)


def _curve(robustness: Robustness) -> Curves:
    unit = score_unit(robustness.setting.metric)
    known = [(level.scale, figure_of(level.score)) for level in robustness.levels]
    points = tuple(Point(scale, figure) for scale, figure in known if figure is not None)
    return Curves(
        title=f"{unit.name.capitalize()} over the scale of noise",
        curves=(Curve("all operators", points),),
        x_name="noise scale",
        measure=unit.name,
        x_form="percent",
        form=unit.form,
        unit=unit.unit,
        caption="The band is the interval over samples.",
    )


def _table(robustness: Robustness) -> Table:
    unit = score_unit(robustness.setting.metric)
    columns = (
        Column("noise scale", "figure", "percent"),
        Column(unit.name, "figure", unit.form, unit.unit),
        Column("degradation", "figure", "percent"),
        Column("kept", "figure", "percent"),
        Column("tolerance index", "figure"),
        Column("grade", "severity"),
        Column("not finite", "figure", "count"),
        Column("injections verified"),
    )
    return Table("Levels of noise", columns, tuple(map(_row, robustness.levels)))


def _row(level: LevelResult) -> Row:
    cells = (
        Figure(level.scale),
        figure_of(level.score),
        figure_of(level.degradation),
        figure_of(level.retention),
        None if level.tolerance is None else Figure(level.tolerance),
        severity_of(level.grade),
        Figure(float(level.nonfinite)),
        _proof(level),
    )
    return Row(cells)


def _proof(level: LevelResult) -> str:
    if not level.is_verified:
        return f"no: {'; '.join(level.gaps) or 'not measured'}"
    return f"{level.injections:,}" if level.scale else "none asked"


def _facts(robustness: Robustness) -> Facts:
    found = [Fact("critical threshold", _threshold(robustness))]
    low, high = robustness.sure or (None, None)
    if low is not None or high is not None:
        ends = [number(end, "percent") for end in (low, high)]
        found.append(Fact("decided to cost less, and more", f"{ends[0]} and {ends[1]}"))
    if robustness.law is not None:
        at = robustness.law.exponent
        found.append(
            Fact("exponent of harm over scale", Figure(at.estimate, at.low, at.high, at.samples, at.confidence))
        )
    found.append(Fact("cost", Figure(robustness.cost), "plain", "clean evaluations"))
    return Facts("Where it breaks", tuple(found))


def _threshold(robustness: Robustness) -> str:
    threshold = robustness.threshold
    if threshold is None:
        return "not sought or not found"
    limits = ", ".join(label(limit, "percent") for limit in BRITTLENESS.limits)
    if threshold.scale is None:
        return f"none up to {label(threshold.low, 'percent')}"
    uneven = "" if threshold.monotone else "; some larger scale was seen to cost less"
    return (
        f"{number(threshold.scale, 'percent')}, above {number(threshold.low, 'percent')}: {threshold.brittleness} "
        f"brittleness (limits {limits}){uneven}"
    )
