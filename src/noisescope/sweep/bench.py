"""The one place where injection meets measurement: a model with prepared workloads, on which trials are measured.

It plans no trials and judges no readings. The model's weights must not change while a bench lives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from noisescope.core.errors import BadInputError, LoadError
from noisescope.core.records import Injection, Params, Reading, Trial
from noisescope.measure.batches import Samples, Settings, prepare
from noisescope.measure.calling import device_of, hidden_of, logits_of
from noisescope.measure.scoring import Clean, Scores, clean_run, evaluate
from noisescope.measure.workload import Workload, span
from noisescope.model.load import load
from noisescope.sweep.evaluating import evaluating, without_cache
from noisescope.sweep.injecting import Injecting
from noisescope.sweep.prefix import MEMORY as PREFIX_MEMORY
from noisescope.sweep.prefix import Prefix

MEMORY = 1 << 30


class ModelBench:
    """Measures trials on a model: all injections of a trial at once, one value per sample, in the order of the samples.

    `memory` bounds in bytes what is kept of clean runs to compare with, `prefix_memory` what is kept of the first
    layers so that they need not run again; 0 lets them run.
    """

    def __init__(
        self,
        model: nn.Module,
        prepared: Samples | Sequence[Samples],
        *,
        memory: int = MEMORY,
        prefix_memory: int = PREFIX_MEMORY,
    ) -> None:
        self.model = model
        listed = prepared if isinstance(prepared, Sequence) else (prepared,)
        self.prepared: Mapping[str, Samples] = {one.key: one for one in listed}
        self._memory, self._prefix_memory = memory, prefix_memory
        self._clean: OrderedDict[tuple[str, int, int], Clean] = OrderedDict()
        self._prefixes: dict[bool, Prefix] = {}

    def measure(self, trial: Trial, /) -> Reading:
        """The reading of a trial; without injections it is that of the clean run.

        An injection that never fires, or changes nothing at a strength above 0, raises.
        """
        prepared = self._prepared_for(trial)
        if trial.injections:
            scores, made = self._injected(prepared, trial)
        else:
            scores, made = self.clean(prepared, trial.start, trial.stop).scores, 0
        return Reading(trial, scores.values, nonfinite=sum(scores.broken), injections=made)

    def clean(self, prepared: Samples, start: int = 0, stop: int | None = None) -> Clean:
        """The clean run on a slice, which is made once and kept while there is room."""
        within = (prepared.key, *span(prepared, start, stop))
        if within not in self._clean:
            with self._ready(prepared), self._skipping(prepared, start, stop, ()):
                self._clean[within] = clean_run(self.model, prepared, start, stop, self._memory)
        self._clean.move_to_end(within)
        while len(self._clean) > 1 and sum(map(_size, self._clean.values())) > self._memory:
            self._clean.popitem(last=False)
        return self._clean[within]

    def prefix_of(self, prepared: Samples, start: int = 0, stop: int | None = None) -> Prefix | None:
        """What skips the first layers under this workload; None for generation, whose calls are never the same."""
        if prepared.view == "generation" or not self._prefix_memory:
            return None
        whole = prepared.view == "whole"
        if whole not in self._prefixes:
            inputs = prepared.batches(start, stop, device_of(self.model))[0].inputs
            see = self._see_hidden if whole else self._see_logits
            self._prefixes[whole] = Prefix(self.model, see, inputs, self._prefix_memory)
        return self._prefixes[whole]

    def _see_logits(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return logits_of(self.model(**inputs))

    def _see_hidden(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return hidden_of(self.model, inputs)

    def _prepared_for(self, trial: Trial) -> Samples:
        prepared = self.prepared.get(trial.workload)
        if prepared is None or prepared.metric.name != trial.metric:
            here = ", ".join(f"{one.metric.name} on {key}" for key, one in self.prepared.items())
            raise BadInputError(f"a trial of {trial.metric} on {trial.workload}: this bench has {here or 'nothing'}.")
        return prepared

    def _injected(self, prepared: Samples, trial: Trial) -> tuple[Scores, int]:
        """The scores, and how many injections were made for them."""
        clean = self.clean(prepared, trial.start, trial.stop) if prepared.metric.against_clean else None
        # Made before anything runs, because they refuse layers that the model does not have.
        injecting = [Injecting(self.model, injection) for injection in trial.injections]
        with ExitStack() as stack:
            stack.enter_context(self._ready(prepared))
            skipping = self._skipping(prepared, trial.start, trial.stop, trial.injections)
            for one in injecting:
                stack.enter_context(one)
            stack.enter_context(skipping)
            scores = evaluate(self.model, prepared, trial.start, trial.stop, clean)
        return scores, sum(one.stats.total_forward + one.stats.total_backward for one in injecting)

    @contextmanager
    def _ready(self, prepared: Samples) -> Iterator[None]:
        with evaluating(self.model), nullcontext() if prepared.view == "generation" else without_cache(self.model):
            yield

    def _skipping(
        self, prepared: Samples, start: int, stop: int | None, injections: tuple[Injection, ...]
    ) -> AbstractContextManager[None]:
        # What may be skipped is found out by running the model, so before anything is injected.
        prefix = self.prefix_of(prepared, start, stop)
        return prefix.skipping(prefix.first(injections)) if prefix else nullcontext()


def _size(clean: Clean) -> int:
    return sum(reference.nbytes for reference in clean.references if reference is not None)


@dataclass(frozen=True)
class Task:
    """A workload with the metric it is judged by and how it is laid out."""

    workload: Workload
    metric: str
    settings: Settings | None = None


@dataclass(frozen=True)
class BenchMaker:
    """Makes a bench where it is needed, a worker process for one: `load_options` are those of `noisescope.load`.

    `fingerprint` is that of the model as it was loaded first; another one is refused.
    """

    source: str
    tasks: tuple[Task, ...]
    load_options: Params = ()
    fingerprint: str = ""

    def __call__(self) -> ModelBench:
        """The bench. The model was checked where the trials were planned; here it is only seen to be the same."""
        options: dict[str, Any] = dict(self.load_options)
        loaded = load(self.source, **options)
        if self.fingerprint not in ("", loaded.fingerprint):
            raise LoadError(
                f"{self.source} is no longer the model it was (fingerprint {loaded.fingerprint}, expected "
                f"{self.fingerprint}): its files were changed. Start a new run."
            )
        tasks = [prepare(task.workload, loaded.tokenizer, task.metric, task.settings) for task in self.tasks]
        return ModelBench(loaded.model, tasks)
