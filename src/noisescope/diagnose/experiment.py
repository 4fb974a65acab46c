"""What follows from arms that were trained under different noise: their scores, and one verdict for each claim.

Claims and limits stand here before anything is trained. A claim is verified where it is shown to hold beyond its limit,
falsified where the opposite is shown, both at 5 % with items and training seeds drawn at random, and else undecided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, TypeVar

import numpy as np

from noisescope.core.errors import BadInputError
from noisescope.core.experiment import (
    ADAPTIVE,
    BACKWARD,
    BOTH,
    FORWARD,
    LEAST_ITEMS,
    LEAST_SEEDS,
    NONE,
    UNIFORM,
    Arm,
    Disturbance,
    Recipe,
    Trained,
    World,
)
from noisescope.measure.crossed import Crossed, crossed_mean, retained
from noisescope.measure.metrics import METRICS
from noisescope.measure.statistics import FloatArray, Interval, mean_interval

ALPHA, AT = 0.05, 0.05
# Below twice what guessing gets right, nothing was learned that noise could cost.
_LEARNED = 2.0
# Two arms have the same mean noise if what was realised is as near as this.
_SAME = 0.05
Verdict = Literal["verified", "falsified", "undecided"]
K = TypeVar("K", str, int)


@dataclass(frozen=True)
class Claim:
    """A difference between two arms, first less other, that is said to be above, below or within a limit.

    `quantity` is the retention at 5 % noise, or the score without noise.
    """

    name: str
    says: str
    quantity: Literal["retention", "score"]
    first: str
    other: str
    side: Literal["above", "below", "within"]
    limit: float


CLAIMS: Mapping[str, tuple[Claim, ...]] = MappingProxyType(
    {
        "e8": (
            Claim(
                "forward only keeps more",
                "Forward-only training keeps more at 5 % noise than training with both, by 5 points or more.",
                "retention",
                FORWARD,
                BOTH,
                "above",
                0.05,
            ),
            Claim(
                "backward only is poor",
                "Backward-only training keeps at most 2 points more at 5 % noise than training without noise.",
                "retention",
                BACKWARD,
                NONE,
                "below",
                0.02,
            ),
            Claim(
                "both train alike",
                "Training with both and forward only end less than 1 point apart without noise.",
                "score",
                BOTH,
                FORWARD,
                "within",
                0.01,
            ),
        ),
        "adaptive": (
            Claim(
                "adaptive scales keep more",
                "Adaptive scales keep more at 5 % noise than one scale of the same mean.",
                "retention",
                ADAPTIVE,
                UNIFORM,
                "above",
                0.0,
            ),
            Claim(
                "adaptive scales cost nothing",
                "Adaptive scales cost less than 1 point of the score without noise.",
                "score",
                ADAPTIVE,
                UNIFORM,
                "above",
                -0.01,
            ),
        ),
    }
)


@dataclass(frozen=True, eq=False)
class Evaluated:
    """The values of one arm by level, [seeds, items], means over the draws of the noise; and how each was trained.

    `injections` counts those that were made at each level of the test.
    """

    arms: tuple[Arm, ...]
    trained: tuple[Trained, ...]
    values: Mapping[float, FloatArray]
    injections: Mapping[float, int]


@dataclass(frozen=True)
class AtLevel:
    """The score of an arm under noise of one scale, what that is of its score without, and the score of each seed."""

    level: float
    score: Interval
    kept: Interval | None
    by_seed: tuple[float, ...]
    injections: int = 0


@dataclass(frozen=True)
class ArmResult:
    """How an arm was trained and how it held out. Counts are sums over the seeds, strengths means over them."""

    name: str
    levels: tuple[AtLevel, ...]
    losses: tuple[tuple[int, float], ...]
    forward: int
    backward: int
    realised: tuple[tuple[str, float], ...]
    by_layer: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Judged:
    """The verdict on a claim, the difference it speaks of, and one-sided p-values; `why` is the reason of no verdict.

    `p_other` is two-sided: that the two arms differ at all.
    """

    claim: Claim
    verdict: Verdict
    difference: Interval | None
    p_verified: float | None = None
    p_falsified: float | None = None
    p_other: float | None = None
    why: str = ""


@dataclass(frozen=True)
class WorldResult:
    """What was found in one world."""

    world: World
    arms: tuple[ArmResult, ...]
    claims: tuple[Judged, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Disturbed:
    """A disturbance of the gradient in one state of training, with intervals over batches."""

    state: str
    phase: str
    relative: float
    error: float
    deviation: Interval
    cosine: Interval


@dataclass(frozen=True)
class Experiment:
    """An experiment from the pre-test to the verdicts. `subject` is the model and `guessed` what guessing gets right.

    `factors` are the adaptive scales of each seed, by layer.
    """

    name: str
    subject: str
    recipe: Recipe
    pretest: tuple[Disturbed, ...]
    worlds: tuple[WorldResult, ...]
    guessed: float = 0.0
    factors: tuple[tuple[tuple[int, float], ...], ...] = ()


def disturbed(state: str, seen: Sequence[Disturbance]) -> tuple[Disturbed, ...]:
    """What the pre-test saw in one state, as figures with intervals."""
    return tuple(
        Disturbed(state, one.phase, one.relative, one.error, mean_interval(one.deviation), mean_interval(one.cosine))
        for one in seen
    )


def conclude_world(
    world: World, evaluated: Mapping[str, Evaluated], claims: Sequence[Claim], guessed: float
) -> WorldResult:
    """Scores of all arms of a world, and a verdict on every claim about two of them."""
    arms = tuple(_arm(name, one, world) for name, one in evaluated.items())
    why = _too_little(evaluated[NONE], world, guessed) or _uneven(arms)
    judged = tuple(_judge(claim, evaluated, world, why) for claim in claims)
    return WorldResult(world, arms, judged, _notes(arms))


def _arm(name: str, seen: Evaluated, world: World) -> ArmResult:
    clean = seen.values[0.0]
    levels = tuple(
        AtLevel(
            level,
            _within(crossed_mean(values).interval(), world),
            None if level == 0 or not _has_share(clean, values, world) else _kept(clean, values, world).interval(),
            tuple(float(mean) for mean in values.mean(axis=1)),
            seen.injections[level],
        )
        for level, values in sorted(seen.values.items())
    )
    trained = seen.trained
    losses = tuple(
        (points[0][0], float(np.mean([loss for _, loss in points])))
        for points in zip(*(t.losses for t in trained), strict=True)
    )
    return ArmResult(
        name,
        levels,
        losses,
        sum(t.forward for t in trained),
        sum(t.backward for t in trained),
        _means([t.realised for t in trained]),
        _means([t.by_layer for t in trained]),
    )


def _means(columns: Sequence[Sequence[tuple[K, float]]]) -> tuple[tuple[K, float], ...]:
    """By name, the mean over the seeds."""
    return tuple((row[0][0], float(np.mean([value for _, value in row]))) for row in zip(*columns, strict=True))


def _is_better_higher(world: World) -> bool:
    return METRICS[world.task.metric].higher_is_better


def _within(score: Interval, world: World) -> Interval:
    """A share is neither below 0 nor above 1."""
    if not _is_better_higher(world):
        return score
    return replace(score, low=max(0.0, score.low), high=min(1.0, score.high))


def _has_share(clean: FloatArray, noisy: FloatArray, world: World) -> bool:
    return bool((clean if _is_better_higher(world) else noisy).mean() > 0)


def _kept(clean: FloatArray, noisy: FloatArray, world: World) -> Crossed:
    return crossed_mean(retained(clean, noisy, higher_is_better=_is_better_higher(world)))


def _too_little(without: Evaluated, world: World, guessed: float) -> str:
    """Why nothing can be said of any claim; nothing where something can."""
    clean = without.values[0.0]
    seeds, items = clean.shape
    if items < LEAST_ITEMS or seeds < LEAST_SEEDS:
        return (
            f"{items} items and {seeds} training seeds: too few to judge by; expected at least {LEAST_ITEMS} and "
            f"{LEAST_SEEDS}"
        )
    low = crossed_mean(clean).interval().low
    if _is_better_higher(world) and low <= _LEARNED * guessed:
        return (
            f"the arm without noise is not shown to have learned the task: its score may be as low as {low:.1%}, and "
            f"the commonest answer gets {guessed:.1%}. Train for longer"
        )
    return ""


def _judge(claim: Claim, evaluated: Mapping[str, Evaluated], world: World, why: str) -> Judged:
    first, other = evaluated[claim.first].values, evaluated[claim.other].values
    try:
        difference = crossed_mean(_difference(claim, first, other, world))
    except BadInputError as problem:
        return Judged(claim, "undecided", None, why=why or str(problem))
    holds, fails = _p_values(claim, difference)
    differs = min(1.0, 2.0 * min(difference.p_above(), difference.p_below()))
    verdict: Verdict = "verified" if holds < ALPHA else "falsified" if fails < ALPHA else "undecided"
    if why:
        verdict = "undecided"
    return Judged(claim, verdict, difference.interval(), holds, fails, differs, why)


def _difference(
    claim: Claim, first: Mapping[float, FloatArray], other: Mapping[float, FloatArray], world: World
) -> FloatArray:
    """Per seed and item, first less other; of a score where less is better, other less first as a share of other."""
    better = _is_better_higher(world)
    if claim.quantity == "score":
        one, two = first[0.0], other[0.0]
        return one - two if better else (two - one) / two.mean()
    if AT not in first:
        raise BadInputError(f"no evaluation at {AT:g}, which the claim is about; add it to the levels.")
    one, two = (retained(seen[0.0], seen[AT], higher_is_better=better) for seen in (first, other))
    return one - two


def _p_values(claim: Claim, difference: Crossed) -> tuple[float, float]:
    """That the claim holds, and that its opposite does."""
    above, below = difference.p_above(claim.limit), difference.p_below(claim.limit)
    if claim.side == "above":
        return above, below
    if claim.side == "below":
        return below, above
    # Within: both one-sided tests have to show it; outside is shown by either, so each gets half of the level.
    lower = difference.p_above(-claim.limit)
    return max(below, lower), min(1.0, 2.0 * min(above, difference.p_below(-claim.limit)))


def _notes(arms: Sequence[ArmResult]) -> tuple[str, ...]:
    """What a reader has to know of the strength of the noise."""
    named = {arm.name: arm for arm in arms}
    found = []
    without = next((at.kept for at in named[NONE].levels if at.level == AT), None)
    if without is not None and without.high >= 1.0:
        found.append("Noise of 5 % is not shown to cost the arm without noise anything: there is little to win.")
    if ADAPTIVE in named and UNIFORM in named:
        found.append(_strengths(named[ADAPTIVE], named[UNIFORM]))
    return tuple(found)


def _strengths(adaptive: ArmResult, uniform: ArmResult) -> str:
    one, other = _realised(adaptive), _realised(uniform)
    return f"Mean noise realised in the layers: {one:.3%} with adaptive scales, {other:.3%} with one scale."


def _realised(arm: ArmResult) -> float:
    return float(np.mean([value for _, value in arm.by_layer]))


def _uneven(arms: Sequence[ArmResult]) -> str:
    """That two arms which should have had the same mean noise did not; nothing where they did."""
    named = {arm.name: arm for arm in arms}
    if ADAPTIVE not in named or UNIFORM not in named:
        return ""
    one, other = _realised(named[ADAPTIVE]), _realised(named[UNIFORM])
    if abs(one - other) <= _SAME * other:
        return ""
    return (
        f"the mean noise of the two arms was not the same: {one:.3%} with adaptive scales, {other:.3%} with one scale"
    )
