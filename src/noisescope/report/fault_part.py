"""Fault tests and bit-sensitivity curves as sections of a report, or as a report of their own.

It judges nothing and uses the words of the records.
"""

from __future__ import annotations

from collections.abc import Sequence

from noisescope.core.words import many
from noisescope.diagnose.bit_curve import FORMATS, BitCurve, BitCurves
from noisescope.diagnose.fault_lines import accepted_words
from noisescope.diagnose.fault_tests import FaultCase, FaultOutcome, FaultPlan, FaultTests
from noisescope.report.judged import figure_of, filled_table, score_unit
from noisescope.report.origin import Origin, reproduce_section
from noisescope.report.view import (
    Action,
    Bar,
    Bars,
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
    Spacing,
    Table,
    Threshold,
    View,
)
from noisescope.report.wording import label

_LEVELS: dict[str, Level] = {"pass": "low", "fail": "critical", "undecided": "undecided", "error": "critical"}
_NOT_RUN = Severity("not run", "none")
# A loss of so many times what is accepted is drawn on a logarithmic axis; parts of a path that tell modules apart.
_RUINOUS, _ENDING = 10.0, 3


def _severity(word: str) -> Severity:
    return Severity(word, _LEVELS[word])


def cases_view(plan: FaultPlan, origin: Origin) -> View:
    """The report of fault tests that nobody has run yet."""
    return View(
        title=f"Fault tests of {origin.model}",
        subject=origin.workload,
        verdict=f"{many(len(plan.cases), 'fault test')}, none of them run so far.",
        severity=_NOT_RUN,
        sections=(Section("faults", "Fault tests", (_asked_table(plan), *_notes(plan))), reproduce_section(origin)),
        facts=(Fact("cases", Figure(float(len(plan.cases))), "count"),),
        made_by=origin.made_by,
    )


def outcomes_view(tests: FaultTests, origin: Origin) -> View:
    """The report of fault tests that were run."""
    return View(
        title=f"Fault tests of {origin.model}",
        subject=", ".join(part for part in (origin.device, origin.workload) if part),
        verdict=_verdict(tests),
        severity=_severity(tests.verdict),
        sections=(outcomes_section(tests), reproduce_section(origin)),
        actions=tuple(_action(outcome) for outcome in tests.outcomes if outcome.verdict == "fail"),
        facts=_facts(tests),
        made_by=origin.made_by,
    )


def curves_view(found: BitCurves, origin: Origin) -> View:
    """The report of bit-sensitivity curves."""
    worst = max(
        ((point, curve) for curve in found.curves for point in curve.points if point.loss is not None),
        key=lambda pair: pair[0].loss.estimate if pair[0].loss else 0.0,
        default=None,
    )
    verdict = "No bit could be measured."
    if worst is not None and worst[0].loss is not None:
        point, curve = worst
        verdict = (
            f"The bit that costs most is {point.part} bit {point.bit} of {curve.operator} in {curve.dtype}: "
            f"{label(round(worst[0].loss.estimate, 4), 'percent')} of the {curve.metric.replace('_', ' ')}."
        )
    return View(
        title=f"Bit sensitivity of {origin.model}",
        subject=", ".join(part for part in (origin.device, origin.workload) if part),
        verdict=verdict,
        severity=Severity("curve", "none"),
        sections=(curves_section(found), reproduce_section(origin)),
        facts=(Fact("curves", Figure(float(len(found.curves))), "count"),),
        made_by=origin.made_by,
    )


def _verdict(tests: FaultTests) -> str:
    words = {"fail": "failed", "error": "could not be run", "undecided": "undecided", "pass": "passed"}
    told = [
        f"{count} {said}" for word, said in words.items() if (count := sum(o.verdict == word for o in tests.outcomes))
    ]
    return f"{many(len(tests.outcomes), 'fault test')}: {', '.join(told)}."


