"""Follows one model through its modules and passes, and resolves what happens to each operator there.

It holds the state; hooks, modes and compiled graphs feed it.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import NoisescopeError
from noisescope.core.layout import Layout
from noisescope.inject.active import Active, Charge, Plan
from noisescope.inject.plain import is_plain
from noisescope.inject.where import (
    Memo,
    Pass,
    Place,
    Position,
    Replay,
    first_tensor,
    in_backward,
    in_checkpoint,
)

_NAMES = itertools.count()
_LIVE: weakref.WeakValueDictionary[str, Watch] = weakref.WeakValueDictionary()


class Watch:
    """The places of a model, the injections that act on it, and where each thread is in it."""

    def __init__(self, outside: Place | None = None) -> None:
        self.name = f"watch{next(_NAMES)}"
        _LIVE[self.name] = self
        # Where operators run that are in no module at all; None leaves them alone.
        self.outside = outside
        self.places: list[Place] = []
        self.modules: list[weakref.ref[nn.Module]] = []
        self.layers = 0
        self.actives: tuple[Active, ...] = ()
        self.here = Position()
        self.memo = Memo()
        self.epoch = 0
        # Whether a compiled graph carries operators of this model.
        self.traced = False
        # Whether passes that were begun without gradients, such as evaluation and generation, stay clean.
        self.training_only = False

    def learn(self, model: nn.Module, layout: Layout) -> None:
        """Add the places of a model."""
        for path, module in model.named_modules():
            self.places.append(Place(len(self.places), path, layout))
            self.modules.append(weakref.ref(module))
        self.layers += len(layout.layers)

    def still_fits(self, model: nn.Module) -> bool:
        """Whether the model has the very modules that were learned."""
        modules = list(model.modules())
        known = [reference() for reference in self.modules]
        return len(modules) == len(known) and all(a is b for a, b in zip(modules, known, strict=True))

    def replan(self) -> None:
        """Forget every resolved plan; needed when what is injected has changed."""
        for place in self.every_place:
            place.plans.clear()

    @property
    def every_place(self) -> list[Place]:
        """The places of the modules, and the one outside them."""
        return [*self.places, self.outside] if self.outside else self.places

    @property
    def met(self) -> set[str]:
        """Operators that ran at any place since the last change of what is injected."""
        return {operator for place in self.every_place for operator in place.plans}

    def plan(self, place: Place, operator: str) -> Plan | None:
        """What happens to an operator at a place; None if nothing does."""
        try:
            found: Plan | None = place.plans[operator]
        except KeyError:
            forward = tuple(c for a in self.actives if (c := a.charge(place, operator, "forward")) is not None)
            backward = tuple(c for a in self.actives if (c := a.charge(place, operator, "backward")) is not None)
            found = place.plans[operator] = Plan(forward, backward) if forward or backward else None
        return found

    def place_now(self) -> Place | None:
        """The module that this thread is in."""
        places = self.here.places
        return places[-1] if places else self.outside

    def awake(self) -> bool:
        """Whether the pass that this thread is in is one to inject into."""
        if not self.training_only:
            return True
        now = self.here.current
        return torch.is_grad_enabled() if now is None or not self.here.places else now.learning

    def numbers(self, charges: tuple[Charge, ...]) -> tuple[int, ...]:
        """For each charge, the pass that this thread is in, counted from the first that its injection saw."""
        now = self.here.current
        if now is None:
            return (0,) * len(charges)
        return tuple(now.number - now.first.get(c.active.serial, 0) for c in charges)

    def enter(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module begins to run."""
        here = self.here
        if here.epoch != self.epoch:
            here.restart(self.epoch)
        tensor = first_tensor(args, kwargs)
        if here.places and here.places[0] is place:
            # A trace that was given up left its modules behind.
            here.places.clear()
        if not here.places:
            for active in self.actives:
                active.called = True
            here.current = self._recomputed(place, tensor) if in_backward() else self._new_pass(place)
        here.places.append(place)
        now = here.current
        if now is None or now.recomputing or tensor is None or not is_plain(tensor):
            return
        if in_checkpoint(now, tensor):
            self.memo.note(place, tensor, now)

    def leave(self, place: Place) -> None:
        """A module has run, or has raised."""
        here = self.here
        while here.places and here.places.pop() is not place:
            pass
        if not here.places:
            here.current = here.bare

    def _new_pass(self, place: Place) -> Pass:
        number, learning = self.here.passes.get(place.index, 0), torch.is_grad_enabled()
        # Passes that stay clean draw nothing, so how many there are does not change the noise of the others.
        self.here.passes[place.index] = number + int(learning or not self.training_only)
        first = {a.serial: self.here.first.setdefault((a.serial, place.index), number) for a in self.actives}
        return Pass(number, place.index, first, learning=learning)

    def _recomputed(self, place: Place, tensor: Tensor | None) -> Pass:
        task, replay = torch._C._current_graph_task_id(), self.here.replay
        replay = replay if replay is not None and replay.task == task else None
        if replay is None or replay.layer != place.layer or place.index in replay.seen:
            # The first module of a segment gets the very tensor that the checkpoint kept. The inputs of later ones are
            # made anew, also those of later layers in one segment: they belong to the segment that is being repeated.
            first_run = self.memo.recall(place, tensor) or (replay.first_run if replay is not None else None)
            replay = self.here.replay = Replay(task, place.layer, first_run or self._guess(place))
        replay.seen.add(place.index)
        before = replay.first_run
        return Pass(before.number, before.top, before.first, recomputing=True)

    def _guess(self, place: Place) -> Pass:
        only = self.memo.only()
        if only is None:
            raise NoisescopeError(
                f"the recomputation of {place.path or 'the model'} in backward cannot be matched with its first run: "
                "it would get other noise and the gradients would be wrong. Pass the inputs of checkpointed modules as "
                "tensors of their own, or switch checkpointing off."
            )
        return only


def by_name(name: str) -> Watch | None:
    """The live watch of that name."""
    return _LIVE.get(name)
