"""What to do about a diagnosis: recommendations by priority, each with its component, its issue and its evidence.

It rests on the verdicts of the records alone and measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from noisescope.core.migration import PROTECTION
from noisescope.core.words import many
from noisescope.diagnose.ledger import Answer
from noisescope.diagnose.operator import SCORES, OperatorResult
from noisescope.diagnose.setting import span_name
from noisescope.diagnose.whole import Diagnosis
from noisescope.diagnose.window import BANDS, AvalanchePoint, WindowResult
from noisescope.report.grids import figure_text
from noisescope.report.judged import figure_of, harm_unit, severity_of
from noisescope.report.view import Action, Level
from noisescope.report.wording import label, number

Result = OperatorResult | WindowResult
_PRIORITY: Mapping[Level, int] = {"critical": 1, "high": 2, "moderate": 3, "undecided": 4, "low": 5, "none": 5}
# By the usual rule of mixed precision: what costs more than 15 % needs 16 bits, what costs more than 5 % needs 8.
_BITS: Mapping[str, str] = {"critical": "in 16 bits", "high": "in 8 bits or more", "moderate": "in 8 bits or more"}
_NO_REMEDY = "none needed"


def recommendations(diagnosis: Diagnosis) -> tuple[Action, ...]:
    """All of them, the most urgent first, numbered from 1."""
    if diagnosis.control.holds is not True:
        found = [_distrust(diagnosis)]
    else:
        found = [
            *(_avalanche(diagnosis, point) for point in diagnosis.points),
            *_operators(diagnosis),
            *_windows(diagnosis),
            *_first_in_line(diagnosis),
            *_channels(diagnosis),
            *_undecided(diagnosis),
            *_gaps(diagnosis),
        ]
    ordered = sorted(found, key=lambda action: action.priority or 0)
    return tuple(ordered) or (_nothing(diagnosis),)


def _action(component: str, action: str, issue: str, word: str, evidence: Sequence[str]) -> Action:
    severity = severity_of(word)
    return Action(component, action, issue, severity, tuple(evidence), _PRIORITY[severity.level])


def _distrust(diagnosis: Diagnosis) -> Action:
    statements = [finding.statement for finding in diagnosis.findings if finding.severity == "error"]
    return _action(
        "measurement",
        "Make the model answer the same question the same way, then repeat the diagnosis",
        "Noise of strength 0 has to change nothing, and nothing is judged until it does.",
        "error",
        statements,
    )


def _located(action: Action, layers: tuple[int, ...] = (), operators: tuple[str, ...] = ()) -> Action:
    return Action(
        action.component,
        action.action,
        action.issue,
        action.severity,
        action.evidence,
        action.priority,
        layers,
        operators,
    )


def _avalanche(diagnosis: Diagnosis, point: AvalanchePoint) -> Action:
    peak = next(result for result in diagnosis.windows if result.name == point.peak)
    unit = harm_unit(diagnosis.setting.metric)
    evidence = [f"{point.peak}: {figure_text(figure_of(point.harm), unit.form, unit.unit)}"]
    if peak.avalanche is not None and peak.avalanche.ratio is not None:
        beside = " and ".join(peak.avalanche.neighbours)
        evidence.append(f"{number(peak.avalanche.ratio, 'times')} the harm of {beside}")
    if peak.interaction is not None and peak.interaction.harm.low > 0:
        extra = figure_text(figure_of(peak.interaction.harm), unit.form, unit.unit)
        evidence.append(f"beyond the sum of its layers one by one: {extra}")
    action = _action(
        span_name(point.layers),
        f"Keep {span_name(point.layers)} in 16 bits, and validate them first on the target",
        "Errors pile up here: noise in these layers together costs far more than beside them.",
        point.severity,
        evidence,
    )
    return _located(action, point.layers)


def _operators(diagnosis: Diagnosis) -> Iterator[Action]:
    """A recommendation for each operator that is decided not to be robust."""
    for result in diagnosis.operators:
        verdict = result.verdict
        if verdict.decided and verdict.name in SCORES.names[1:]:
            action = _action(
                result.operator,
                PROTECTION.get(result.operator, f"Keep {result.operator} in higher precision"),
                f"Noise of {label(diagnosis.setting.scale, 'percent')} in this operator alone costs too much.",
                verdict.name,
                [_cost(diagnosis, result)],
            )
            yield _located(action, operators=(result.operator,))


def _cost(diagnosis: Diagnosis, result: OperatorResult) -> str:
    score = "" if result.score is None else f", score {figure_text(figure_of(result.score))}"
    return f"{_harm(diagnosis, result.answer)}{score}"


def _windows(diagnosis: Diagnosis) -> Iterator[Action]:
    """One recommendation for each run of windows of one verdict that is not robust and holds no avalanche point."""
    # A window that only overlaps an avalanche point is told with it.
    size = len(diagnosis.windows[0].layers) if diagnosis.windows else 1
    spans = [range(point.layers[0] - size + 1, point.layers[-1] + size) for point in diagnosis.points]
    told = {layer for span in spans for layer in span}
    for word, group in groupby(diagnosis.windows, key=lambda r: r.verdict.name if r.verdict.decided else ""):
        run = list(group)
        layers = tuple(range(run[0].layers[0], run[-1].layers[-1] + 1))
        if word in BANDS.names[1:] and not set(layers) <= told:
            what = f"{'layer' if len(layers) == 1 else 'layers'} together"
            action = _action(
                span_name(layers),
                f"Keep {span_name(layers)} {_BITS[word]}",
                f"Noise in {len(run[0].layers)} of these {what} costs enough to be called {word}.",
                word,
                [_worst(diagnosis, run)],
            )
            yield _located(action, layers)


def _worst(diagnosis: Diagnosis, run: Sequence[WindowResult]) -> str:
    """The most harmful measured window of a run, or what its verdict rests on."""
    measured = [(result.answer.harm.estimate, result) for result in run if result.answer.harm is not None]
    if not measured:
        return f"{run[0].name}: {run[0].evidence}"
    return _harm(diagnosis, max(measured, key=lambda pair: pair[0])[1].answer)


def _first_in_line(diagnosis: Diagnosis) -> Iterator[Action]:
    """Where no limits apply, what harm is proven to be largest at."""
    if harm_unit(diagnosis.setting.metric).is_share:
        return
    worst = [_largest(diagnosis.operators), _largest(diagnosis.windows)]
    answers = [one.answer for one in worst if one is not None]
    if answers:
        action = _action(
            " and ".join(answer.name for answer in answers),
            f"Give precision to {' and '.join(answer.name for answer in answers)} first",
            "Harm is largest there. This metric has no limits by which to call it too much.",
            "note",
            [_harm(diagnosis, answer) for answer in answers],
        )
        layers = tuple(layer for one in worst if isinstance(one, WindowResult) for layer in one.layers)
        yield _located(action, layers)


def _largest(group: Sequence[Result]) -> Result | None:
    """The one with the most harm, of those that are shown to do any."""
    shown = [
        (one.answer.harm.estimate, i) for i, one in enumerate(group) if one.answer.harm and one.answer.harm.low > 0
    ]
    return group[max(shown)[1]] if shown else None


def _harm(diagnosis: Diagnosis, answer: Answer) -> str:
    unit = harm_unit(diagnosis.setting.metric)
    return f"{answer.name}: {unit.name} {figure_text(figure_of(answer.harm), unit.form, unit.unit)}"


def _channels(diagnosis: Diagnosis) -> Iterator[Action]:
    """One recommendation with the known remedy for each format, if there are outliers and a format needs one."""
    level = diagnosis.channels
    if level is None or not any(one.outliers for one in level.layers):
        return
    needed = [remedy for remedy in level.remedies if remedy.remedy != _NO_REMEDY]
    if not needed:
        return
    worst = max(level.layers, key=lambda one: one.max_ratio)
    hit = tuple(one.layer for one in level.layers if one.outliers)
    remedies = ", ".join(f"{one.remedy} for {one.format}" for one in needed)
    issue = (
        f"{many(sum(one.outliers for one in level.layers), 'outlier channel')} in {many(len(hit), 'layer')}, the "
        f"largest {number(worst.max_ratio, 'times')} the median channel, in layer {worst.layer}."
    )
    evidence = [f"{one.format}: {one.why}" for one in needed]
    action = f"Treat the outlier channels before quantizing: {remedies}"
    yield _located(_action("channels", action, issue, worst.severity, evidence), hit)


def _undecided(diagnosis: Diagnosis) -> Iterator[Action]:
    """One recommendation for all that more samples would decide."""
    open_ = [one for one in _answers(diagnosis) if one.verdict.bands and not one.verdict.decided and not one.gaps]
    wanted = {one.name: one.verdict.more_samples for one in open_ if one.verdict.more_samples}
    if wanted:
        names = sorted(wanted, key=lambda name: wanted[name] or 0)
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        nearest, all_ = min(wanted.values()), max(wanted.values())
        action = f"Repeat with more samples: about {nearest:,} more would decide {names[0]}"
        evidence = [f"about {all_:,} more would decide all {len(names)}"] if len(names) > 1 else []
        yield _action("sample size", action, f"{_straddle(len(names))}: {shown}.", "undecided", evidence)


def _straddle(verdicts: int) -> str:
    return "The interval of 1 verdict straddles a limit" if verdicts == 1 else f"{verdicts} verdicts straddle a limit"


def _answers(diagnosis: Diagnosis) -> list[Answer]:
    return [one.answer for one in diagnosis.operators] + [one.answer for one in diagnosis.windows]


def _gaps(diagnosis: Diagnosis) -> Iterator[Action]:
    """One recommendation for all trials that failed."""
    failed = [gap for answer in _answers(diagnosis) for gap in answer.gaps]
    if failed:
        action = "Repeat the command: trials that failed are run again, the others are not"
        yield _action("trials", action, f"{len(failed)} trials are missing or failed.", "undecided", failed[:3])


def _nothing(diagnosis: Diagnosis) -> Action:
    return _action(
        "whole model",
        "Find where it breaks: measure robustness at larger scales, or try the number format of the target",
        f"Nothing that was measured is fragile at noise of {label(diagnosis.setting.scale, 'percent')}.",
        diagnosis.risk.level,
        [],
    )