def _action(outcome: FaultOutcome) -> Action:
    case = outcome.case
    return Action(
        case.name,
        "Protect what this fault strikes (checks, redundancy, clamping to the healthy range), or accept what it costs",
        "; ".join(outcome.reasons),
        _severity("fail"),
        (case.because,),
        layers=case.layers or (),
        operators=case.operators or (),
    )


def _facts(tests: FaultTests) -> tuple[Fact, ...]:
    setting = tests.setting
    return (
        Fact("metric", score_unit(setting.metric).name),
        Fact("samples", f"{setting.samples:,}, {many(len(setting.seeds), 'seed')}"),
        Fact("cases from", tests.plan.model),
    )


def outcomes_section(tests: FaultTests) -> Section:
    """Every case with its verdict, the losses as a picture, and what a faulty step leaves behind."""
    blocks: list[Block] = []
    measured = [outcome for outcome in tests.outcomes if outcome.loss is not None]
    if measured:
        blocks.append(_losses(measured))
    after = [outcome for outcome in measured if outcome.stepped is not None]
    if after:
        blocks.append(_after(after))
    blocks += [_table(tests), *_notes(tests.plan)]
    missing = tuple(Gap(one.case.name, "; ".join(one.reasons)) for one in tests.outcomes if one.verdict == "error")
    if missing:
        blocks.append(NotMeasured(missing))
    intro = (
        "Faults of the simulated hardware, planted where the diagnosis found the model fragile. Pass and fail are "
        "shown by the interval of the loss; what it straddles is undecided."
    )
    return Section("faults", "Fault tests", tuple(blocks), intro)


def _notes(plan: FaultPlan) -> list[Block]:
    return [Note(f"{note[:1].upper()}{note[1:]}.", "moderate") for note in plan.notes]


def _losses(measured: Sequence[FaultOutcome]) -> Bars:
    bars = tuple(
        Bar(
            _place(outcome.case),
            figure_of(outcome.loss) or Figure(None),
            _severity(outcome.verdict),
            layers=outcome.case.layers or (),
            operators=outcome.case.operators or (),
            note=f"{outcome.case.kind}, accepted up to {label(outcome.case.accepted.loss, 'percent')}",
        )
        for outcome in measured
    )
    limits = sorted({outcome.case.accepted.loss for outcome in measured})
    thresholds = tuple(Threshold(limit, "accepted", "critical") for limit in limits)
    caption = "A share of the clean score; under a fault of one generation step, of the tokens from that step on."
    most = max(outcome.loss.estimate for outcome in measured if outcome.loss is not None)
    # One ruinous fault would leave nothing to be seen of the others.
    spacing: Spacing = "log" if most > _RUINOUS * max(limits) else "linear"
    return Bars("Loss by fault", bars, "loss", "fault", "percent", "", spacing, thresholds, caption)


def _place(case: FaultCase) -> str:
    """Where it strikes, in few letters: a module by the end of its path, behind its layer."""
    if not case.path:
        return case.name.removeprefix(f"{case.kind} ")
    return f"{'.'.join(case.path.split('.')[-_ENDING:])} {case.side}"


def _after(outcomes: Sequence[FaultOutcome]) -> Curves:
    curves = []
    for outcome in outcomes:
        steps = outcome.stepped.lost if outcome.stepped is not None else ()
        points = tuple(
            Point(float(step), figure, outcome.case.layers or ())
            for step, lost in enumerate(steps)
            if (figure := figure_of(lost)) is not None
        )
        curves.append(Curve(outcome.case.name, points))
    return Curves(
        "Lost tokens behind a faulty step",
        tuple(curves),
        x_name="generation step, 0 the faulty one",
        measure="lost tokens",
        x_form="count",
        form="percent",
        caption="Tokens that are not those of the healthy run, which all runs go on with: what is lost behind step 0 "
        "is left in keys and values. Bands are intervals.",
    )


def _asked_table(plan: FaultPlan) -> Table:
    columns = (Column("fault test"), Column("what is planted, and what it may cost"), Column("because"))
    rows = tuple(_row(case, (case.name, accepted_words(case), case.because)) for case in plan.cases)
    return Table("Cases", columns, rows)


