"""Walks through what a diagnosis wants to know, with the readings there are, within its budget.

The walk is the same whenever it is made from the same readings: what it asks for and finds missing is the plan, and
what it has when it ends is what is concluded from. It decides nothing about a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from noisescope.core.codec import key_of
from noisescope.core.records import Reading, Trial
from noisescope.diagnose.harm import Look, Measured, interval_of, judged, looks, yardstick
from noisescope.diagnose.setting import Setting, Unit, control_trial, slice_trial
from noisescope.measure.metrics import METRICS
from noisescope.measure.statistics import Interval
from noisescope.measure.verdicts import UNDECIDED, Limits, Verdict

_HAIR = 1e-9


@dataclass(frozen=True)
class Control:
    """Noise of strength 0 against the baseline. Where one value differs, nothing else can be trusted.

    `holds` is None where either could not be measured; `largest` is the largest difference.
    """

    holds: bool | None
    samples: int
    largest: float
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What was found out about one unit.

    `harm` is a share of the clean score (of a metric that is 0 when clean, the value itself), None where nothing was
    measured. The verdict allows for having looked more than once, which the interval does not: it may be undecided
    where the interval lies in one band. `decided_after` is the number of samples at which the verdict was decided,
    times the rounds. `gaps` say which trials failed or are missing; with any of them the verdict is undecided, unless
    it was decided before.
    """

    name: str
    verdict: Verdict
    harm: Interval | None
    rounds: int = 0
    decided_after: int | None = None
    nonfinite: int = 0
    gaps: tuple[str, ...] = ()
    trials: tuple[str, ...] = ()


