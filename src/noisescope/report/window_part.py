"""The part of a diagnosis report on windows of layers: bars with thresholds and avalanche points, and the table.

It judges nothing: verdicts and avalanche points are those of the records.
"""

from __future__ import annotations

from noisescope.diagnose.setting import span_name
from noisescope.diagnose.whole import Diagnosis
from noisescope.diagnose.window import BANDS, MEASURED, AvalanchePoint, WindowResult
from noisescope.report.grids import said
from noisescope.report.judged import Unit, figure_of, filled_table, harm_unit, severity_of
from noisescope.report.view import Bar, Bars, Block, Column, Figure, Note, Row, Section, Table, Threshold
from noisescope.report.wording import label, number

LIMITS = tuple(
    Threshold(value, name, severity_of(name).level) for value, name in zip(BANDS.values, BANDS.names[1:], strict=True)
)


def window_section(diagnosis: Diagnosis) -> Section | None:
    """The windows in the order of the layers; None where they were not asked about."""
    if not diagnosis.windows:
        return None
    unit = harm_unit(diagnosis.setting.metric)
    blocks: list[Block] = [_bars(diagnosis, unit)]
    blocks += [_point(point) for point in diagnosis.points]
    blocks.append(_table(diagnosis, unit))
    size = len(diagnosis.windows[0].layers)
    intro = (
        f"Noise of {label(diagnosis.setting.scale, 'percent')} in all operators of "
        f"{'one layer' if size == 1 else f'{size} consecutive layers'} at a time."
    )
    return Section("windows", "Layers", tuple(blocks), intro)


def _label(result: WindowResult) -> str:
    return span_name(result.layers).removeprefix("layers ").removeprefix("layer ")


def _bars(diagnosis: Diagnosis, unit: Unit) -> Bars:
    measured = sum(result.answer.harm is not None for result in diagnosis.windows)
    caption = f"{measured} of {len(diagnosis.windows)} windows were measured"
    caption += "." if measured == len(diagnosis.windows) else "; a sign without a bar is a verdict from the others."
    return Bars(
        title=f"{unit.name.capitalize()} by window of layers",
        bars=tuple(_bar(result) for result in diagnosis.windows),
        measure=unit.name,
        what="window",
        form=unit.form,
        unit=unit.unit,
        thresholds=LIMITS if unit.is_share else (),
        caption=caption,
    )


def _bar(result: WindowResult) -> Bar:
    is_point = result.avalanche is not None and result.avalanche.is_point == "yes"
    return Bar(
        _label(result),
        figure_of(result.answer.harm) or Figure(None),
        severity_of(result.verdict.name),
        ("avalanche point",) if is_point else (),
        result.layers,
        note=_remark(result),
    )


def _remark(result: WindowResult) -> str:
    """What a verdict rests on where that is not a measurement, or what is missing for one."""
    if result.answer.gaps:
        return result.answer.gaps[0]
    if result.evidence != MEASURED:
        return result.evidence
    verdict = result.verdict
    if verdict.decided or not verdict.bands:
        return ""
    more = "" if verdict.more_samples is None else f", about {verdict.more_samples:,} more samples would decide"
    return f"{' or '.join(verdict.bands)}{more}"


def _point(point: AvalanchePoint) -> Note:
    share = number(point.harm.estimate, "percent")
    return Note(
        f"Avalanche point at {span_name(point.layers)} ({point.severity}): noise in {point.peak} costs {share} "
        f"[{number(point.harm.low, 'percent')}, {number(point.harm.high, 'percent')}], far more than beside it.",
        severity_of(point.severity).level,
    )


def _table(diagnosis: Diagnosis, unit: Unit) -> Table:
    columns = (
        Column("window"),
        Column("verdict", "severity"),
        Column(unit.name, "figure", unit.form, unit.unit),
        Column("interaction", "figure", unit.form, unit.unit),
        Column("adjusted p", "figure"),
        Column("predicted KL", "figure"),
        Column("evidence"),
    )
    return filled_table(
        "Windows of layers",
        columns,
        tuple(_row(result) for result in diagnosis.windows),
        f"Interaction is the {unit.name} of a window minus the sum over its layers one by one. p is that of a harm "
        "above the first limit, adjusted for the number of windows.",
    )


def _row(result: WindowResult) -> Row:
    interaction = None if result.interaction is None else figure_of(result.interaction.harm)
    cells = (
        _label(result),
        severity_of(result.verdict.name),
        figure_of(result.answer.harm),
        interaction,
        None if result.p_value is None else Figure(result.p_value),
        None if result.predicted is None else Figure(result.predicted),
        said(_remark(result) or result.evidence, _avalanche(result)),
    )
    return Row(cells, result.layers)


def _avalanche(result: WindowResult) -> str:
    """Whether errors pile up in a window, where that is not out of the question."""
    found = result.avalanche
    if found is None or found.is_point == "no":
        return ""
    return f"avalanche point: {found.is_point}, {found.reason}"
