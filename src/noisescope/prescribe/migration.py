"""Makes a plan for moving a model from its diagnosis and, if there is one, a comparison with the target.

How far the target diverges times how sensitive the model is there says what comes first. It measures nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from noisescope.core.errors import BadInputError
from noisescope.core.migration import PROTECTION, LayerRank, Plan, Step
from noisescope.core.words import many
from noisescope.diagnose.comparison import Comparison
from noisescope.diagnose.harm import yardstick
from noisescope.diagnose.whole import Diagnosis
from noisescope.prescribe.divergence import Divergence, divergences
from noisescope.prescribe.standing import NOT_MEASURED, Standing, layer_standings, operator_standings
from noisescope.prescribe.validation import LIMITS, Move

FIX, STANDARD = 0, 3
_UNKNOWN = Standing(2, NOT_MEASURED, None, "the diagnosis did not measure it, so nothing says that it is robust")
_NOTHING = Divergence((), None, False)
_NO_REMEDY = "none needed"


@dataclass(frozen=True)
class _Place:
    """A layer, or what lies outside the layers (None), with all that is known of it."""

    layer: int | None
    standing: Standing
    divergence: Divergence
    priority: int
    scale: float

    @property
    def product(self) -> float | None:
        """What the divergence would cost if harm grew in proportion to it."""
        mape, harm = self.divergence.mape, self.standing.harm
        return None if mape is None or harm is None else mape / self.scale * max(harm, 0.0)

    @property
    def cost(self) -> float:
        """What places of one priority are ordered by."""
        return self.product if self.product is not None else self.standing.harm or 0.0


def migration(diagnosis: Diagnosis, move: Move, comparison: Comparison | None = None) -> Plan:
    """The plan; refused where the diagnosis says nothing that could be relied on."""
    _check(diagnosis, comparison)
    places = _places(diagnosis, comparison)
    costed = [*_place_steps(diagnosis, move, places), *_operator_steps(diagnosis, move)]
    steps = tuple(step for _, step in sorted(costed, key=lambda one: (one[1].priority, -one[0])))
    return Plan(
        model=move.model,
        target=move.device,
        metric=diagnosis.setting.metric,
        is_share=yardstick(diagnosis.setting).is_share,
        scale=diagnosis.setting.scale,
        steps=steps,
        layers=tuple(_ranks(places)),
        prepare=move.captures([step.command for step in steps]),
        notes=tuple(_notes(diagnosis, comparison)),
    )


def _check(diagnosis: Diagnosis, comparison: Comparison | None) -> None:
    if diagnosis.control.holds is not True:
        raise BadInputError(
            "the diagnosis is not to be relied on: noise of strength 0 has to change nothing, and it did, or was not "
            "measured. Make the model answer alike twice, repeat noisescope diagnose, then plan."
        )
    if not diagnosis.windows and not diagnosis.operators:
        raise BadInputError(
            "the diagnosis holds neither layers nor operators, so there is nothing to rank; repeat noisescope diagnose "
            "with --mode full or --mode layer."
        )
    seen = {row.layer for row in comparison.rows if row.layer is not None} if comparison else set()
    if seen and max(seen) >= diagnosis.setting.layers:
        raise BadInputError(
            f"the comparison is of a model with {max(seen) + 1} layers or more, the diagnosis of one with "
            f"{diagnosis.setting.layers}; give a comparison of the same model."
        )


def _places(diagnosis: Diagnosis, comparison: Comparison | None) -> list[_Place]:
    standings, found = layer_standings(diagnosis), divergences(comparison)
    by_operator = dict(operator_standings(diagnosis))
    layers: list[int | None] = [*range(diagnosis.setting.layers)] if standings or found else []
    layers += [None] if found.get(None, _NOTHING).faults else []
    places = []
    for layer in layers:
        standing = _UNKNOWN if layer is None else standings.get(layer, _UNKNOWN)
        divergence = found.get(layer, _NOTHING)
        at_fault = [by_operator[name] for name in divergence.operators if name in by_operator]
        fragile = min([standing.priority, *(one.priority for one in at_fault)])
        priority = _priority(fragile, divergence)
        places.append(_Place(layer, standing, divergence, priority, diagnosis.setting.scale))
    return places


def _priority(fragile: int, divergence: Divergence) -> int:
    """Both high: first. A fault in what is robust has still to be repaired; rounding there is what it tolerates."""
    if not divergence.is_high:
        return fragile
    if fragile < STANDARD:
        return FIX
    return 1 if divergence.faults else STANDARD


def _ranks(places: Sequence[_Place]) -> Iterator[LayerRank]:
    for place in sorted(places, key=lambda one: (one.priority, -one.cost)):
        if place.layer is not None:
            standing = place.standing
            yield LayerRank(
                layer=place.layer,
                priority=place.priority,
                severity=standing.word,
                harm=standing.harm,
                divergence=place.divergence.mape,
                product=place.product,
                reason=standing.reason,
            )


Costed = tuple[float, Step]


def _place_steps(diagnosis: Diagnosis, move: Move, places: Sequence[_Place]) -> Iterator[Costed]:
    def kind(place: _Place) -> tuple[object, ...]:
        return place.priority, place.divergence.is_high, place.divergence.operators, place.standing.word

    rest = []
    for _, group in groupby(places, key=kind):
        alike = list(group)
        worst = max(alike, key=lambda place: place.cost)
        if worst.divergence.faults:
            yield worst.cost, _repair(move, alike, worst)
        elif worst.priority == FIX:
            yield worst.cost, _widen(move, alike, worst)
        elif worst.priority == STANDARD:
            rest += alike
        else:
            yield worst.cost, _validate(move, alike, worst)
    if rest:
        yield max(place.cost for place in rest), _standard(diagnosis, move, rest)


def _repair(move: Move, alike: Sequence[_Place], worst: _Place) -> Step:
    operators, layers = worst.divergence.operators, _layers(alike)
    tolerated = () if worst.priority == FIX else ("noise costs little here, so it comes behind what it costs more in",)
    return Step(
        priority=worst.priority,
        component=f"{', '.join(operators)} in {spans(layers)}",
        action=f"Repair {', '.join(operators)} in {spans(layers)} on the target, and compare again",
        severity="fault",
        reasons=(*worst.divergence.reasons, worst.standing.reason, *_product(worst), *tolerated),
        command=move.again(layers),
        accept="exit status 0: no place is at fault, and no MAPE is above the limit",
        layers=layers,
        operators=operators,
    )


def _widen(move: Move, alike: Sequence[_Place], worst: _Place) -> Step:
    layers = _layers(alike)
    return Step(
        priority=FIX,
        component=spans(layers),
        action=f"Give {spans(layers)} more precision on the target: FP16 with sums in 32 bits, or FP32",
        severity=worst.standing.word,
        reasons=(*worst.divergence.reasons, worst.standing.reason, *_product(worst)),
        command=move.comparison(FIX, layers),
        accept=_within(FIX),
        layers=layers,
    )


def _validate(move: Move, alike: Sequence[_Place], worst: _Place) -> Step:
    priority, layers = worst.priority, _layers(alike)
    what = spans(layers)
    doing = (
        f"Run {what} in 16 bits (FP16), and validate it first"
        if priority == 1
        else f"Run {what} in BF16, and spot-check it"
    )
    return Step(
        priority=priority,
        component=what,
        action=doing,
        severity=worst.standing.word,
        reasons=(worst.standing.reason, *_product(worst)),
        command=move.comparison(priority, layers),
        accept=_within(priority),
        layers=layers,
    )


def _standard(diagnosis: Diagnosis, move: Move, rest: Sequence[_Place]) -> Step:
    layers = _layers(rest)
    is_share, clean = yardstick(diagnosis.setting).is_share, diagnosis.clean
    accept = _within(2)
    if is_share and clean is not None:
        known = f"{clean.estimate:.3g} ({clean.low:.3g} to {clean.high:.3g})"
        accept = f"{diagnosis.setting.metric} as on the reference, {known}"
    return Step(
        priority=STANDARD,
        component=spans(layers),
        action=f"INT8 or BF16 will do for {spans(layers)}",
        severity=rest[0].standing.word,
        reasons=(
            f"the most fragile of them: {max(rest, key=lambda p: p.cost).standing.reason}",
            *_outliers(diagnosis, layers),
        ),
        command=move.score(diagnosis.setting.metric) if is_share else move.comparison(2, layers),
        accept=accept,
        layers=layers,
    )


def _outliers(diagnosis: Diagnosis, layers: Collection[int | None]) -> Iterator[str]:
    """What INT8 needs first in these layers."""
    level = diagnosis.channels
    hit = [one.layer for one in level.layers if one.outliers and one.layer in layers] if level else []
    needed = next((r for r in level.remedies if "8" in r.format and r.remedy != _NO_REMEDY), None) if level else None
    if hit and needed:
        yield f"{spans(tuple(hit))} hold outlier channels: {needed.remedy} before {needed.format}, or BF16"


def _operator_steps(diagnosis: Diagnosis, move: Move) -> Iterator[Costed]:
    for operator, standing in operator_standings(diagnosis):
        if standing.priority < STANDARD:
            yield (
                standing.harm or 0.0,
                Step(
                    priority=standing.priority,
                    component=operator,
                    action=PROTECTION.get(operator, f"Keep {operator} in higher precision"),
                    severity=standing.word,
                    reasons=(standing.reason,),
                    command=move.check_of_operators(standing.priority),
                    accept=f"exit status 0: no fault found in {operator}",
                    operators=(operator,),
                ),
            )


def _product(place: _Place) -> Iterator[str]:
    if place.product is not None and place.divergence.is_high:
        mape, harm = place.divergence.mape or 0.0, place.standing.harm or 0.0
        yield f"divergence x sensitivity: {mape:.2g} / {place.scale:g} x {harm:.2g} = {place.product:.2g}"


def _within(priority: int) -> str:
    return f"exit status 0: MAPE up to {LIMITS[priority]:.0%} at every place"


def _layers(places: Sequence[_Place]) -> tuple[int | None, ...]:
    return tuple(place.layer for place in places)


def spans(layers: Sequence[int | None]) -> str:
    """`layer 3`, `layers 3-5, 9`, `what lies outside the layers`."""
    numbers = sorted(layer for layer in layers if layer is not None)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    named = f"layer{'s' if len(numbers) > 1 else ''} {', '.join(parts)}" if numbers else ""
    outside = "what lies outside the layers" if None in layers else ""
    return " and ".join(part for part in (named, outside) if part)


def _notes(diagnosis: Diagnosis, comparison: Comparison | None) -> Iterator[str]:
    if comparison is None:
        yield (
            "There is no comparison with the target yet, so priorities come from sensitivity alone. Capture both "
            "sides, compare them into this folder (noisescope compare A B --out RUN), and plan again."
        )
    elif comparison.first_divergent is None:
        yield f"The comparison found no place at fault among {many(len(comparison.rows), 'place')}."
    if not diagnosis.windows:
        yield "The diagnosis did not measure layers; noisescope diagnose --mode layer does."
    if not diagnosis.operators:
        yield "The diagnosis did not measure operators; noisescope diagnose --mode operator does."
    if diagnosis.channels is None:
        yield "Channels were not looked at, so nothing says whether INT8 needs a remedy for outliers first."
