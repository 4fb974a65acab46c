"""Plan, run, conclude: runs the trials that a diagnosis asks for until none is left to run.

It knows neither models nor how trials are run.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Protocol, TypeVar

from noisescope.core.codec import key_of
from noisescope.core.records import Reading, Trial
from noisescope.sweep.progress import Progress
from noisescope.sweep.store import Store

F_co = TypeVar("F_co", covariant=True)
F = TypeVar("F")


class Executor(Protocol):
    """Runs trials. Closing the generator ends what is still running."""

    def run(self, trials: Sequence[Trial], /) -> Generator[Reading, None, None]:
        """The reading of every trial, in the order in which they are completed; what goes wrong is in its `error`."""


class Diagnosis(Protocol[F_co]):
    """A question that is answered by trials. Both methods are pure: all that is known is passed in.

    `known` has readings by the key of their trial, failed ones with their error; a trial may be missing.
    """

    def plan(self, known: Mapping[str, Reading], /) -> Sequence[Trial]:
        """The trials whose readings are needed, known ones included or not."""

    def conclude(self, known: Mapping[str, Reading], /) -> F_co:
        """What follows from what is known."""


class Interrupted(KeyboardInterrupt):
    """The user stopped a study. Its readings are in the run folder; the same command goes on from there."""


def run_study(diagnosis: Diagnosis[F], executor: Executor, store: Store, progress: Progress | None = None) -> F:
    """Run what the diagnosis asks for and the folder lacks, then conclude.

    A trial that failed is run again, but no trial more than once in a call.
    """
    tried: set[str] = set()
    try:
        with progress or Progress("study", None) as shown:
            while pending := _pending(diagnosis.plan(known := store.readings()), known, tried):
                _run(list(pending.values()), executor, store, shown)
                tried.update(pending)
        return diagnosis.conclude(known)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; every reading so far is kept in {store.folder}. Repeat the command to go on."
        ) from None


def _pending(planned: Sequence[Trial], known: Mapping[str, Reading], tried: set[str]) -> dict[str, Trial]:
    keyed = {key_of(trial): trial for trial in planned}
    return {
        key: trial
        for key, trial in keyed.items()
        if key not in tried and (key not in known or known[key].error is not None)
    }


def _run(trials: Sequence[Trial], executor: Executor, store: Store, progress: Progress) -> None:
    progress.expect(len(trials))
    with closing(executor.run(trials)) as readings:
        for reading in readings:
            store.append(reading)
            progress.advance()
