"""A diagnosis as five sections under the names that users of the verl fork know, and those as checked, versioned JSON.

It judges nothing: words, figures and recommendations are those of the diagnosis and of the view made of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from noisescope.core.codec import parse, to_plain
from noisescope.core.errors import BadInputError
from noisescope.diagnose.channel import ChannelLevel, LayerChannels, ModuleChannels
from noisescope.diagnose.operator import OperatorResult
from noisescope.diagnose.whole import Diagnosis
from noisescope.diagnose.window import AvalanchePoint, WindowResult
from noisescope.measure.statistics import Interval
from noisescope.report.judged import harm_unit
from noisescope.report.shape import read
from noisescope.report.view import View

FORMAT, VERSION = "noisescope integrated diagnosis", 1
_KEY = ("error", "critical", "high", "moderate")


@dataclass(frozen=True)
class Summary:
    """What was found in short. `measure` is what all harm is given in; no risk where nothing could be judged."""

    verdict: str
    severity: str
    risk_level: str | None
    risk_score: float | None
    critical_operators: int
    avalanche_points: int
    outlier_percent: float
    metric: str
    measure: str
    clean_score: Interval | None
    noise_kind: str
    noise_scale: float
    samples: int
    seeds: int
    zero_noise_control: Literal["exact", "broken", "not measured"]
    cost: float
    key_findings: tuple[str, ...]
    not_measured: tuple[str, ...]


@dataclass(frozen=True)
class OperatorPart:
    """One operator kind. `bands` are the verdicts that an undecided one lies between."""

    operator: str
    verdict: str
    decided: bool
    bands: tuple[str, ...]
    harm: Interval | None
    score: Interval | None
    best_rank: int | None
    worst_rank: int | None
    more_samples: int | None


@dataclass(frozen=True)
class WindowPart:
    """One window of layers, and whether errors pile up in it."""

    layers: tuple[int, ...]
    verdict: str
    decided: bool
    bands: tuple[str, ...]
    harm: Interval | None
    interaction: Interval | None
    predicted_kl: float | None
    evidence: str
    avalanche: str | None


@dataclass(frozen=True)
class PointPart:
    """A place where errors pile up."""

    layers: tuple[int, ...]
    severity: str
    peak: str
    harm: Interval


@dataclass(frozen=True)
class LayerPart:
    """All windows in the order of the layers, and the avalanche points, worst first."""

    windows: tuple[WindowPart, ...]
    avalanche_points: tuple[PointPart, ...]
    screening_agreement: Interval | None


@dataclass(frozen=True)
class ModulePart:
    """The outlier channels at one side of one module."""

    path: str
    side: str
    layer: int | None
    severity: str
    num_channels: int
    outlier_indices: tuple[int, ...]
    outlier_ratios: tuple[float, ...]
    places: tuple[str, ...]
    max_ratio: float


@dataclass(frozen=True)
class RemedyPart:
    """A known remedy for one format."""

    format: str
    remedy: str
    why: str


@dataclass(frozen=True)
class ChannelPart:
    """Outlier channels of all watched modules, by layer, and one by one where there are any."""

    outlier_percent: float
    tokens: int
    layers: tuple[LayerChannels, ...]
    modules: tuple[ModulePart, ...]
    remedies: tuple[RemedyPart, ...]


@dataclass(frozen=True)
class Recommendation:
    """What to do, most urgent first: where, why, and on what evidence."""

    priority: int
    severity: str
    component: str
    issue: str
    action: str
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Sections:
    """The whole. A level that was not asked for is None, or has no entries."""

    executive_summary: Summary
    operator_analysis: tuple[OperatorPart, ...]
    layer_analysis: LayerPart
    channel_analysis: ChannelPart | None
    recommendations: tuple[Recommendation, ...]


def sections_of(diagnosis: Diagnosis, view: View) -> Sections:
    """The sections of a diagnosis and of the view that was made of it."""
    agreement = None if diagnosis.agreement is None else diagnosis.agreement.interval
    points = tuple(map(_point, diagnosis.points))
    return Sections(
        executive_summary=_summary(diagnosis, view),
        operator_analysis=tuple(map(_operator, diagnosis.operators)),
        layer_analysis=LayerPart(tuple(map(_window, diagnosis.windows)), points, agreement),
        channel_analysis=None if diagnosis.channels is None else _channels(diagnosis.channels),
        recommendations=tuple(_recommendations(view)),
    )


def _summary(diagnosis: Diagnosis, view: View) -> Summary:
    setting, risk, unit = diagnosis.setting, diagnosis.risk, harm_unit(diagnosis.setting.metric)
    holds = diagnosis.control.holds
    return Summary(
        verdict=view.verdict,
        severity=view.severity.word,
        risk_level=None if view.risk is None else risk.level,
        risk_score=None if view.risk is None else risk.points,
        critical_operators=risk.critical_operators,
        avalanche_points=risk.avalanche_points,
        outlier_percent=risk.outlier_percent,
        metric=setting.metric,
        measure="share of the clean score" if unit.is_share else f"{unit.name} {unit.unit}".strip(),
        clean_score=diagnosis.clean,
        noise_kind=setting.kind,
        noise_scale=setting.scale,
        samples=setting.samples,
        seeds=len(setting.seeds),
        zero_noise_control="not measured" if holds is None else "exact" if holds else "broken",
        cost=diagnosis.cost,
        key_findings=tuple(one.statement for one in diagnosis.findings if one.severity in _KEY),
        not_measured=(*diagnosis.unmeasured, *diagnosis.control.gaps),
    )


def _operator(result: OperatorResult) -> OperatorPart:
    verdict, rank = result.verdict, result.rank
    return OperatorPart(
        result.operator,
        verdict.name,
        verdict.decided,
        verdict.bands,
        result.answer.harm,
        result.score,
        None if rank is None else rank.low,
        None if rank is None else rank.high,
        verdict.more_samples,
    )


def _window(result: WindowResult) -> WindowPart:
    return WindowPart(
        result.layers,
        result.verdict.name,
        result.verdict.decided,
        result.verdict.bands,
        result.answer.harm,
        None if result.interaction is None else result.interaction.harm,
        result.predicted,
        result.evidence,
        None if result.avalanche is None else result.avalanche.is_point,
    )


def _point(point: AvalanchePoint) -> PointPart:
    return PointPart(point.layers, point.severity, point.peak, point.harm)


def _channels(level: ChannelLevel) -> ChannelPart:
    modules = tuple(_module(one) for one in level.modules if one.outliers.indices)
    remedies = tuple(RemedyPart(one.format, one.remedy, one.why) for one in level.remedies)
    return ChannelPart(level.percentage, level.tokens, level.layers, modules, remedies)


def _module(module: ModuleChannels) -> ModulePart:
    found = module.outliers
    return ModulePart(
        found.path,
        found.side,
        module.layer,
        found.severity,
        found.channels,
        found.indices,
        found.ratios,
        found.places,
        found.max_ratio,
    )


def _recommendations(view: View) -> Iterator[Recommendation]:
    for place, one in enumerate(view.actions, start=1):
        yield Recommendation(
            one.priority or place, one.severity.word, one.component, one.issue, one.action, one.evidence
        )


def to_document(sections: Sections) -> dict[str, Any]:
    """The sections as dicts and lists under their names, with the format and its version."""
    return {"format": FORMAT, "version": VERSION, **to_plain(sections)}


def to_text(sections: Sections) -> str:
    """The document as JSON, after proof that it is read back as it was."""
    text = json.dumps(to_document(sections), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    if to_plain(from_text(text)) != to_plain(sections):
        raise BadInputError("these sections do not survive being written; expected values of the declared types only.")
    return text


def from_text(text: str) -> Sections:
    """The sections in a document; anything else is refused with the place where it differs."""
    try:
        document = parse(text)
    except ValueError as problem:
        raise BadInputError(f"not JSON ({problem}); expected a report that IntegratedDiagnostic wrote.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadInputError(f"no {FORMAT}: expected a JSON object whose format is {FORMAT!r}.")
    if document.get("version") is not VERSION:
        raise BadInputError(
            f"report of version {document.get('version')!r}: this noisescope reads version {VERSION}; make it anew."
        )
    return read(Sections, {name: part for name, part in document.items() if name not in ("format", "version")})
