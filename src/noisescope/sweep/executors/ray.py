"""Runs trials in actors of a Ray cluster, each with a bench of its own, as many as there is free room for.

Actors write nothing. Which trial goes to which actor changes no reading. What they measure with is put into Ray's
object store once: all actors of a node map the same copy of the arrays in it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, Protocol

from noisescope.core.errors import BadInputError, NoisescopeError
from noisescope.core.records import Params, Reading, Trial
from noisescope.sweep.executors.crew import GONE, READY, STARTED, Crew, Task, WorkerError, bench_or_problem
from noisescope.sweep.executors.serial import Bench, answer, at_least_one

PATIENCE = 120.0
_LOOK = 1.0  # seconds between two looks at what is free
_ANSWER = 5.0  # seconds that a cluster has to answer
_SHARE = 0.8  # of an object store that may be filled
_ALIKE = ("noisescope", "torch", "transformers")


@dataclass(frozen=True)
class Cluster:
    """Which Ray cluster, and what of it each actor takes: `CPU`, `GPU`, or any resource that its nodes offer.

    No address is the Ray that this process is in, else the variable RAY_ADDRESS, else one that runs on this machine,
    else a new one that lives as long as the run.
    """

    address: str = ""
    needs: Params = (("CPU", 1.0),)

    def __post_init__(self) -> None:
        for name, amount in self.needs:
            if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount < 1e9:
                raise BadInputError(f"{name} {amount!r} for each worker: expected a number above 0.")


class Shared(Protocol):
    """Makes a bench mostly from arrays, of so many bytes, which actors of one node can read in one place."""

    @property
    def nbytes(self) -> int: ...

    def __call__(self) -> Bench: ...


class Actors(Crew["_Actor"]):
    """Runs trials in actors, as many as fit into what is free; more are hired when more becomes free.

    For `patience` seconds it waits for an actor to find a place, then it raises. `shared` gives what makes the same
    bench from arrays: it is taken if it fits into the object store of every node, else each actor makes its own.
    """

    noun = "actors"
    starting_advice = " Is the same noisescope installed on every node?"

    def __init__(
        self,
        make_bench: Callable[[], Bench],
        *,
        threads: int,
        cluster: Cluster | None = None,
        shared: Callable[[], Shared | None] = lambda: None,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__()
        self._make_bench, self._shared = make_bench, shared
        self._threads = at_least_one("threads", threads)
        self._cluster = cluster or Cluster()
        self._patience = patience
        self._ray: ModuleType | None = None
        self._bench: Any = None
        self._joined = False
        self._looked = self._placed = 0.0

    def close(self) -> None:
        """End all actors, and Ray if it was started for them."""
        super().close()
        self._bench = None
        if self._joined and self._ray is not None:
            self._ray.shutdown()
        self._joined, self._ray = False, None

    def _call_roll(self) -> None:
        self._placed = time.monotonic()
        for worker in self._workers:
            worker.call_up()

    def _hire(self, wanted: int) -> list[_Actor]:
        now = time.monotonic()
        if any(worker.placed for worker in self._workers):
            self._placed = now
        patient = now - self._placed <= self._patience
        if (patient and not wanted) or now - self._looked < _LOOK:
            return []
        self._looked = now
        ray = self._connected()
        free, needs = ray.available_resources(), dict(self._cluster.needs)
        if not self._workers:
            _refuse_if_never([node["Resources"] for node in ray.nodes() if node["Alive"]], needs)
        if not patient:
            raise WorkerError(
                f"no room for a worker within {self._patience:g} s: each takes {_listed(needs)}, free on all nodes "
                f"together: {_listed(free)}. Wait until other jobs end, or ask for less for each worker."
            )
        # Those without a place yet will take theirs from what is free.
        room = fitting(free, needs) - sum(not worker.placed for worker in self._workers)
        return [self._actor(ray) for _ in range(min(room, wanted))]

    def _heard(self) -> list[_Actor]:
        waited_for = {worker.pending: worker for worker in self._workers if worker.pending is not None}
        if self._ray is None or not waited_for:
            time.sleep(0.1)
            return []
        first, rest = self._ray.wait(list(waited_for), num_returns=1, timeout=1.0)
        if first and rest:
            first += self._ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return [waited_for[answered] for answered in first]

    def _actor(self, ray: ModuleType) -> _Actor:
        if self._bench is None:
            self._bench = _put(ray, self._shared(), self._make_bench)
        needs = dict(self._cluster.needs)
        taken = {"num_cpus": needs.pop("CPU", 0), "num_gpus": needs.pop("GPU", 0), "resources": needs}
        kind = ray.remote(_Seat)
        # Restarts by Ray would lose count of the tries. Neighbours on one node share weights, but also its end.
        options = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1, "scheduling_strategy": "SPREAD"}
        return _Actor(ray, kind.options(**taken, **options).remote([self._bench], self._threads, versions()))

    def _connected(self) -> ModuleType:
        if self._ray is None:
            ray = _imported()
            self._joined = not ray.is_initialized()
            if self._joined:
                _join(ray, self._cluster.address)
            self._ray = ray
        return self._ray


class _Actor:
    """An actor as its driver sees it. `pending` is what it has been asked last and has not answered."""

    def __init__(self, ray: ModuleType, handle: Any) -> None:
        self._ray, self._handle = ray, handle
        self.task: Task | None = None
        self.ready = self.proven = self.placed = False
        self.end = ""
        self.pending: Any = handle.hello.remote()

    def call_up(self) -> None:
        """Have an idle one say that it is there: a lost one would not be noticed before it costs a trial."""
        if self.pending is None:
            self.ready, self.pending = False, self._handle.hello.remote()

    def give(self, task: Task) -> bool:
        task.tries += 1
        self.task, self.pending = task, self._handle.measure.remote(task.trial)
        return True

    def receive(self) -> object:
        try:
            said = self._ray.get(self.pending)
        except Exception as problem:  # noqa: BLE001 - Ray raises many classes, and of each the actor is no more
            self.end = _first_sentence(problem)
            return GONE
        self.placed = True
        self.pending = self._handle.prepare.remote() if said == STARTED else None
        return said

    def dismiss(self) -> None:
        with contextlib.suppress(Exception):  # it may be gone, and Ray with it
            self._ray.kill(self._handle)

    def bury(self, _: float) -> None:
        """Ray sees to it."""


class _Seat:
    """What runs in the actor."""

    def __init__(self, bench: list[Any], threads: int, expected: Mapping[str, str]) -> None:
        self._boxed, self._threads, self._expected = bench, threads, expected
        self._bench: Bench | None = None

    def hello(self) -> str:
        return STARTED

    def prepare(self) -> object:
        """Make the bench, once. What goes wrong is returned, because Ray would wrap what is raised."""
        if self._bench is None:
            here = versions()
            if here != self._expected:
                return WorkerError(
                    f"node {platform.node()} has {_listed(here)}, the driver {_listed(self._expected)}: "
                    "readings could differ. Install the same versions on every node."
                )
            made = bench_or_problem(self._unpacked)
            if isinstance(made, NoisescopeError):
                return made
            self._bench = made
        return READY

    def _unpacked(self) -> Bench:
        import ray

        made: Bench = ray.get(self._boxed[0])()
        return made

    def measure(self, trial: Trial) -> Reading:
        if self._bench is None:
            return Reading(trial, error="WorkerError: asked before it was ready")
        return answer(self._bench, trial, self._threads)


def versions() -> dict[str, str]:
    """Versions that have to be the same in driver and actors; what is not installed is left out."""
    found = {}
    for name in _ALIKE:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def fitting(free: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """How many workers fit into what is free, were it all in one place."""
    return min((int(free.get(name, 0.0) / amount + 1e-9) for name, amount in needs.items()), default=0)


def _imported() -> ModuleType:
    try:
        import ray
    except ImportError:
        raise BadInputError("Ray is not installed; pip install 'noisescope[ray]'.") from None
    return ray  # type: ignore[no-any-return,unused-ignore]


def _join(ray: ModuleType, address: str) -> None:
    where = address or os.environ.get("RAY_ADDRESS", "")
    advice = "Start one with `ray start --head`, or name none, here and in RAY_ADDRESS: then one is started."
    try:
        if _has_answered(where):
            advice = (
                "Something answers there. A Ray with a token needs RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here too."
            )
        target = address or ("local" if not where and _last_one_is_gone() else None)
        ray.init(address=target, log_to_driver=False, logging_level=logging.ERROR)
    except (Exception, SystemExit) as problem:
        told = f"no Ray cluster {f'at {where}' if where else 'could be started'}: {_first_sentence(problem)}"
        raise WorkerError(f"{told}. {advice}") from problem


def _has_answered(address: str) -> bool:
    """Raises if nobody is there: Ray itself asks for three minutes, and then ends the process."""
    host, _, port = address.rpartition(":")
    asked = bool(host and port.isdigit() and "//" not in address)
    if asked:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
    return asked


def _last_one_is_gone() -> bool:
    """Whether the Ray that was last started on this machine ended without `ray stop`: its address is still noted."""
    try:
        from ray._private.services import find_bootstrap_address

        _has_answered(find_bootstrap_address(None) or "")
    except OSError:
        return True
    except (ImportError, TypeError):  # another version of Ray: it may look for itself, which takes longer
        return False
    return False


def _put(ray: ModuleType, shared: Shared | None, make_bench: Callable[[], Bench]) -> Any:
    """What all actors make their bench from, in the object store."""
    stores = [node["Resources"].get("object_store_memory", 0.0) for node in ray.nodes() if node["Alive"]]
    if shared is not None and shared.nbytes <= _SHARE * min(stores, default=0.0):
        with contextlib.suppress(ray.exceptions.RayError):
            return ray.put(shared)
    try:
        return ray.put(make_bench)
    except (TypeError, AttributeError) as problem:
        raise BadInputError(f"cannot be sent to a worker: {_first_sentence(problem)}.") from problem


def _refuse_if_never(nodes: list[Mapping[str, float]], needs: Mapping[str, float]) -> None:
    if not any(fitting(node, needs) for node in nodes):
        offers = sorted({_listed(dict(sorted(node.items()))) for node in nodes})
        raise BadInputError(
            f"no node of the cluster can ever hold a worker that takes {_listed(needs)}; nodes have "
            f"{'; '.join(offers)}. Ask for less, or for a resource that is there."
        )


def _is_asked_for(name: str) -> bool:
    """Whether a resource is one that a person names."""
    return not name.startswith("node:") and name not in ("memory", "object_store_memory")


def _listed(amounts: Mapping[str, object]) -> str:
    shown = {name: amount for name, amount in amounts.items() if _is_asked_for(name)}
    said = [f"{name} {amount:g}" if isinstance(amount, float) else f"{name} {amount}" for name, amount in shown.items()]
    return ", ".join(said) or "nothing"


def _first_sentence(problem: BaseException) -> str:
    """What Ray says happened, without its advice: the cause of a death stands in its last line."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()] or [type(problem).__name__]
    told = next((line for line in lines if "dead because" in line or "Error" in line), lines[0])
    return ". ".join(told.split(". ")[:2]).rstrip(".")[:300]
