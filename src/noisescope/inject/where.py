"""Where a model is at this moment: the module that is running, in which pass, in this thread.

Nothing here knows what is injected.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from noisescope.core.layout import Layout
from noisescope.core.records import Site

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
    recomputing: bool = False
    learning: bool = True
    ordinals: dict[tuple[int, str], int] = field(default_factory=dict)
    softmax_at: Place | None = None
    outlets: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Replay:
    """The recomputation of one layer inside backward: the pass that it repeats, and the modules it has reached."""

    layer: int | None
    number: int
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
    """Which pass a module's input belonged to, so that a recomputation under checkpointing finds its first run.

    Both kinds of checkpointing keep a layer's input alive until its backward, so its address identifies it.
    """

    def __init__(self) -> None:
        self._pass_of: dict[tuple[int, int], int] = {}
        self.latest = 0

    def note(self, place: Place, tensor: Tensor, number: int) -> None:
        """Remember the pass of an input."""
        self._pass_of[(place.index, tensor.data_ptr())] = number
        if len(self._pass_of) > _MEMO_LIMIT:
            del self._pass_of[next(iter(self._pass_of))]

    def recall(self, place: Place, tensor: Tensor | None) -> int | None:
        """The pass in which this module last saw this input."""
        return None if tensor is None else self._pass_of.get((place.index, tensor.data_ptr()))

    def clear(self) -> None:
        """Forget all inputs."""
        self._pass_of.clear()
        self.latest = 0


def in_backward() -> bool:
    """Whether autograd is running a backward pass in this thread; a forward seen then is a recomputation."""
    return torch._C._current_graph_task_id() != -1


def first_tensor(args: tuple[Any, ...]) -> Tensor | None:
    """The first tensor among positional arguments."""
    return next((a for a in args if isinstance(a, Tensor)), None)
