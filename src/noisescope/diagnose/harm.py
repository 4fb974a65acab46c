"""What noise cost: harm per sample, its interval as a share of the clean score, and when a verdict is decided.

A verdict may be looked for more than once, and the error allowed is split over the looks (`looks`). It plans nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from noisescope.core.errors import BadInputError
from noisescope.diagnose.setting import Setting
from noisescope.measure.metrics import METRICS, relative_degradation
from noisescope.measure.sequential import MetricRange, decide_band, evidence
from noisescope.measure.significance import degradation_differences, degradation_p
from noisescope.measure.statistics import FloatArray, Interval, Resampling, degradation, mean_interval
from noisescope.measure.verdicts import UNDECIDED, Limits, Verdict, judge

UNJUDGED = "no bands"
# The shares of the allowed error: for looks before the first round is over, at its end, and at the end of the last.
_EARLY, _FIRST, _LAST = 0.2, 0.5, 0.3
# Half of the early share is kept back where a bootstrap takes it, which is too sure of few samples with long tails.
_BOOTSTRAPPED = 0.1
# The fewest samples on whose bootstrap anything may be decided early.
_FEWEST = 40


@dataclass(frozen=True)
class Measured:
    """Clean values, and noisy ones by round over the samples: all of equal length, in the order of the workload."""

    clean: tuple[float, ...]
    noisy: tuple[tuple[float, ...], ...]

    @property
    def samples(self) -> int:
        return len(self.clean)

    @property
    def rounds(self) -> int:
        return len(self.noisy)

    def part(self, samples: int, rounds: int) -> Measured:
        """The first samples of the first rounds."""
        return Measured(self.clean[:samples], tuple(row[:samples] for row in self.noisy[:rounds]))


@dataclass(frozen=True)
class Yardstick:
    """How the values of a metric become harm, and how sure an interval of it has to be.

    Harm is a share of the clean score. Of a geometric metric it is worked out on logarithms; of one whose clean value
    is 0 (KL to clean) it is the value itself, and bands of shares do not apply to it.
    """

    metric: str
    shape: str
    resamples: int

    @property
    def is_share(self) -> bool:
        """Whether harm is a share of the clean score, so that the bands of degradation apply."""
        return METRICS[self.metric].clean != 0.0

    @property
    def is_bounded(self) -> bool:
        """Whether all values are in [0, 1]."""
        return METRICS[self.metric].higher_is_better

    def check_clean(self, clean: Sequence[float]) -> None:
        """Refuse a clean score that nothing can be a share of, with the metrics that work."""
        if self.is_share:
            score = METRICS[self.metric].score(clean)
            relative_degradation(self.metric, self.shape, score, score)

    def of_samples(self, measured: Measured) -> FloatArray:
        """Harm [rounds, samples], larger is worse; before it is divided by anything."""
        clean, noisy = np.array(measured.clean), np.array(measured.noisy)
        metric = METRICS[self.metric]
        if metric.geometric:
            return np.asarray(np.log(noisy) - np.log(clean))
        return np.asarray(clean - noisy if metric.higher_is_better else noisy - clean)

    def interval(self, clean: Sequence[float], harm: FloatArray, confidence: float) -> Interval:
        """The mean harm in the unit of the metric's harm."""
        plan = Resampling(confidence, self.resamples)
        if METRICS[self.metric].geometric:
            logs = mean_interval(harm, plan=plan)
            middle, low, high = (math.expm1(value) for value in (logs.estimate, logs.low, logs.high))
            return Interval(middle, low, high, logs.confidence, logs.samples)
        if not self.is_share:
            return mean_interval(harm, plan=plan)
        c = np.array(clean)
        return degradation(c, c - harm, plan=plan)

    def p_above(self, clean: Sequence[float], harm: FloatArray, limit: float, finest: float = 1.0) -> float:
        """One-sided p-value that the mean harm is above a limit; resampled so often that it can be below `finest`."""
        found = self._p_above(clean, harm, limit, self.resamples)
        enough = math.ceil(2.0 / finest)
        if found > 2.0 / (self.resamples + 1) or enough <= self.resamples:
            return found
        return self._p_above(clean, harm, limit, enough)

    def _p_above(self, clean: Sequence[float], harm: FloatArray, limit: float, resamples: int) -> float:
        plan = Resampling(resamples=resamples)
        plain = METRICS[self.metric].geometric or not self.is_share
        # Harm that is no share is one of a clean value of 1.
        c = np.ones(len(clean)) if plain else np.array(clean)
        return degradation_p(c, c - harm, math.log1p(limit) if METRICS[self.metric].geometric else limit, plan=plan)

    @property
    def range(self) -> MetricRange:
        fixed = METRICS[self.metric].clean
        return MetricRange(True, (0.0, 1.0) if fixed is None else (fixed, fixed), (0.0, 1.0))


def yardstick(setting: Setting) -> Yardstick:
    """The yardstick of a setting."""
    return Yardstick(setting.metric, setting.shape, setting.resamples)


@dataclass(frozen=True)
class Look:
    """A planned look at the data: after so many samples of so many rounds, with a share of the allowed error.

    One that is `anytime` is a sequential test: all looks of it together have one share.
    """

    rounds: int
    samples: int
    share: float
    anytime: bool = False


