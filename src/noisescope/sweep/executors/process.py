"""Runs trials in worker processes of this machine, each with a bench of its own.

Workers write nothing. Which trial goes to which worker changes no reading.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Self

from noisescope.core.errors import BadInputError, NoisescopeError
from noisescope.core.records import Reading, Trial
from noisescope.sweep.executors.serial import Bench, answer, at_least_one, fix_threads

_READY, _GONE = "ready", "gone"
_TRIES = 2
_FAREWELL = 5.0  # seconds that a worker has to end by itself


class WorkerError(NoisescopeError):
    """Worker processes cannot be started, or cannot make their bench."""


class Processes:
    """Runs trials in up to `workers` processes, which are started as needed and kept until `close`.

    A worker that dies costs the trial it was at: that is run once more in another worker, then recorded as failed.
    """

    def __init__(self, make_bench: Callable[[], Bench], workers: int, *, threads: int) -> None:
        self._make_bench = make_bench
        self._limit = at_least_one("workers", workers)
        self._threads = at_least_one("threads", threads)
        self._workers: list[_Worker] = []
        self._false_starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, trials: Sequence[Trial], /) -> Generator[Reading, None, None]:
        """The readings, as they come. Whatever ends this early ends the workers too."""
        waiting = deque(_Task(trial) for trial in trials)
        self._false_starts = 0
        try:
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

    def _hand_out(self, waiting: deque[_Task]) -> None:
        for worker in self._workers:
            if worker.ready and worker.task is None and waiting and worker.give(waiting[0]):
                waiting.popleft()
        starting = sum(not worker.ready for worker in self._workers)
        room = self._limit - len(self._workers)
        for _ in range(min(room, len(waiting) - starting)):
            self._workers.append(_Worker(self._make_bench, self._threads))

    def _heard(self) -> list[_Worker]:
        # A dead worker may have left its end of the pipe to a process of its own: then only asking tells.
        heard = wait([worker.pipe for worker in self._workers], timeout=1.0)
        return [worker for worker in self._workers if worker.pipe in heard or not worker.process.is_alive()]

    def _hear(self, worker: _Worker, waiting: deque[_Task]) -> Iterator[Reading]:
        message = worker.receive()
        if isinstance(message, Reading):
            worker.task = None
            yield message
        elif isinstance(message, NoisescopeError):
            raise message
        elif message == _READY:
            worker.ready, self._false_starts = True, 0
        else:
            yield from self._mourn(worker, waiting)

    def _mourn(self, worker: _Worker, waiting: deque[_Task]) -> Iterator[Reading]:
        self._workers.remove(worker)
        worker.dismiss()
        worker.bury(time.monotonic() + _FAREWELL)
        if not worker.ready:
            self._false_starts += 1
            if self._false_starts >= _TRIES:
                raise WorkerError(
                    f"{_TRIES} worker processes ended before they could measure ({worker.end}). If memory is short, "
                    "ask for fewer workers; a script that starts workers needs `if __name__ == '__main__':`."
                )
        elif worker.task is not None and worker.task.tries < _TRIES:
            waiting.appendleft(worker.task)
        elif worker.task is not None:
            yield Reading(
                worker.task.trial,
                error=f"WorkerError: {_TRIES} worker processes ended at this trial ({worker.end}). If memory is "
                "short, ask for fewer workers.",
            )


@dataclass
class _Task:
    trial: Trial
    tries: int = 0


class _Worker:
    """A worker process as its driver sees it."""

    def __init__(self, make_bench: Callable[[], Bench], threads: int) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make_bench, threads), daemon=True)
        self.task: _Task | None = None
        self.ready = False
        try:
            with _interrupts_held():
                self.process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            raise BadInputError(
                f"cannot be sent to a worker process: {problem}. Expected a function or an object of a module."
            ) from problem
        finally:
            theirs.close()

    def give(self, task: _Task) -> bool:
        """Hand over a task; False if the worker is no more."""
        try:
            self.pipe.send(task.trial)
        except OSError:
            return False
        task.tries += 1
        self.task = task
        return True

    def receive(self) -> object:
        try:
            return self.pipe.recv() if self.pipe.poll() else _GONE
        except (EOFError, OSError):
            return _GONE

    def dismiss(self) -> None:
        self.pipe.close()
        if self.task is not None or not self.ready:
            self.process.terminate()

    def bury(self, deadline: float) -> None:
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    @property
    def end(self) -> str:
        """How the process ended."""
        code = self.process.exitcode or 0
        return f"exit status {code}" if code >= 0 else f"signal {-code}, {signal.Signals(-code).name}"


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start processes that never see Ctrl-C, which the terminal sends to all: ending them is the driver's business."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it would let signals through again when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, make_bench: Callable[[], Bench], threads: int) -> None:
    """Measure what comes through the pipe until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fix_threads(threads)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            bench = make_bench()
        except NoisescopeError as problem:
            pipe.send(problem)
            return
        except Exception as problem:  # noqa: BLE001 - the driver raises it
            pipe.send(WorkerError(f"a worker process could not be set up: {type(problem).__name__}: {problem}"))
            return
        pipe.send(_READY)
        while True:
            pipe.send(answer(bench, pipe.recv(), threads))
