"""Where a model is at this moment: the module that is running, in which pass, in this thread.

Nothing here knows what is injected.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from noisescope.core.layout import Layout
from noisescope.core.records import Site
from noisescope.inject.plain import is_plain

_MEMO_LIMIT = 65536


class Place:
    """One module of a model, with what was resolved about it. `plans` holds one entry per operator met here."""

    __slots__ = ("index", "layer", "linear", "local", "passed_over", "path", "plans", "written_out")

    def __init__(self, index: int, path: str, layout: Layout) -> None:
        self.index = index
        self.path = path
        self.layer, self.local = layout.layer_of(path)
        self.written_out = dict(layout.written_out).get(path)
        self.linear = path in layout.linear
        self.passed_over = path in layout.passed_over
        self.plans: dict[str, Any] = {}

    def site(self, operator: str) -> Site:
        """This place and one operator."""
        return Site(self.layer, operator, self.path)


@dataclass(slots=True)
class Pass:
    """One run of a model, or of a part of it that was called on its own."""

    number: int
    top: int
    # For each injection, the first pass that it saw: it counts from there.
    first: dict[int, int] = field(default_factory=dict)
    recomputing: bool = False
    learning: bool = True
    ordinals: dict[tuple[int, str], int] = field(default_factory=dict)
    softmax_at: Place | None = None
    outlets: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Replay:
    """The recomputation of one segment inside one backward: the pass that it repeats, and the modules reached."""

    task: int
    layer: int | None
    first_run: Pass
    seen: set[int] = field(default_factory=set)


class Position(threading.local):
    """The state of one thread: the modules it is in, the pass, and how many passes it has made."""

    def __init__(self) -> None:
        self.epoch = -1
        self.places: list[Place] = []
        self.current: Pass | None = None
        self.passes: dict[int, int] = {}
        self.replay: Replay | None = None
        self.first: dict[tuple[int, int], int] = {}
        self.opened = False
        # Operators in no module belong to no pass; what they have drawn is never drawn again.
        self.bare = Pass(0, -1)
        self.started = 0

    def restart(self, epoch: int) -> None:
        """Forget all passes: a new set of injections counts from zero."""
        self.epoch = epoch
        self.places.clear()
        self.passes.clear()
        self.replay = None
        self.first.clear()
        self.bare = Pass(0, -1)
        self.current = None

    def ordinal(self, place: Place, operator: str) -> int:
        """How often this operator has already run at this place in this pass; counts the call."""
        if self.current is None:
            self.current = self.bare
        key = (place.index, operator)
        number = self.current.ordinals.get(key, 0)
        self.current.ordinals[key] = number + 1
        return number


class Memo:
    """Which pass the input of a checkpointed module belonged to, so that a recomputation finds its first run.

    Both kinds of checkpointing keep the storage of a segment's input alive until its backward, so that storage
    identifies the pass. An entry whose storage has died is worth nothing: another tensor may live there now.
    """

    def __init__(self) -> None:
        self._passes: dict[tuple[int, int], list[tuple[StorageWeakRef, Pass]]] = {}

    def note(self, place: Place, tensor: Tensor, now: Pass) -> None:
        """Remember the pass of an input."""
        entries = self._passes.setdefault(self._key(place, tensor), [])
        entries[:] = [entry for entry in entries if not entry[0].expired()]
        entries.append((StorageWeakRef(tensor.untyped_storage()), now))
        if len(self._passes) > _MEMO_LIMIT:
            self._passes = {k: e for k, e in self._passes.items() if any(not ref.expired() for ref, _ in e)}

    def recall(self, place: Place, tensor: Tensor | None) -> Pass | None:
        """The last pass in which this module saw this input and that was not recalled yet."""
        if tensor is None or not is_plain(tensor):
            return None
        entries = [e for e in self._passes.get(self._key(place, tensor), []) if not e[0].expired()]
        if not entries:
            return None
        if len(entries) > 1:
            # Seen in several passes: autograd goes through them backwards.
            self._passes[self._key(place, tensor)] = entries[:-1]
        return entries[-1][1]

    def only(self) -> Pass | None:
        """The one pass that is remembered, if there is just one."""
        alive = {id(now): now for entries in self._passes.values() for ref, now in entries if not ref.expired()}
        return next(iter(alive.values())) if len(alive) == 1 else None

    def clear(self) -> None:
        """Forget all inputs."""
        self._passes.clear()

    @staticmethod
    def _key(place: Place, tensor: Tensor) -> tuple[int, int]:
        return place.index, tensor.data_ptr()


def in_checkpoint(now: Pass, tensor: Tensor) -> bool:
    """Whether a checkpoint runs its first forward here: one kind hooks what autograd saves, the other saves nothing."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return True
    return not torch.is_grad_enabled() and (now.learning or tensor.requires_grad)


def in_backward() -> bool:
    """Whether autograd is running a backward pass in this thread; a forward seen then is a recomputation."""
    return torch._C._current_graph_task_id() != -1


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The first tensor among the arguments."""
    return next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), None)
