"""Holds a checkpoint against a baseline: what `noisescope gate` does once the model and the run folder are ready.

What follows from the readings is concluded in `noisescope.diagnose`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from noisescope.core.errors import BadInputError
from noisescope.diagnose.gate import Gate, GateQuestion, GateRules, fragility_of
from noisescope.diagnose.gated import Checkpoint, Gated, Visit, comparable, terms_of, visit_of
from noisescope.measure.metrics import METRICS
from noisescope.prescribe.baseline import Baseline, check_comparable, checkpoint_of, write_baseline
from noisescope.prescribe.history import add_visit, read_history
from noisescope.runs.diagnosing import Desk, Wanted, setting_of
from noisescope.sweep.study import run_study


@dataclass(frozen=True)
class Passing:
    """What a checkpoint is held against, what it is called, and which files are written on the way."""

    name: str
    data: str
    rules: GateRules
    baseline: Baseline | None = None
    save: Path | None = None
    history: Path | None = None


@dataclass(frozen=True)
class Passed:
    """The answer, and how many lines of the history could not be read."""

    gated: Gated
    damaged: int = 0


def gate(desk: Desk, wanted: Wanted, passing: Passing) -> Passed:
    """Measure a checkpoint in full, judge it, and keep what is to be kept."""
    setting = setting_of(desk.patient, wanted)
    checkpoint = checkpoint_of(desk.store.about, passing.name, passing.data)
    baseline = passing.baseline
    if baseline is not None:
        check_comparable(baseline, setting, checkpoint)
    check_rules(passing, setting.metric)
    check_files(passing)
    question = GateQuestion(setting, passing.rules, baseline.fragility if baseline else None)
    found = run_study(question, desk.executor, desk.store, desk.progress("gate"))
    if passing.save is not None:
        _save(desk, found, checkpoint, passing.save)
    return _remembered(found, checkpoint, passing)


def check_rules(passing: Passing, metric: str) -> None:
    """A metric that is 0 when clean has no share to lose, so without a baseline there would be nothing to judge."""
    if METRICS[metric].clean == 0.0 and passing.baseline is None and passing.save is None:
        raise BadInputError(f"{metric} has no clean score to lose a share of; name a --baseline to hold it against.")


def check_files(passing: Passing) -> None:
    """What could not be read or written afterwards is said before anything is measured."""
    if passing.history is not None:
        read_history(passing.history)
    if passing.save is not None and passing.save.is_dir():
        raise BadInputError(f"{passing.save}: a folder; --save-baseline expects the name of a file.")


def _save(desk: Desk, found: Gate, checkpoint: Checkpoint, path: Path) -> None:
    fragility = fragility_of(found.setting, desk.store.readings())
    if fragility.gaps:
        raise BadInputError(f"no baseline was written: {fragility.gaps[0]}.")
    write_baseline(Baseline(checkpoint, fragility), path)


def _remembered(found: Gate, checkpoint: Checkpoint, passing: Passing) -> Passed:
    """The answer with the visits that it can be compared with, this one the last unless it came again."""
    visit = visit_of(found, checkpoint, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    visits: tuple[Visit, ...] = (visit,)
    damaged = 0
    if passing.history is not None:
        if found.operators:
            add_visit(passing.history, visit)
        history = read_history(passing.history)
        visits, damaged = history.visits, history.damaged
    name = passing.baseline.checkpoint.name if passing.baseline else ""
    kept = comparable(visits, terms_of(found.setting, checkpoint))
    return Passed(Gated(found, checkpoint, name, kept), damaged)
