"""The torch mode through which every operator call of a watched thread goes. It decides nothing itself.

A torch mode sees all spellings of an operator, but only in the thread that entered it and not during backward.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils.checkpoint import checkpoint

from noisescope.inject import traced
from noisescope.inject.ops import COMPOSITES, OPERATOR_OF
from noisescope.inject.tap import tap
from noisescope.inject.watch import Watch
from noisescope.inject.written import adds_a_bias, with_weight_outlets

# A graph's code calls operators itself, or through the Python part of a torch function and its dispatcher.
_DEPTH = 4


class TapMode(TorchFunctionMode):
    """Hands operator calls to the tap, and leaves all other calls alone."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch
        # The marks of the modules that are being traced, the innermost last.
        self.anchors: tuple[str, ...] = ()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one torch call."""
        kwargs = kwargs or {}
        operator = OPERATOR_OF.get(func)
        if torch.compiler.is_compiling():
            return self._traced(operator, func, args, kwargs)
        if operator is not None:
            if self.watch.traced and _runs_in_a_graph():
                return func(*args, **kwargs)
            return tap(self.watch, operator, func, args, kwargs)
        if func in COMPOSITES:
            with self:
                return COMPOSITES[func](*args, **kwargs)
        places = self.watch.here.places
        if places and places[-1].written_out:
            args = with_weight_outlets(self.watch, func, args)
        return func(*args, **kwargs)

    def _traced(self, operator: str | None, func: Any, args: Any, kwargs: Any) -> Any:
        mark = self.anchors[-1] if self.anchors else ""
        if operator is not None:
            return traced.tap(mark, operator, func, args, kwargs)
        if func in COMPOSITES or func is checkpoint:
            return traced.refuse(func.__name__)
        if mark and torch.is_grad_enabled() and has_parameter(args) and not adds_a_bias(func, args):
            args = traced.with_weight_outlets(mark, args)
        return func(*args, **kwargs)


def has_parameter(args: Any) -> bool:
    """Whether a parameter is among the positional arguments."""
    return any(isinstance(argument, nn.Parameter) for argument in args)


def _runs_in_a_graph() -> bool:
    """Whether a compiled graph makes this call. It carries its injections in itself."""
    frame = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame.f_code.co_filename.startswith("<eval_with_key>"):
            return True
        if frame.f_globals.get("__name__", "").startswith("torch._inductor."):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


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
