"""Turns a task of lm-evaluation-harness into a workload, by asking it for the requests that it would make.

It does not run the harness: metrics and filters of the task are passed over, and its items are judged as ours are.
"""

from __future__ import annotations

import contextlib
import sys
from itertools import groupby
from typing import Any

from noisescope.core.errors import BadInputError
from noisescope.measure.workload import Choice, Completion, Item, Question, Text, Workload, final_number

EXTRA = "pip install 'noisescope[harness]'"


def read_task(name: str, *, limit: int | None = None, shots: int | None = None, folder: str | None = None) -> Workload:
    """The workload of a task, or the first `limit` items of it, with `shots` examples in each prompt.

    Tasks of one's own are found in `folder`.
    """
    task = _task(name, folder)
    if shots is not None:
        task.set_config(key="num_fewshot", value=shots)
    with contextlib.redirect_stdout(sys.stderr):
        task.build_all_requests(limit=limit, rank=0, world_size=1)
    return Workload.of(name, items_of(name, task))


def items_of(name: str, task: Any) -> list[Item]:
    """The items of a task that has built its requests; each item once."""
    by_document = groupby(task.instances, key=lambda request: request.doc_id)
    return list(dict.fromkeys(_item(name, task, list(requests)) for _, requests in by_document))


def _task(name: str, folder: str | None) -> Any:
    try:
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise BadInputError(f"task {name!r}: lm-evaluation-harness is not installed; {EXTRA}.") from None
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = TaskManager(include_path=folder).load(name)["tasks"]
    except Exception as problem:  # a missing task, a dataset out of reach, a broken file: each its own class
        raise BadInputError(f"task {name!r}: lm-evaluation-harness cannot load it ({problem}).") from problem
    if len(found) != 1:
        raise BadInputError(f"task {name!r} is a group of {len(found)}: {', '.join(found)}; expected one of them.")
    return next(iter(found.values()))


def _item(name: str, task: Any, requests: list[Any]) -> Item:
    kind, document = task.OUTPUT_TYPE, requests[0].doc
    if kind == "multiple_choice":
        return _choice(name, task, requests)
    if kind == "loglikelihood_rolling":
        return Text(requests[0].args[0])
    prompt, rest = requests[0].args
    if kind == "loglikelihood":
        return Completion(prompt, rest)
    answer = str(task.doc_to_target(document))
    if final_number(answer) is None:
        raise BadInputError(f"task {name!r}: the answer {answer[:80]!r} holds no number; expected one in every answer.")
    until = rest.get("until") or ()
    return Question(prompt, answer, ends=tuple(filter(None, [until] if isinstance(until, str) else until)))


def _choice(name: str, task: Any, requests: list[Any]) -> Choice:
    # Requests with another prompt are there for metrics of the task's own.
    prompt = requests[0].args[0]
    choices = tuple(request.args[1] for request in requests if request.args[0] == prompt)
    target = task.doc_to_target(requests[0].doc)
    written = list(task.doc_to_choice(requests[0].doc))
    right = written.index(target) if isinstance(target, str) and target in written else target
    is_index = isinstance(right, int) and not isinstance(right, bool) and 0 <= right < len(written)
    if not is_index or not len(set(choices)) == len(choices) == len(written) or not prompt.strip():
        raise BadInputError(
            f"task {name!r}: an item with {len(choices)} choices behind its prompt and the answer {target!r}; expected "
            "one prompt, choices that differ, and one right choice."
        )
    return Choice(prompt, choices, right)
