"""The part of a diagnosis report on operators: the map from screening, the scores and the table.

It judges nothing: verdicts and ranks are those of the records.
"""

from __future__ import annotations

from noisescope.core.words import many
from noisescope.diagnose.operator import SCORES, OperatorResult
from noisescope.diagnose.setting import elementary
from noisescope.diagnose.whole import Diagnosis
from noisescope.measure.profile import Profile
from noisescope.report.judged import Unit, figure_of, filled_table, harm_unit, severity_of
from noisescope.report.view import (
    Bar,
    Bars,
    Block,
    Column,
    Figure,
    Heatmap,
    Note,
    Row,
    Section,
    Table,
    Threshold,
)
from noisescope.report.wording import label


def map_section(diagnosis: Diagnosis, profile: Profile) -> Section:
    """Predicted harm by operator and layer, and how far the prediction can be trusted."""
    blocks: tuple[Block, ...] = (_heatmap(diagnosis, profile), *_agreement(diagnosis))
    intro = (
        "Where noise is predicted to hurt, from one backward pass over the whole model: half the variance of the noise "
        "times the Fisher information at each place. The levels below are measured by injection."
    )
    return Section("map", "Where it hurts", blocks, intro)


def _heatmap(diagnosis: Diagnosis, profile: Profile) -> Heatmap:
    setting = diagnosis.setting
    harm = {key: value for key, value in profile.at_scale(setting.scale).harm.items() if elementary((key[1],))}
    totals: dict[str, float] = {}
    for (_, operator), value in harm.items():
        totals[operator] = totals.get(operator, 0.0) + value
    operators = tuple(sorted(totals, key=lambda name: (-totals[name], name)))
    outside: tuple[int | None, ...] = (None,) if any(layer is None for layer, _ in harm) else ()
    layers = (*range(setting.layers), *outside)
    cells = tuple(
        tuple(
            Figure(harm[layer, operator], samples=profile.tokens) if (layer, operator) in harm else None
            for layer in layers
        )
        for operator in operators
    )
    return Heatmap(
        title="Predicted harm by operator and layer",
        operators=operators,
        layers=layers,
        cells=cells,
        measure="predicted KL to clean",
        unit="nats per token",
        spacing="log",
        missing="no such operator there",
        caption=f"Relative noise of {label(setting.scale, 'percent')}; n counts tokens. A prediction from "
        f"{many(profile.draws, 'draw')} of directions has no interval.",
    )


def _agreement(diagnosis: Diagnosis) -> tuple[Note, ...]:
    found = diagnosis.agreement
    if found is None:
        return ()
    at, trusted = found.interval, found.interval.low > 0
    text = (
        f"Checked against injection: over the {at.samples} measured windows, predicted and measured harm correlate by "
        f"Spearman {at.estimate:.2f} [{at.low:.2f}, {at.high:.2f}]"
    )
    doubt = f"{text}. An interval that holds 0 does not bear the map out: take it as a hint, or measure more samples."
    return (Note(f"{text}." if trusted else doubt, "none" if trusted else "moderate"),)


def operator_section(diagnosis: Diagnosis) -> Section | None:
    """The operators, the most harmful first; None where they were not asked about."""
    if not diagnosis.operators:
        return None
    unit = harm_unit(diagnosis.setting.metric)
    blocks: list[Block] = [_scores(diagnosis, unit), _table(diagnosis, unit)]
    blocks += [Note(f"Not told apart by these samples: {', '.join(tie)}.") for tie in diagnosis.ties]
    scale = label(diagnosis.setting.scale, "percent")
    intro = f"Noise of {scale} in one kind of operator at a time, everywhere in the model."
    if unit.is_share:
        intro += " The score is the degradation over the scale of the noise."
    return Section("operators", "Operators", tuple(blocks), intro)


def _scores(diagnosis: Diagnosis, unit: Unit) -> Bars:
    limits = tuple(
        Threshold(value, name, severity_of(name).level)
        for value, name in zip(SCORES.values, SCORES.names[1:], strict=True)
    )
    return Bars(
        title="Score by operator" if unit.is_share else "Harm by operator",
        bars=tuple(_bar(result, unit) for result in diagnosis.operators),
        measure="score" if unit.is_share else unit.name,
        what="operator",
        unit=unit.unit,
        thresholds=limits if unit.is_share else (),
    )


def _bar(result: OperatorResult, unit: Unit) -> Bar:
    shown = result.score if unit.is_share else result.answer.harm
    note = result.answer.gaps[0] if result.answer.gaps else _would_decide(result)
    return Bar(
        result.operator,
        figure_of(shown) or Figure(None),
        severity_of(result.verdict.name),
        operators=(result.operator,),
        note=note,
    )


def _would_decide(result: OperatorResult) -> str:
    """Between which bands an undecided verdict lies, and what would decide it."""
    verdict = result.verdict
    if verdict.decided or not verdict.bands:
        return ""
    more = "" if verdict.more_samples is None else f", about {verdict.more_samples:,} more samples would decide"
    return f"{' or '.join(verdict.bands)}{more}"


def _table(diagnosis: Diagnosis, unit: Unit) -> Table:
    columns = (
        Column("operator"),
        Column("verdict", "severity"),
        Column(unit.name, "figure", unit.form, unit.unit),
        Column("score", "figure"),
        Column("rank"),
        Column("decided after", "figure", "count", "samples"),
        Column("not finite", "figure", "count"),
        Column("remarks"),
    )
    return filled_table(
        "Sensitivity by operator",
        columns,
        tuple(_row(result) for result in diagnosis.operators),
        "Ranks are the places that these samples leave possible. Intervals hold for one figure; a verdict also allows "
        "for having looked more than once.",
    )


def _row(result: OperatorResult) -> Row:
    answer, rank = result.answer, result.rank
    places = "" if rank is None else str(rank.low) if rank.low == rank.high else f"{rank.low} to {rank.high}"
    cells = (
        result.operator,
        severity_of(result.verdict.name),
        figure_of(answer.harm),
        figure_of(result.score),
        places or None,
        None if answer.decided_after is None else Figure(float(answer.decided_after)),
        Figure(float(answer.nonfinite)) if answer.nonfinite else None,
        answer.gaps[0] if answer.gaps else _would_decide(result) or None,
    )
    return Row(cells, operators=(result.operator,))
