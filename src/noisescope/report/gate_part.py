"""A gate as a section of a report, or as a report of its own: the verdict by operator, and the trend over checkpoints.

It judges nothing and uses the words of the records.
"""

from __future__ import annotations

from noisescope.core.words import many
from noisescope.diagnose.gate import Gate, OperatorGate
from noisescope.diagnose.gated import Gated, Visit
from noisescope.report.judged import Unit, figure_of, filled_table, harm_unit, score_unit, severity_of
from noisescope.report.origin import Origin, reproduce_section
from noisescope.report.view import (
    Action,
    Block,
    Column,
    Curve,
    Curves,
    Fact,
    Figure,
    Gap,
    Level,
    Note,
    NotMeasured,
    Point,
    Row,
    Section,
    Severity,
    Table,
    Threshold,
    View,
)
from noisescope.report.wording import label

_LEVELS: dict[str, Level] = {
    "pass": "low",
    "within": "low",
    "fail": "critical",
    "beyond": "critical",
    "undecided": "undecided",
    "error": "critical",
}


def _severity(word: str) -> Severity:
    return Severity(word, _LEVELS.get(word, severity_of(word).level))


def gate_view(gated: Gated, origin: Origin) -> View:
    """The report of a gate."""
    return View(
        title=f"Gate for {gated.checkpoint.name}",
        subject=", ".join(part for part in (origin.device, origin.workload) if part),
        verdict=_verdict(gated),
        severity=_severity(gated.gate.verdict),
        sections=(gate_section(gated), trend_section(gated), reproduce_section(origin)),
        actions=_actions(gated),
        facts=_facts(gated),
        made_by=origin.made_by,
    )


def _verdict(gated: Gated) -> str:
    gate = gated.gate
    if gate.verdict == "pass":
        return f"Noise costs no operator more than its limits allow: {_limits(gated)}."
    worst = next(iter(gate.findings), None)
    if gate.verdict == "undecided":
        open_ = sum(one.verdict == "undecided" for one in gate.operators)
        return (
            f"No operator is shown to be beyond its limits; {open_} of {many(len(gate.operators), 'operator')} could "
            f"not be shown to be within: {_limits(gated)}."
        )
    return f"{worst.statement}." if worst is not None else "The checkpoint could not be judged."


def _limits(gated: Gated) -> str:
    rules, parts = gated.gate.rules, []
    if gated.baseline:
        parts.append(f"at most {rules.factor:g} times what {gated.baseline} loses")
    if rules.max_degradation is not None and harm_unit(gated.gate.setting.metric).is_share:
        parts.append(f"at most {label(rules.max_degradation, 'percent')}")
    return " and ".join(parts) or "none"


def _actions(gated: Gated) -> tuple[Action, ...]:
    gate = gated.gate
    return tuple(
        Action(
            one.operator,
            f"Find out what made {one.operator} more fragile (noisescope diagnose --mode layer), or keep it in higher "
            "precision",
            next(f.statement for f in gate.findings if f.statement.startswith(f"{one.operator}:")),
            severity_of("critical"),
            operators=(one.operator,),
        )
        for one in gate.operators
        if one.verdict == "beyond"
    )


def _facts(gated: Gated) -> tuple[Fact, ...]:
    gate, unit = gated.gate, score_unit(gated.gate.setting.metric)
    setting, clean = gate.setting, figure_of(gate.clean)
    found = [
        Fact("metric", unit.name),
        Fact("clean score", "not measured" if clean is None else clean, unit.form, unit.unit),
        Fact("noise", f"{setting.kind.replace('_', ' ')}, {label(setting.scale, 'percent')}"),
        Fact("samples", f"{setting.samples:,}, {many(len(setting.seeds), 'seed')}"),
        Fact("baseline", gated.baseline or "none"),
        Fact("limits", _limits(gated)),
    ]
    if gate.clean_change is not None:
        change = figure_of(gate.clean_change)
        found += [] if change is None else [Fact("clean score gained over the baseline", change, "plain", unit.unit)]
    return tuple(found)


