"""What faults cost that stay: one question for any number of them, on the same samples and from the same seeds.

It plans trials and sums readings up; it judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from noisescope.core.codec import key_of
from noisescope.core.records import Injection, Reading, Trial
from noisescope.diagnose.fault_tests import Lost
from noisescope.diagnose.harm import Measured, Yardstick, yardstick
from noisescope.diagnose.setting import Setting, slice_trial
from noisescope.measure.metrics import METRICS
from noisescope.measure.statistics import Interval, proportion

# A sample that loses this many times the clean score is lost altogether.
RUINED = 3.0


@dataclass(frozen=True)
class LossQuestion:
    """Faults by name, each measured in all seeds of the setting. `positions` are scored in one run over all samples."""

    setting: Setting
    faults: tuple[tuple[str, Injection], ...]
    positions: int

    def plan(self, known: Mapping[str, Reading], /) -> Sequence[Trial]:
        found = self._baseline()
        for _, injection in self.faults:
            found += [trial for row in self._rows(injection) for trial in row]
        return found

    def conclude(self, known: Mapping[str, Reading], /) -> dict[str, Lost]:
        clean, missing = _row(self._baseline(), known)
        return {name: self._lost(self._rows(injection), known, clean, missing) for name, injection in self.faults}

    def _baseline(self) -> list[Trial]:
        return [slice_trial(self.setting, chunk) for chunk in range(len(self.setting.spans))]

    def _rows(self, injection: Injection) -> list[list[Trial]]:
        chunks = range(len(self.setting.spans))
        seeded = [replace(injection, seed=seed) for seed in self.setting.seeds]
        return [[slice_trial(self.setting, chunk, one) for chunk in chunks] for one in seeded]

    def _lost(
        self,
        rows: Sequence[Sequence[Trial]],
        known: Mapping[str, Reading],
        clean: Sequence[float],
        missing: Sequence[str],
    ) -> Lost:
        found = [_row(row, known) for row in rows]
        gaps = tuple(dict.fromkeys([*missing, *(gap for _, row_gaps in found for gap in row_gaps)]))
        keys = tuple(key_of(trial) for row in rows for trial in row)
        broken = sum(known[key].nonfinite for key in keys if key in known)
        positions = self.positions * len(rows)
        loss = None if gaps else self._loss(clean, [values for values, _ in found])
        return Lost(loss, broken, positions, gaps, keys)

    def _loss(self, clean: Sequence[float], rows: Sequence[Sequence[float]]) -> Interval:
        by = yardstick(self.setting)
        by.check_clean(clean)
        measured = Measured(tuple(clean), tuple(map(tuple, rows)))
        found = by.interval(measured.clean, by.of_samples(measured), self.setting.confidence)
        return _possible(found, by, measured)


def _possible(loss: Interval, by: Yardstick, measured: Measured) -> Interval:
    """Limits that a score can have. Where a fault ruins nearly all samples alike, those from resampling are far off.

    No score falls below 0. And if a share p of the samples loses `RUINED` times the clean score or more, the mean loss
    is at least p * RUINED - 1, because what the others gain is their clean score at most.
    """
    if by.is_bounded:
        return replace(loss, high=min(loss.high, 1.0))
    if METRICS[by.metric].geometric:
        return replace(loss, low=max(loss.low, -1.0))
    harm = by.of_samples(measured).mean(axis=0)
    ruined = int((harm >= RUINED * sum(measured.clean) / measured.samples).sum())
    # Half of the error on this side, because the larger of two limits is taken.
    share = proportion(ruined, measured.samples, confidence=(1.0 + loss.confidence) / 2.0).low
    return replace(loss, low=min(max(loss.low, share * RUINED - 1.0), loss.estimate))


def _row(trials: Sequence[Trial], known: Mapping[str, Reading]) -> tuple[list[float], list[str]]:
    """The values of one run over the samples, and what stood in the way of any."""
    values: list[float] = []
    gaps = []
    for trial in trials:
        reading = known.get(key_of(trial))
        if reading is None or reading.error is not None:
            gaps.append("a trial is missing" if reading is None else str(reading.error))
        else:
            values += reading.values
    return values, gaps
