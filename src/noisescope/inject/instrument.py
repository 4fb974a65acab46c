"""Installs a watch on a model while an injection is on: hooks that follow its modules, a mode that sees its operators.

After the last injection nothing of it is left on the model.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from noisescope.core.layout import Layout
from noisescope.inject import traced
from noisescope.inject.active import Active
from noisescope.inject.mode import TapMode, is_pushed, pop_mode, push_mode
from noisescope.inject.ops import learn_registered
from noisescope.inject.watch import Watch
from noisescope.inject.where import Place
from noisescope.inject.written import close_written_out, open_written_out

Call = tuple[tuple[Any, ...], dict[str, Any]]
Hook = Callable[..., Any]
_MARK = "_noisescope_place"
_EPOCHS = itertools.count(1)


class Instrument(Watch):
    """A watch that can be switched on."""

    def __init__(self, outside: Place | None = None) -> None:
        super().__init__(outside)
        self.mode = TapMode(self)
        self._installed = 0
        self._hooks: dict[int, tuple[Hook, Hook]] = {}
        # A hook number of our own; torch hands each out once.
        self.number = RemovableHandle(OrderedDict()).id
        self._lock = threading.RLock()

    def attach(self, model: nn.Module, layout: Layout) -> None:
        """Learn a model. Its hooks exist only while an injection is on."""
        with self._lock:
            self.learn(model, layout)
            if self.actives:
                self._install()

    def start(self, active: Active) -> None:
        """Switch an injection on, and watch the operators of this thread."""
        learn_registered()
        self.mode.anchors = ()
        with self._lock:
            if not self.actives:
                self.here.started = 0
                self.epoch = next(_EPOCHS)
                self.memo.clear()
                self._install()
            self.actives = (*self.actives, active)
            self.replan()
        # Once per thread: pushed twice, the mode would see every operator twice.
        self.here.started += 1
        if not is_pushed(self.mode):
            push_mode(self.mode)

    def stop(self, active: Active) -> None:
        """Switch an injection off."""
        self.here.started = max(0, self.here.started - 1)
        if not self.here.started and is_pushed(self.mode):
            pop_mode(self.mode)
        with self._lock:
            self.actives = tuple(a for a in self.actives if a is not active)
            self.replan()
            if not self.actives:
                self._remove()

    def before(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """What the hook in front of a module does."""
        if not self.here.places and not is_pushed(self.mode):
            # Another thread than the one that switched the injection on, or a recomputation inside backward().
            push_mode(self.mode)
            self.here.opened = True
        self.enter(place, args, kwargs)
        return open_written_out(self, place, place.written_out, (args, kwargs)) if place.written_out else None

    def after(self, place: Place, out: Any) -> Any:
        """What the hook behind a module does; `out` is None where the module raised."""
        changed = close_written_out(self, place, place.written_out, out) if place.written_out else None
        self.leave(place)
        here = self.here
        if here.opened and not here.places:
            pop_mode(self.mode)
            here.opened = False
        return changed

    def _install(self) -> None:
        for place, reference in zip(self.places[self._installed :], self.modules[self._installed :], strict=True):
            self._installed += 1
            if (module := reference()) is None:
                continue
            # Read from the module and not from a closure: a compiled graph is then guarded by it, so that layers
            # of one class never share the graph of the first.
            module.__dict__[_MARK] = f"{self.name}:{place.index}"
            before, after = self._hooks[place.index] if place.index in self._hooks else _make_hooks(self, place)
            self._hooks[place.index] = before, after
            # Under the same number each time: compiled graphs are guarded by it, and a new one would recompile.
            module._forward_pre_hooks[self.number] = before
            cast(OrderedDict[int, Hook], module._forward_pre_hooks).move_to_end(self.number, last=False)
            module._forward_pre_hooks_with_kwargs[self.number] = True
            module._forward_hooks[self.number] = after
            module._forward_hooks_always_called[self.number] = True

    def _remove(self) -> None:
        self._installed = 0
        for module in [m for reference in self.modules if (m := reference()) is not None]:
            _strip(module, self.number)


def _make_hooks(instrument: Instrument, place: Place) -> tuple[Hook, Hook]:
    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling():
            mark = module._noisescope_place
            instrument.mode.anchors = (*instrument.mode.anchors, mark)
            return traced.open_written_out(mark, args, kwargs)
        hooks = cast(OrderedDict[int, Hook], module._forward_hooks)
        if next(reversed(hooks)) != instrument.number:
            # Hooks that were put on later run before ours, so that they still run inside the module.
            hooks.move_to_end(instrument.number)
        return instrument.before(place, args, kwargs)

    def after(module: Any, args: tuple[Any, ...], out: Any) -> Any:
        if torch.compiler.is_compiling():
            instrument.mode.anchors = instrument.mode.anchors[:-1]
            return traced.close_written_out(module._noisescope_place, out)
        return instrument.after(place, out)

    return _OwnHook(before, instrument.number), _OwnHook(after, instrument.number)


class _OwnHook:
    """A hook that does not travel: a copy of the model, or its pickle, gets one that takes itself off."""

    def __init__(self, hook: Hook, number: int) -> None:
        self.hook = hook
        self.number = number

    def __call__(self, *args: Any) -> Any:
        return self.hook(*args)

    def __reduce__(self) -> tuple[type[_StrayHook], tuple[int]]:
        return _StrayHook, (self.number,)


class _StrayHook:
    """Takes itself and what belongs to it off the module when the module is first called."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, module: nn.Module, *_: Any) -> None:
        if isinstance(module._forward_hooks.get(self.number), _StrayHook):
            _strip(module, self.number)


def _strip(module: nn.Module, number: int) -> None:
    module.__dict__.pop(_MARK, None)
    for hooks in (
        module._forward_pre_hooks,
        module._forward_pre_hooks_with_kwargs,
        module._forward_hooks,
        module._forward_hooks_always_called,
    ):
        hooks.pop(number, None)