def gate_section(gated: Gated) -> Section:
    """Every operator beside the baseline."""
    gate = gated.gate
    blocks: list[Block] = [_table(gate)] if gate.operators else []
    blocks += [Note(f"{finding.statement}.", "moderate") for finding in gate.findings if finding.severity == "warning"]
    blocks += [Note(f"{finding.statement}", "critical") for finding in gate.findings if finding.severity == "error"]
    if gate.gaps:
        blocks.append(NotMeasured(tuple(Gap("a trial", text) for text in gate.gaps)))
    sure = label(gate.rules.confidence, "percent")
    intro = (
        "Noise in one operator at a time, everywhere, on the samples and from the seeds of the baseline. Beyond and "
        f"within are shown at {sure}: for beyond, all limits of all operators together."
    )
    return Section("gate", "Gate", tuple(blocks), intro)


def _table(gate: Gate) -> Table:
    unit = harm_unit(gate.setting.metric)
    columns = (
        Column("operator"),
        Column("verdict", "severity"),
        Column(unit.name, "figure", unit.form, unit.unit),
        Column("of the baseline", "figure", unit.form, unit.unit),
        Column(f"above {gate.rules.factor:g} times the baseline's", "figure", unit.form, unit.unit),
        Column("p, baseline", "figure"),
        Column("p, maximum", "figure"),
        Column("not finite", "figure", "count"),
        Column("remarks"),
    )
    caption = "P-values are those that a limit is kept, adjusted for all limits of all operators (Holm)."
    return filled_table("Operators at the gate", columns, tuple(map(_row, gate.operators)), caption)


def _row(one: OperatorGate) -> Row:
    more = None if not one.more_samples else f"about {one.more_samples:,} more samples would decide"
    cells = (
        one.operator,
        _severity(one.verdict),
        figure_of(one.harm),
        figure_of(one.baseline),
        figure_of(one.excess),
        None if one.p_baseline is None else Figure(one.p_baseline),
        None if one.p_maximum is None else Figure(one.p_maximum),
        Figure(float(one.nonfinite)) if one.nonfinite else None,
        f"beyond {' and '.join(one.beyond)}" if one.beyond else more,
    )
    return Row(cells, operators=(one.operator,))


def trend_section(gated: Gated) -> Section:
    """How the operators fared over the checkpoints so far."""
    unit = harm_unit(gated.gate.setting.metric)
    names = dict.fromkeys(name for visit in gated.history for name, _ in visit.operators)
    curves = tuple(Curve(name, _points(gated, name)) for name in names)
    rules = gated.gate.rules
    has_limit = unit.is_share and rules.max_degradation is not None
    limit = (Threshold(rules.max_degradation, "limit", "critical"),) if has_limit and rules.max_degradation else ()
    drawn = Curves(
        title=f"{unit.name.capitalize()} over the checkpoints",
        curves=curves,
        x_name="checkpoint",
        measure=unit.name,
        x_form="count",
        form=unit.form,
        unit=unit.unit,
        thresholds=limit,
        caption="Checkpoints of one architecture, on the same samples under the same noise; bands are intervals.",
    )
    return Section("trend", "Trend", (drawn, _visits(gated.history)))


def _points(gated: Gated, name: str) -> tuple[Point, ...]:
    found = []
    for place, visit in enumerate(gated.history, 1):
        figure = figure_of(dict(visit.operators).get(name))
        if figure is not None:
            found.append(Point(float(place), figure, operators=(name,)))
    return tuple(found)


def _visits(history: tuple[Visit, ...]) -> Table:
    metric = score_unit(history[-1].metric) if history else Unit("score", "plain", "")
    columns = (
        Column("number", "figure", "count"),
        Column("checkpoint"),
        Column("hash of the weights"),
        Column("when (UTC)"),
        Column("gate", "severity"),
        Column(metric.name, "figure", metric.form, metric.unit),
    )
    rows = tuple(
        Row(
            (
                Figure(float(place)),
                visit.checkpoint,
                visit.fingerprint[:8],
                visit.when,
                _severity(visit.verdict),
                figure_of(visit.clean),
            )
        )
        for place, visit in enumerate(history, 1)
    )
    return Table("Checkpoints", columns, rows)
