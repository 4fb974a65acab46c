"""What a command line names, made ready: the model loaded, the workload prepared, the run folder opened, workers hired.

It asks the model nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch

from noisescope.core.records import Params
from noisescope.measure.batches import Samples, Settings, prepare
from noisescope.measure.metrics import USUAL, metric_for
from noisescope.measure.workload import Workload
from noisescope.model.placement import device_map_of
from noisescope.runs.diagnosing import Desk, Patient, about
from noisescope.sweep.bench import BenchMaker, ModelBench, Task
from noisescope.sweep.executors.process import Processes
from noisescope.sweep.executors.ray import Actors, Cluster
from noisescope.sweep.executors.serial import Serial
from noisescope.sweep.packed import packed
from noisescope.sweep.store import Store
from noisescope.sweep.study import Executor
from noisescope.sweep.subject import Subject, load

CALIBRATED_BY = "nll"
_MARK = 8


@dataclass(frozen=True)
class Order:
    """The model by name, the workloads, and how the run is done. No metric is the usual one of the items' shape.

    With a cluster it does the work, and `workers` says nothing.
    `is_marked` adds the beginning of the model's hash to the folder's name, so that every checkpoint has its own.
    """

    source: str
    load_options: Params
    workload: Workload
    out: Path
    calibration: Workload | None = None
    metric: str | None = None
    workers: int = 1
    cluster: Cluster | None = None
    asked: str = ""
    is_marked: bool = False

    def folder(self, fingerprint: str) -> Path:
        """Where the run of this model is kept."""
        return self.out.with_name(f"{self.out.name}-{fingerprint[:_MARK]}") if self.is_marked else self.out


@contextmanager
def opened(order: Order, stream: TextIO | None) -> Iterator[Desk]:
    """The order made ready; workers go and the folder is closed at the end of the block."""
    options: dict[str, Any] = dict(order.load_options)
    shape = order.workload.shape
    # A name that is wrong is told before a model is loaded for minutes.
    metric = metric_for(order.metric or USUAL[shape], shape)
    subject = load(order.source, **options)
    settings = Settings.of(subject.model)
    task = Task(order.workload, metric.name, settings)
    samples = prepare(task.workload, subject.tokenizer, task.metric, settings)
    calibration = samples
    if order.calibration is not None:
        calibration = prepare(order.calibration, subject.tokenizer, CALIBRATED_BY, settings)
    patient = Patient(subject.model, subject.layers, subject.sites, samples, calibration)
    threads = threads_of(order)
    with (
        Store(order.folder(subject.fingerprint), about(patient, subject.fingerprint, threads, order.asked)) as store,
        hired(order, subject, samples, task, threads) as executor,
    ):
        yield Desk(patient, store, executor, stream)


def threads_of(order: Order) -> int:
    """How many threads each worker computes with, which is a part of what a run is."""
    if order.cluster is None:
        return max(1, torch.get_num_threads() // order.workers)
    return max(1, int(dict(order.cluster.needs).get("CPU", 1)))


@contextmanager
def hired(order: Order, subject: Subject, samples: Samples, task: Task, threads: int) -> Iterator[Executor]:
    """Whoever runs the trials of an order: this process, worker processes, or a cluster; they go with the block."""
    maker = BenchMaker(order.source, (task,), order.load_options, subject.fingerprint)
    if order.cluster is not None:
        maker = replace(maker, source=_absolute(order.source), load_options=_elsewhere(order.load_options))
        shared = partial(packed, subject.model, subject.tokenizer, (task,))
        with Actors(maker, threads=threads, cluster=order.cluster, shared=shared) as actors:
            yield actors
    elif order.workers > 1:
        with Processes(maker, order.workers, threads=threads) as processes:
            yield processes
    else:
        yield Serial(lambda: ModelBench(subject.model, samples), threads=threads)


def _elsewhere(load_options: Params) -> Params:
    """How an actor loads, whose Ray shows it no device but its own, and whose folder is another one."""
    options: dict[str, Any] = dict(load_options)
    device = options.get("device", "cpu")
    options["device"] = _absolute(device) if device_map_of(device) else device.partition(":")[0]
    options["config_from"] = options.get("config_from") and _absolute(options["config_from"])
    return tuple(options.items())


def _absolute(source: str) -> str:
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source