def _table(tests: FaultTests) -> Table:
    columns = (
        Column("fault test"),
        Column("verdict", "severity"),
        Column("loss", "figure", "percent"),
        Column("accepted", "figure", "percent"),
        Column("not finite", "figure", "percent"),
        Column("first good step", "figure"),
        Column("located"),
        Column("planted in"),
        Column("reasons"),
        Column("because"),
    )
    return filled_table("Cases", columns, [_outcome_row(outcome) for outcome in tests.outcomes])


def _outcome_row(outcome: FaultOutcome) -> Row:
    rate, stepped = outcome.nonfinite_rate, outcome.stepped
    cells = (
        outcome.case.name,
        _severity(outcome.verdict),
        figure_of(outcome.loss),
        Figure(outcome.case.accepted.loss),
        None if rate is None else Figure(rate, samples=outcome.positions),
        None if stepped is None else figure_of(stepped.recovery),
        _located(outcome),
        outcome.place or None,
        "; ".join(outcome.reasons) or None,
        outcome.case.because,
    )
    return _row(outcome.case, cells)


def _row(case: FaultCase, cells: tuple[str | Figure | Severity | None, ...]) -> Row:
    return Row(cells, case.layers or (), case.operators or ())


def _located(outcome: FaultOutcome) -> str | None:
    located = outcome.located
    if located is None:
        return None
    return f"rank {located.rank} of {located.suspects}" if located.is_found else "no"


def curves_section(found: BitCurves) -> Section:
    """A picture for each number format, and the figures."""
    dtypes = tuple(dict.fromkeys(curve.dtype for curve in found.curves))
    blocks: list[Block] = [_picture(dtype, [c for c in found.curves if c.dtype == dtype]) for dtype in dtypes]
    gaps = tuple(
        Gap(f"bit {point.bit} of {curve.operator} in {curve.dtype}", point.gaps[0])
        for curve in found.curves
        for point in curve.points
        if point.gaps
    )
    blocks += [_points(found), *([NotMeasured(gaps)] if gaps else [])]
    intro = "One given bit flips in a random share of an operator's outputs, everywhere in the model, in every run."
    return Section("bits", "Bit sensitivity", tuple(blocks), intro)


def _picture(dtype: str, curves: Sequence[BitCurve]) -> Curves:
    exponent, mantissa = FORMATS[dtype]
    drawn = tuple(Curve(f"{curve.operator}, rate {curve.rate:g}", _curve(curve)) for curve in curves)
    caption = (
        f"{dtype}: bits 0 to {mantissa - 1} are the mantissa, {mantissa} to {mantissa + exponent - 1} the exponent, "
        f"{mantissa + exponent} the sign. Bands are intervals; no loss, or a gain, lies at the bottom."
    )
    return Curves(
        f"Loss by flipped bit in {dtype}",
        drawn,
        x_name="bit",
        measure="loss",
        x_form="count",
        form="percent",
        spacing="log",
        caption=caption,
    )


def _curve(curve: BitCurve) -> tuple[Point, ...]:
    return tuple(
        Point(float(point.bit), figure, operators=(curve.operator,))
        for point in curve.points
        if (figure := figure_of(point.loss)) is not None
    )


def _points(found: BitCurves) -> Table:
    columns = (
        Column("operator"),
        Column("format"),
        Column("bit", "figure", "count"),
        Column("part"),
        Column("loss", "figure", "percent"),
        Column("not finite", "figure", "percent"),
        Column("flipped share", "figure"),
    )
    rows = tuple(
        Row(
            (
                curve.operator,
                curve.dtype,
                Figure(float(point.bit)),
                point.part,
                figure_of(point.loss),
                Figure(point.nonfinite),
                Figure(curve.rate),
            ),
            operators=(curve.operator,),
        )
        for curve in found.curves
        for point in curve.points
    )
    return Table("Every bit", columns, rows)
