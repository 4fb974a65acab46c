"""The torch mode through which every operator call of a watched thread goes. It decides nothing itself.

A torch mode sees all spellings of an operator, but only in the thread that entered it and not during backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from noisescope.inject import traced
from noisescope.inject.ops import COMPOSITES, OPERATOR_OF
from noisescope.inject.tap import tap
from noisescope.inject.watch import Watch
from noisescope.inject.written import with_weight_outlets


class TapMode(TorchFunctionMode):
    """Hands operator calls to the tap, and leaves all other calls alone."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch
        self.name = watch.name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one torch call."""
        kwargs = kwargs or {}
        operator = OPERATOR_OF.get(func)
        if operator is not None:
            if torch.compiler.is_compiling():
                return traced.tap(self.name, operator, func, args, kwargs)
            return tap(self.watch, operator, func, args, kwargs)
        if func in COMPOSITES:
            with self:
                return COMPOSITES[func](*args, **kwargs)
        if not torch.compiler.is_compiling():
            places = self.watch.here.places
            if places and places[-1].written_out:
                args = with_weight_outlets(self.watch, args)
        return func(*args, **kwargs)


def push_mode(mode: TapMode) -> None:
    """Watch the operators of this thread."""
    _push_mode(mode)


def is_pushed(mode: TapMode) -> bool:
    """Whether this thread is watched. Inside a torch function, such as backward(), it is not."""
    return any(other is mode for other in _get_current_function_mode_stack())


def pop_mode(mode: TapMode) -> None:
    """Stop watching this thread, wherever in its stack of modes the mode stands by now."""
    above = []
    while True:
        top = _pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