def looks(setting: Setting) -> tuple[Look, ...]:
    """When a verdict is looked for. The shares add up to 1 at most, so that all looks err with the allowed chance.

    An interval at a fixed number of samples decides sooner than a sequential test of the same error, but not at a
    number of samples that depends on the data. So both are used: the sequential test after every chunk with a fifth
    of the error, an interval at the end of the first round with half of it and one at the end of the last round with
    the rest. Metrics without an upper bound have no such test: for them an interval at half of the samples takes its
    place, with half of its error. Without early stop there is one look, at the end.
    """
    rounds, samples = len(setting.seeds), setting.samples
    if setting.exhaustive:
        return (Look(rounds, samples, 1.0),)
    last = Look(rounds, samples, _LAST)
    first = Look(1, samples, _FIRST if rounds > 1 else _FIRST + _LAST)
    return (*_early(setting), first, *([last] if rounds > 1 else []))


def _early(setting: Setting) -> list[Look]:
    stops = [stop for _, stop in setting.spans[:-1]]
    if METRICS[setting.metric].higher_is_better:
        return [Look(1, stop, _EARLY, anytime=True) for stop in stops]
    half = [stop for stop in stops if stop >= max(_FEWEST, setting.samples / 2)]
    return [Look(1, stop, _BOOTSTRAPPED) for stop in half[:1]]


def judged(setting: Setting, measured: Measured, look: Look, limits: Limits) -> Verdict:
    """The verdict that a look comes to."""
    part = measured.part(look.samples, look.rounds)
    return _judged(yardstick(setting), part, limits, look.share * setting.alpha, look.anytime)


# A plan is worked out anew whenever readings have come in; what they say stays the same.
@functools.lru_cache(maxsize=4096)
def _judged(by: Yardstick, part: Measured, limits: Limits, alpha: float, anytime: bool) -> Verdict:
    if anytime:
        return decide_band(part.clean, part.noisy, limits, by.range, alpha=alpha)
    if not any(part.clean):
        return Verdict(UNDECIDED, limits.names, None)
    return judge(interval_of(by, part, 1.0 - alpha), limits)


@functools.lru_cache(maxsize=4096)
def interval_of(by: Yardstick, measured: Measured, confidence: float) -> Interval:
    """The harm that was measured."""
    return by.interval(measured.clean, by.of_samples(measured), confidence)


def p_values(setting: Setting, measured: Measured, limits: Limits, among: int) -> tuple[float, ...]:
    """For each limit the p-value that harm is above it, valid whatever the look at which measuring has stopped.

    Each look's p-value is divided by its share of the error, and the smallest counts. They are fine enough to be
    adjusted for being `among` so many.
    """
    done = [look for look in looks(setting) if look.rounds <= measured.rounds and look.samples <= measured.samples]
    by, parts = yardstick(setting), [(look, measured.part(look.samples, look.rounds)) for look in done]
    finest = setting.alpha / 2.0 / among
    return tuple(min([1.0, *(_p(by, part, look, limit, finest) for look, part in parts)]) for limit in limits.values)


def _p(by: Yardstick, part: Measured, look: Look, limit: float, finest: float) -> float:
    if not look.anytime:
        return _fixed_p(by, part, limit, finest * look.share) / look.share if any(part.clean) else 1.0
    clean, noisy = np.array(part.clean), np.array(part.noisy).mean(axis=0)
    support = by.range.support(limit)
    if not support[0] < 0.0 < support[1]:
        return 1.0
    above, _ = evidence(degradation_differences(clean, noisy, limit), 0.0, support)
    return math.exp(-max(0.0, float(above.max()))) / look.share


@functools.lru_cache(maxsize=4096)
def _fixed_p(by: Yardstick, part: Measured, limit: float, finest: float) -> float:
    return by.p_above(part.clean, by.of_samples(part), limit, finest)


def shared(parts: Sequence[Measured]) -> list[Measured]:
    """The rounds that all have in full, or else the samples that all have of the first, so that they can be paired."""
    samples = min(part.samples for part in parts)
    rounds = min(part.rounds for part in parts)
    if samples < 2 or rounds < 1:
        raise BadInputError(f"{samples} shared samples of {rounds} rounds: expected at least 2 of 1.")
    return [part.part(samples, rounds) for part in parts]


def score_of(setting: Setting, rows: Sequence[Sequence[float]]) -> Interval:
    """The score of values [rounds, samples], such as accuracy, with its interval over samples."""
    plan = Resampling(setting.confidence, setting.resamples)
    values = np.array(rows)
    if not METRICS[setting.metric].geometric:
        return mean_interval(values, plan=plan)
    logs = mean_interval(np.log(values), plan=plan)
    middle, low, high = (float(np.exp(value)) for value in (logs.estimate, logs.low, logs.high))
    return Interval(middle, low, high, logs.confidence, logs.samples)


def clean_score(setting: Setting, clean: Sequence[float]) -> Interval:
    """The score without noise; of a metric that compares with the clean run it is known beforehand."""
    fixed = setting.judged_by.clean
    if fixed is not None:
        return Interval(fixed, fixed, fixed, setting.confidence, len(clean))
    return score_of(setting, (clean,))


def percent(harm: Interval) -> str:
    """A share with its limits, as a person reads it."""
    return f"{harm.estimate:.1%} ({harm.low:.1%} to {harm.high:.1%})"


def shown_harm(setting: Setting, harm: Interval) -> str:
    """Harm with its limits, as a share in percent or in the unit of the metric."""
    if yardstick(setting).is_share:
        return percent(harm)
    return f"{harm.estimate:.3g} ({harm.low:.3g} to {harm.high:.3g})"
