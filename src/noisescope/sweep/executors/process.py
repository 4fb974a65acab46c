"""Runs trials in worker processes of this machine, each with a bench of its own.

Workers write nothing. Which trial goes to which worker changes no reading.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait

from noisescope.core.errors import BadInputError, NoisescopeError
from noisescope.sweep.executors.crew import GONE, READY, Crew, Task, WorkerError, bench_or_problem
from noisescope.sweep.executors.serial import Bench, answer, at_least_one, fix_threads

__all__ = ["Processes", "WorkerError"]


class _Process:
    """A worker process as its driver sees it."""

    def __init__(self, make_bench: Callable[[], Bench], threads: int) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make_bench, threads), daemon=True)
        self.task: Task | None = None
        self.ready = self.proven = False
        try:
            with _interrupts_held():
                self.process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            raise BadInputError(
                f"cannot be sent to a worker process: {problem}. Expected a function or an object of a module."
            ) from problem
        finally:
            theirs.close()

    def give(self, task: Task) -> bool:
        try:
            self.pipe.send(task.trial)
        except OSError:
            return False
        task.tries += 1
        self.task = task
        return True

    def receive(self) -> object:
        try:
            return self.pipe.recv() if self.pipe.poll() else GONE
        except (EOFError, OSError):
            return GONE

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
        code = self.process.exitcode or 0
        return f"exit status {code}" if code >= 0 else f"signal {-code}, {signal.Signals(-code).name}"


class Processes(Crew[_Process]):
    """Runs trials in up to `workers` processes."""

    noun = "worker processes"
    starting_advice = " A script that starts workers needs `if __name__ == '__main__':`."

    def __init__(self, make_bench: Callable[[], Bench], workers: int, *, threads: int) -> None:
        super().__init__()
        self._make_bench = make_bench
        self._limit = at_least_one("workers", workers)
        self._threads = at_least_one("threads", threads)

    def _hire(self, wanted: int) -> list[_Process]:
        room = self._limit - len(self._workers)
        return [_Process(self._make_bench, self._threads) for _ in range(min(room, wanted))]

    def _heard(self) -> list[_Process]:
        # A dead worker may have left its end of the pipe to a process of its own: then only asking tells.
        heard = wait([worker.pipe for worker in self._workers], timeout=1.0)
        return [worker for worker in self._workers if worker.pipe in heard or not worker.process.is_alive()]


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
        bench = bench_or_problem(make_bench)
        if isinstance(bench, NoisescopeError):
            pipe.send(bench)
            return
        pipe.send(READY)
        while True:
            pipe.send(answer(bench, pipe.recv(), threads))