@dataclass
class Climb:
    """How far one unit has come: its rows by round, chunk after chunk, and the look that decided."""

    unit: Unit
    limits: Limits | None
    rows: list[list[float]] = field(default_factory=list)
    chunks: int = 0
    verdict: Verdict | None = None
    decided_at: Look | None = None
    nonfinite: int = 0
    # Of each reading, in their order.
    injections: list[int] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    trials: list[str] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether more readings could still settle it."""
        return self.verdict is None and not self.gaps


class Ledger:
    """Asks for trials, keeps account of their cost, and holds what came back.

    `is_final` takes a reading that is not there for one that will never come, and goes on without it; else the walk
    `waits` for it and asks for nothing that depends on it.
    """

    def __init__(self, setting: Setting, known: Mapping[str, Reading], *, is_final: bool) -> None:
        self.setting, self.known, self.is_final = setting, known, is_final
        self.asked: dict[str, Trial] = {}
        self.cost = 0.0
        self.waits = False
        self.clean: tuple[float, ...] | None = None
        self.control = Control(None, 0, 0.0)
        self.climbs: dict[Unit, Climb] = {}
        self.refused: dict[Unit, str] = {}

    @property
    def is_sound(self) -> bool:
        """Whether there is a baseline, and a control that equals it, so that more may be asked."""
        return self.clean is not None and self.control.holds is True and not self.waits

    @property
    def left(self) -> float:
        """Clean evaluations that may still be spent."""
        if self.setting.budget is None or self.setting.exhaustive:
            return math.inf
        return self.setting.budget - self.setting.spent - self.cost

    def ask(self, trial: Trial, cost: float) -> Reading | str:
        """The reading, or what is wrong with it."""
        key = key_of(trial)
        if key not in self.asked:
            self.asked[key] = trial
            self.cost += cost
        reading = self.known.get(key)
        if reading is None:
            self.waits |= not self.is_final
            return "missing"
        if reading.error is not None:
            return f"failed: {reading.error}"
        expected = (trial.stop or 0) - trial.start
        if len(reading.values) != expected:
            return f"{len(reading.values)} values for {expected} samples"
        return self._usable(reading)

    def _usable(self, reading: Reading) -> Reading | str:
        """A miss where a bounded value is not finite; of any other metric nobody knows how bad that is."""
        strange = sum(not math.isfinite(value) for value in reading.values)
        if not strange:
            return reading
        if not METRICS[self.setting.metric].higher_is_better:
            return f"{strange} of {len(reading.values)} values are not finite"
        values = tuple(value if math.isfinite(value) else 0.0 for value in reading.values)
        return replace(reading, values=values, nonfinite=max(reading.nonfinite, strange))

    def open(self, *, thoroughly: bool = False) -> None:
        """The baseline on all samples, and the control: on the first chunk, or on all if that is asked for."""
        setting = self.setting
        chunks = range(len(setting.spans))
        baseline = [self._ask_slice(slice_trial(setting, chunk)) for chunk in chunks]
        checked = chunks if thoroughly or setting.exhaustive else chunks[:1]
        controls = [self._ask_slice(control_trial(setting, chunk)) for chunk in checked]
        if self.waits:
            return
        self.control = _compare(baseline, controls)
        if all(isinstance(part, Reading) for part in baseline):
            clean = tuple(value for part in baseline if isinstance(part, Reading) for value in part.values)
            yardstick(setting).check_clean(clean)
            self.clean = clean

    def _ask_slice(self, trial: Trial) -> Reading | str:
        return self.ask(trial, ((trial.stop or 0) - trial.start) / self.setting.samples)

    def climb(
        self,
        units: Iterable[Unit],
        limits: Limits | None,
        *,
        rounds: int = 1,
        until_decided: bool = True,
        reserve: float = 0.0,
    ) -> bool:
        """Measure units for so many rounds, or until each is decided; False while readings are awaited.

        Units come in the order of their importance. One is begun only if the budget holds all that it may take, so
        that none is given up half-way; what early decisions save is for those after it. `reserve` is left untouched.
        """
        wanted = [self.climbs.setdefault(unit, Climb(unit, limits)) for unit in dict.fromkeys(units)]
        while wanted and self.is_sound:
            admitted = self._admit(wanted, rounds, self.left - reserve, until_decided=until_decided)
            for climb in admitted:
                self.refused.pop(climb.unit, None)
            self._advance(admitted, rounds, until_decided=until_decided)
            wanted = [climb for climb in wanted if climb not in admitted]
            if not admitted:
                break
        if self.is_sound:
            self.refused |= {climb.unit: _refusal(climb) for climb in wanted}
        return not self.waits

    def _admit(self, wanted: Sequence[Climb], rounds: int, room: float, *, until_decided: bool) -> list[Climb]:
        admitted = []
        for climb in wanted:
            cost = self._outstanding(climb, rounds, until_decided=until_decided)
            if cost <= room + _HAIR:
                admitted.append(climb)
                room -= cost
        return admitted

    def _outstanding(self, climb: Climb, rounds: int, *, until_decided: bool) -> float:
        if climb.gaps or (until_decided and not climb.is_open):
            return 0.0
        done = sum(len(row) for row in climb.rows) / self.setting.samples
        return max(0.0, climb.unit.cost(self.setting) * (rounds - done))

    def _advance(self, climbs: Sequence[Climb], rounds: int, *, until_decided: bool) -> None:
        """One chunk at a time for all of them, so that as many trials as possible can run side by side."""
        if self.setting.exhaustive:
            self._ask_ahead(climbs, rounds)
        while not self.waits:
            active = [climb for climb in climbs if self._goes_on(climb, rounds, until_decided=until_decided)]
            if not active:
                return
            parts = [(climb, *self._ask_next(climb)) for climb in active]
            if not self.waits:
                for climb, key, reading in parts:
                    self._take(climb, key, reading)

    def _ask_ahead(self, climbs: Sequence[Climb], rounds: int) -> None:
        """All at once, because nothing ends early: workers then need not wait for each other after each chunk."""
        for round_ in range(rounds):
            for chunk, (start, stop) in enumerate(self.setting.spans):
                share = (stop - start) / self.setting.samples
                for climb in climbs:
                    self.ask(climb.unit.trial(self.setting, chunk, round_), climb.unit.cost(self.setting) * share)

    def _goes_on(self, climb: Climb, rounds: int, *, until_decided: bool) -> bool:
        if climb.gaps or (until_decided and climb.verdict is not None):
            return False
        return len(climb.rows) < rounds or climb.chunks < len(self.setting.spans)

    def _ask_next(self, climb: Climb) -> tuple[str, Reading | str]:
        begins = not climb.rows or climb.chunks == len(self.setting.spans)
        round_, chunk = (len(climb.rows), 0) if begins else (len(climb.rows) - 1, climb.chunks)
        trial = climb.unit.trial(self.setting, chunk, round_)
        share = (self.setting.spans[chunk][1] - self.setting.spans[chunk][0]) / self.setting.samples
        return key_of(trial), self.ask(trial, climb.unit.cost(self.setting) * share)

    def _take(self, climb: Climb, key: str, reading: Reading | str) -> None:
        climb.trials.append(key)
        if isinstance(reading, str):
            trial = self.asked[key]
            seed = trial.injections[0].seed
            climb.gaps.append(f"{climb.unit.name}, samples {trial.start} to {trial.stop}, seed {seed}: {reading}")
            return
        if not climb.rows or climb.chunks == len(self.setting.spans):
            climb.rows.append([])
            climb.chunks = 0
        climb.rows[-1] += reading.values
        climb.chunks += 1
        climb.nonfinite += reading.nonfinite
        climb.injections.append(reading.injections)
        self._look(climb)

    def _look(self, climb: Climb) -> None:
        if climb.limits is None or climb.verdict is not None:
            return
        at = (len(climb.rows), len(climb.rows[-1]))
        for look in looks(self.setting):
            if (look.rounds, look.samples) == at:
                verdict = judged(self.setting, self._measured(climb), look, climb.limits)
                if verdict.decided:
                    climb.verdict, climb.decided_at = verdict, look

    def _measured(self, climb: Climb) -> Measured:
        rows = climb.rows
        whole = [row for row in rows if len(row) == self.setting.samples] or rows[:1]
        return Measured((self.clean or ())[: len(whole[0])], tuple(map(tuple, whole)))

    @property
    def gaps(self) -> tuple[str, ...]:
        """Every trial that failed or is missing, in the order in which they were met."""
        return (*self.control.gaps, *(gap for climb in self.climbs.values() for gap in climb.gaps))

    def measured(self, unit: Unit) -> Measured | None:
        """All that was measured of a unit without a gap; None if there is a gap, or nothing."""
        climb = self.climbs.get(unit)
        if climb is None or climb.gaps or not climb.rows or self.clean is None:
            return None
        return self._measured(climb)

    def interval(self, measured: Measured) -> Interval | None:
        """The harm measured; None where a share of it is asked for and the clean score of these samples is 0."""
        by = yardstick(self.setting)
        if by.is_share and not any(measured.clean):
            return None
        return interval_of(by, measured, self.setting.confidence)

    def verdict(self, unit: Unit) -> Verdict:
        """The verdict on a unit as far as it is decided."""
        climb = self.climbs.get(unit)
        if climb is None or not climb.rows or self.clean is None:
            return Verdict(UNDECIDED, () if climb is None or climb.limits is None else climb.limits.names, None)
        return self._verdict(climb)

    def answer(self, unit: Unit) -> Answer:
        """What is known of a unit."""
        climb = self.climbs.get(unit)
        if climb is None or not climb.rows or self.clean is None:
            gaps, trials = ((), ()) if climb is None else (tuple(climb.gaps), tuple(climb.trials))
            return Answer(unit.name, self.verdict(unit), None, gaps=gaps, trials=trials)
        look, measured = climb.decided_at, self._measured(climb)
        return Answer(
            unit.name,
            self._verdict(climb),
            self.interval(measured),
            measured.rounds,
            None if look is None else look.rounds * look.samples,
            climb.nonfinite,
            tuple(climb.gaps),
            tuple(climb.trials),
        )

    def _verdict(self, climb: Climb) -> Verdict:
        """The verdict that was decided, or what the widest look so far leaves open."""
        if climb.verdict is not None:
            return climb.verdict
        if climb.limits is None:
            return Verdict(UNDECIDED, (), None)
        measured = self._measured(climb)
        done = [look for look in looks(self.setting) if look.rounds <= measured.rounds and not look.anytime]
        reached = [look for look in done if look.samples <= measured.samples]
        if climb.gaps or not reached:
            return Verdict(UNDECIDED, climb.limits.names, None)
        return judged(self.setting, measured, reached[-1], climb.limits)


def _refusal(climb: Climb) -> str:
    if not climb.rows:
        return f"{climb.unit.name}: not measured, the budget left no room"
    return f"{climb.unit.name}: left undecided, the budget left no room for more seeds"


def _compare(baseline: Sequence[Reading | str], controls: Sequence[Reading | str]) -> Control:
    wrong = [part for part in (*baseline, *controls) if isinstance(part, str)]
    if wrong:
        return Control(None, 0, 0.0, tuple(wrong))
    pairs = [
        (clean, quiet)
        for one, other in zip(baseline, controls, strict=False)
        if isinstance(one, Reading) and isinstance(other, Reading)
        for clean, quiet in zip(one.values, other.values, strict=True)
    ]
    differences = [abs(clean - quiet) for clean, quiet in pairs if clean != quiet]
    return Control(not differences, len(pairs), max(differences, default=0.0))
