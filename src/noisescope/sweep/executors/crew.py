"""The loop that all pools of workers share: who is hired, what is handed out, and what follows when a worker is gone.

It does not know what a worker is, a process of this machine or an actor of a cluster.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from noisescope.core.errors import NoisescopeError
from noisescope.core.records import Reading, Trial
from noisescope.sweep.executors.serial import Bench

READY, STARTED, GONE = "ready", "started", "gone"
_TRIES = 2
_FAREWELL = 5.0  # seconds that a worker has to end by itself


class WorkerError(NoisescopeError):
    """Workers cannot be started, or cannot make their bench."""


@dataclass
class Task:
    """A trial that has been given to so many workers."""

    trial: Trial
    tries: int = 0


class Worker(Protocol):
    """A worker as its driver sees it. `ready`: it has a bench; `proven`: it had one before; `end`: how it ended."""

    task: Task | None
    ready: bool
    proven: bool

    @property
    def end(self) -> str: ...

    def give(self, task: Task, /) -> bool:
        """Hand over a task; False if the worker is no more."""

    def receive(self) -> object:
        """What it has to say: a Reading, an error of ours, STARTED, READY or GONE."""

    def dismiss(self) -> None:
        """Let it end: an idle one by itself, one at work at once."""

    def bury(self, deadline: float, /) -> None:
        """See that it has ended; after the deadline with force."""


W = TypeVar("W", bound=Worker)


class Crew(ABC, Generic[W]):
    """Runs trials in workers that are hired as needed and kept until `close`.

    A worker that dies costs the trial it was at: that is run once more in another worker, then recorded as failed.
    """

    noun: str
    advice = "If memory is short, ask for fewer workers."
    # What else may be wrong where none of them comes as far as to measure.
    starting_advice = ""

    def __init__(self) -> None:
        self._workers: list[W] = []
        self._false_starts = 0
        self._last_end = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, trials: Sequence[Trial], /) -> Generator[Reading, None, None]:
        """The readings, as they come. Whatever ends this early ends the workers too."""
        waiting = deque(Task(trial) for trial in trials)
        self._false_starts = 0
        try:
            self._call_roll()
            while waiting or any(worker.task for worker in self._workers):
                self._hand_out(waiting)
                heard = [reading for worker in self._heard() for reading in self._hear(worker, waiting)]
                # Whoever takes the readings may be slow; the workers need not wait for that.
                self._hand_out(waiting)
                yield from heard
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all workers: an idle one by itself, one at work at once."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.dismiss()
        deadline = time.monotonic() + _FAREWELL
        for worker in workers:
            worker.bury(deadline)

    @abstractmethod
    def _hire(self, wanted: int) -> list[W]:
        """New workers, so many or as many as there is room for."""

    @abstractmethod
    def _heard(self) -> list[W]:
        """The workers that have something to say, or are gone; after a while without any, none."""

    def _call_roll(self) -> None:
        """Have idle workers say that they are still there, where a lost one would not be noticed by itself."""

    def _hand_out(self, waiting: deque[Task]) -> None:
        for worker in self._workers:
            if worker.ready and worker.task is None and waiting and worker.give(waiting[0]):
                waiting.popleft()
        # Whoever is not ready is still to take one of those that wait.
        wanted = len(waiting) - sum(not worker.ready for worker in self._workers)
        if self._false_starts < _TRIES:
            self._workers += self._hire(max(0, wanted))
        elif not self._workers:
            raise WorkerError(
                f"{self._false_starts} {self.noun} ended before they could measure ({self._last_end}). {self.advice}"
                f"{self.starting_advice}"
            )

    def _hear(self, worker: W, waiting: deque[Task]) -> Iterator[Reading]:
        message = worker.receive()
        if isinstance(message, Reading):
            worker.task = None
            yield message
        elif isinstance(message, NoisescopeError):
            raise message
        elif message == READY:
            worker.ready = worker.proven = True
        elif message == GONE:
            yield from self._mourn(worker, waiting)

    def _mourn(self, worker: W, waiting: deque[Task]) -> Iterator[Reading]:
        self._workers.remove(worker)
        worker.dismiss()
        worker.bury(time.monotonic() + _FAREWELL)
        self._last_end = worker.end
        self._call_roll()
        if not worker.proven:
            self._false_starts += 1
        elif worker.task is not None and worker.task.tries < _TRIES:
            waiting.appendleft(worker.task)
        elif worker.task is not None:
            yield Reading(
                worker.task.trial,
                error=f"WorkerError: {_TRIES} {self.noun} ended at this trial ({worker.end}). {self.advice}",
            )


def bench_or_problem(make_bench: Callable[[], Bench]) -> Bench | NoisescopeError:
    """The bench, or what the driver has to raise because there is none."""
    try:
        return make_bench()
    except NoisescopeError as problem:
        return problem
    except Exception as problem:  # noqa: BLE001 - the driver raises it
        first = next(iter(str(problem).splitlines()), "")
        return WorkerError(f"a worker could not be set up: {type(problem).__name__}: {first}")
