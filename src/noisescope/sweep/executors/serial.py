"""Runs trials one after the other in this process, and says what a bench is.

It writes nothing and knows neither models nor workloads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

from noisescope.core.errors import BadInputError
from noisescope.core.records import Reading, Trial


class Bench(Protocol):
    """A model under test with all that is needed to measure it. It imports torch, if at all, before it is made.

    The reading must depend on the trial alone: not on trials before it, and on no global setting but the number of
    threads. A global setting of torch that matters is made by whoever makes the bench.
    """

    def measure(self, trial: Trial, /) -> Reading:
        """The reading of a trial; it may raise."""


class Serial:
    """Runs trials in this process, with one bench that is made for the first trial."""

    def __init__(self, make_bench: Callable[[], Bench], *, threads: int) -> None:
        self._make_bench = make_bench
        self._threads = at_least_one("threads", threads)
        self._bench: Bench | None = None

    def run(self, trials: Sequence[Trial], /) -> Generator[Reading, None, None]:
        """The readings, in the order of the trials."""
        before = threads_of_torch()
        try:
            fix_threads(self._threads)
            for trial in trials:
                if self._bench is None:
                    self._bench = self._make_bench()
                yield answer(self._bench, trial, self._threads)
        finally:
            fix_threads(before)


def answer(bench: Bench, trial: Trial, threads: int) -> Reading:
    """The reading of a trial, whatever happens: what goes wrong is its error."""
    fix_threads(threads)
    try:
        reading = bench.measure(trial)
    except Exception as problem:  # noqa: BLE001 - any failure of a trial is the answer to it
        # Of a message of many lines the first says what happened.
        said = (str(problem).strip() or "without a word").splitlines()[0]
        return Reading(trial, error=f"{type(problem).__name__}: {said}")
    if not isinstance(reading, Reading) or reading.trial != trial:
        return Reading(trial, error=f"the bench gave {type(reading).__name__} that is no reading of this trial")
    return reading


def threads_of_torch() -> int | None:
    """How many threads torch uses, None if it is not loaded."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def fix_threads(count: int | None) -> None:
    """Let torch, if it is loaded, use so many threads: sums are split among them, so the number changes last bits."""
    if count is not None and threads_of_torch() not in (None, count):
        sys.modules["torch"].set_num_threads(count)


def at_least_one(what: str, count: int) -> int:
    """The count, if there is one."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise BadInputError(f"{what} {count!r}: expected a whole number of at least 1.")
    return count
