"""Lets a model run for a while as it should where nothing is learned and nothing generated, or as if it had not run.

It changes nothing of the model that lasts. Threads that run one model take turns, because what is put into it and
what listens to it hangs on the model itself.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from noisescope.measure.calling import declares
from noisescope.measure.head import is_compiled

Call = tuple[tuple[Any, ...], dict[str, Any]]


_TURNS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_MAKING = threading.Lock()


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Every module in eval mode inside the block, and afterwards each in the mode in which it was.

    Another thread that evaluates one of the models waits until then.
    """
    with ExitStack() as turns:
        # In one order everywhere, so that two threads never wait for each other.
        for model in sorted(models, key=id):
            turns.enter_context(_turn(model))
        training = [module for model in models for module in model.modules() if module.training]
        try:
            _to_eval(models)
            yield
        finally:
            for module in training:
                module.training = True


def _to_eval(models: Iterable[nn.Module]) -> None:
    for model in models:
        if any(module.training for module in model.modules()):
            model.eval()


def _turn(model: nn.Module) -> threading.RLock:
    whole: nn.Module = getattr(model, "_orig_mod", model)
    with _MAKING:
        return _TURNS.setdefault(whole, threading.RLock())


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


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Inside the block weights have no gradients; afterwards those and all random state are as they were before."""
    weights = list(model.parameters())
    kept = [(weight.grad, weight.requires_grad) for weight in weights]
    plain, arrays = random.getstate(), np.random.get_state()
    devices = {weight.device for weight in weights if weight.device.type != "cpu"}
    kind = next((device.type for device in devices), "cuda")
    try:
        with torch.random.fork_rng(list(devices), device_type=kind):
            for weight in weights:
                weight.grad = None
            yield
    finally:
        for weight, (grad, learns) in zip(weights, kept, strict=True):
            weight.grad, weight.requires_grad = grad, learns
        random.setstate(plain)
        np.random.set_state(arrays)
