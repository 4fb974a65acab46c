"""One process-wide switch for noise in every operator of every model.

It scopes nothing to a model; `noisescope.inject` does that. What it does to an operator is the engine's business.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _global_forward_pre_hooks
from torch.utils.hooks import RemovableHandle

from noisescope.core.errors import BadInputError, LayersNotFoundError
from noisescope.core.layout import Layout
from noisescope.inject.active import Active
from noisescope.inject.instrument import Instrument
from noisescope.inject.mode import is_pushed, pop_mode
from noisescope.inject.tally import Tally
from noisescope.inject.where import Place
from noisescope.model.layout import layout_of
from noisescope.verl.settings import Settings


class Switchboard:
    """The switch, its settings and its statistics."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.enabled = False
        self.instrument = Instrument(outside=Place(-1, "", Layout()))
        self._active = Active(self.settings.injection())
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # One hook under one number: compiled graphs are guarded by both, and new ones would recompile.
        self._everywhere = self._meet
        self._number = RemovableHandle(OrderedDict()).id
        self._lock = threading.RLock()

    @property
    def stats(self) -> Tally:
        """What was injected since the last reset."""
        return self._active.stats

    def change(self, **fields: Any) -> None:
        """New values for some settings; they hold from the next operator call on."""
        with self._lock:
            self.adopt(replace(self.settings, **fields))

    def adopt(self, settings: Settings) -> None:
        """All settings at once. Nothing is taken over if one of them is wrong."""
        injection = settings.injection()
        with self._lock:
            self.settings = settings
            self._active.injection = injection
            self.instrument.training_only = settings.training_only
            self.instrument.replan()

    def enable(self) -> None:
        """Begin to inject. Models that were not registered are found when they are first called."""
        with self._lock:
            if not self.enabled:
                self.enabled = True
                _global_forward_pre_hooks[self._number] = self._everywhere
                self._forget_unfinished()
                self.instrument.start(self._active)

    def disable(self) -> None:
        """Stop injecting; settings and statistics stay."""
        with self._lock:
            if self.enabled:
                self.enabled = False
                self.instrument.stop(self._active)
                _global_forward_pre_hooks.pop(self._number, None)

    def _forget_unfinished(self) -> None:
        """Begin afresh in this thread: another may have switched off, which leaves the mode on this one's stack."""
        if is_pushed(self.instrument.mode):
            pop_mode(self.instrument.mode)
        self.instrument.here.started = 0
        self.instrument.here.places.clear()

    def register(self, model: nn.Module) -> int:
        """Learn the layers of a model; returns how many it has."""
        if not isinstance(model, nn.Module):
            raise BadInputError(f"model {type(model).__name__}: expected a torch.nn.Module.")
        model = _uncompiled(model)
        with self._lock:
            layout = layout_of(model)
            if not layout.layers:
                raise LayersNotFoundError(
                    f"cannot find the layers of {type(model).__name__}: no torch.nn.ModuleList of blocks in it. "
                    "Wrap its blocks in one ModuleList, or inject without naming layers."
                )
            if model not in self._known:
                self._learn(model, layout)
        return len(layout.layers)

    def _learn(self, model: nn.Module, layout: Layout) -> None:
        self._known.update(model.modules())
        self.instrument.attach(model, layout)

    def _meet(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The hook before every module of the process: a model that nobody registered is learned on its first call."""
        if torch.compiler.is_compiling() or module in self._known or self.instrument.here.places:
            return None
        if type(module).__module__.startswith("torch.nn.modules.loss"):
            # Often made anew at every step; learning them all would never end.
            return None
        model = _uncompiled(module)
        with self._lock:
            if model not in self._known:
                self._learn(model, layout_of(model))
            self._known.add(module)
        # Its own hooks come too late for this one call; those of a model inside a compiled one do not.
        call = self.instrument.before(self._place_of(module), args, {}) if model is module else None
        return None if call is None else call[0]

    def _place_of(self, module: nn.Module) -> Place:
        """The place of a known module; where a model was learned twice, as a part and as a whole, the last one."""
        pairs = zip(reversed(self.instrument.places), reversed(self.instrument.modules), strict=True)
        return next(place for place, reference in pairs if reference() is module)


def _uncompiled(model: nn.Module) -> nn.Module:
    """The model that `torch.compile` wrapped."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model
