"""Lets a model run for a while as it should where nothing is learned and nothing generated.

It changes nothing of the model that lasts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from noisescope.measure.calling import declares
from noisescope.measure.head import is_compiled

Call = tuple[tuple[Any, ...], dict[str, Any]]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode inside the block, and afterwards each in the mode in which it was."""
    training = [module for module in model.modules() if module.training]
    try:
        if training:
            model.eval()
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """Inside the block calls of a model that takes `use_cache` keep no keys and values, unless they ask for it."""
    if is_compiled(model) or not declares(model, "use_cache"):
        yield
        return
    handle = model.register_forward_pre_hook(_ask_for_none, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _ask_for_none(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    return args, {"use_cache": False, **kwargs}
