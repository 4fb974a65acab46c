"""What a command line names, made ready: the model loaded, the workload prepared, the run folder opened, workers hired.

It asks the model nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from noisescope.core.records import Params
from noisescope.measure.batches import Settings, prepare
from noisescope.measure.metrics import USUAL
from noisescope.measure.workload import Workload
from noisescope.runs.diagnosing import Desk, Patient, about
from noisescope.sweep.bench import BenchMaker, ModelBench, Task
from noisescope.sweep.executors.process import Processes
from noisescope.sweep.executors.serial import Serial
from noisescope.sweep.store import Store
from noisescope.sweep.subject import load

CALIBRATED_BY = "nll"


@dataclass(frozen=True)
class Order:
    """The model by name, the workloads, and how the run is done. No metric is the usual one of the items' shape."""

    source: str
    load_options: Params
    workload: Workload
    out: Path
    calibration: Workload | None = None
    metric: str | None = None
    workers: int = 1
    asked: str = ""


@contextmanager
def opened(order: Order, stream: TextIO | None) -> Iterator[Desk]:
    """The order made ready; workers go and the folder is closed at the end of the block."""
    options: dict[str, Any] = dict(order.load_options)
    subject = load(order.source, **options)
    settings = Settings.of(subject.model)
    task = Task(order.workload, order.metric or USUAL[order.workload.shape], settings)
    samples = prepare(task.workload, subject.tokenizer, task.metric, settings)
    calibration = samples
    if order.calibration is not None:
        calibration = prepare(order.calibration, subject.tokenizer, CALIBRATED_BY, settings)
    patient = Patient(subject.model, subject.layers, subject.sites, samples, calibration)
    threads = max(1, torch.get_num_threads() // order.workers)
    maker = BenchMaker(order.source, (task,), order.load_options, subject.fingerprint)
    with Store(order.out, about(patient, subject.fingerprint, threads, order.asked)) as store:
        if order.workers == 1:
            yield Desk(patient, store, Serial(lambda: ModelBench(subject.model, samples), threads=threads), stream)
            return
        with Processes(maker, order.workers, threads=threads) as executor:
            yield Desk(patient, store, executor, stream)
