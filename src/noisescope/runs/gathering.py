"""Makes samples of whatever a person has for a model: batches of tensors, texts, items, or a JSONL file of them.

It judges nothing, runs no trial, and fetches nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from noisescope.core.errors import BadInputError
from noisescope.measure.batches import Samples, Settings, prepare
from noisescope.measure.given import given
from noisescope.measure.harness import read_task
from noisescope.measure.metrics import USUAL, fitting
from noisescope.measure.workload import (
    Choice,
    Completion,
    Item,
    Question,
    Text,
    Workload,
    demo_workload,
    item_of,
    read_workload,
)
from noisescope.sweep.evaluating import evaluating

_EXPECTED = (
    "expected a list of batches (dicts of tensors, called as model(**batch)), a list of texts, a list of items such as "
    "{'question': ..., 'answer': ...}, or the path of a JSONL file of them"
)
_ITEMS = (Question, Completion, Text, Choice)


DEMO, TASK = "demo:", "task:"


def workload_named(name: str, samples: int | None) -> Workload:
    """The workload of a name: a JSONL file, demo:NAME, or task:NAME of lm-evaluation-harness."""
    if name.startswith(DEMO):
        return demo_workload(name.removeprefix(DEMO), limit=samples)
    found = (
        read_task(name.removeprefix(TASK), limit=samples)
        if name.startswith(TASK)
        else read_workload(name, limit=samples)
    )
    # Tests that stop early need an order that knows nothing of how hard an item is.
    return Workload.of(found.name, random.Random(0).sample(found.items, len(found)), found.repeated)  # noqa: S311


@dataclass(frozen=True)
class Gatherer:
    """Makes samples for one model. Texts and items need its tokenizer."""

    model: nn.Module
    tokenizer: Any | None = None

    def samples(self, name: str, data: Any, metric: str | None = None) -> Samples:
        """Data under its name as samples; without a metric under the usual one of their shape."""
        found = _understood(name, data)
        if not isinstance(found, Workload):
            with evaluating(self.model):
                return given(self.model, found, metric)
        if self.tokenizer is None:
            raise BadInputError(f"{name} holds {found.shape} items, which need a tokenizer: pass tokenizer=.")
        chosen = metric or USUAL[found.shape]
        return prepare(found, self.tokenizer, chosen, Settings.of(self.model))

    def inputs(self, name: str, data: Any, like: Samples) -> Samples:
        """Data that the model only runs on, judged by the metric of other samples if that fits."""
        found = _understood(name, data)
        shape = found.shape if isinstance(found, Workload) else "tensors"
        metric = like.metric.name if like.metric.name in fitting(shape) else None
        return self.samples(name, found, metric)


def _understood(name: str, data: Any) -> Workload | Sequence[Mapping[str, Tensor]]:
    """A workload, or batches of tensors."""
    if isinstance(data, Workload):
        return data
    if isinstance(data, Path) or (isinstance(data, str) and data.endswith(".jsonl")):
        return read_workload(data)
    if isinstance(data, Mapping):
        data = [data]
    if isinstance(data, str) or not isinstance(data, Iterable):
        raise BadInputError(f"{name} is {type(data).__name__} {str(data)[:40]!r}; {_EXPECTED}.")
    listed = list(data)
    if not listed:
        raise BadInputError(f"{name} is empty; {_EXPECTED}.")
    if any(isinstance(one, Mapping) and any(isinstance(value, Tensor) for value in one.values()) for one in listed):
        return listed
    items = [_item(f"{name}, item {number}", one) for number, one in enumerate(listed, start=1)]
    # A second copy says nothing new, and intervals computed with it would be too narrow.
    return Workload.of(name, dict.fromkeys(items))


def _item(place: str, one: Any) -> Item:
    if isinstance(one, _ITEMS):
        return one
    if isinstance(one, str):
        return item_of(place, {"text": one})
    if isinstance(one, Mapping) and "input_ids" in one:
        raise BadInputError(
            f"{place}: input_ids is no tensor; pass return_tensors='pt' or dataset.with_format('torch')."
        )
    if isinstance(one, Mapping):
        return item_of(place, one)
    raise BadInputError(f"{place} is {type(one).__name__}; {_EXPECTED}.")
