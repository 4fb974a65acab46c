"""Puts a model into eval mode for a while. It changes nothing else of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode inside the block, and afterwards each in the mode in which it was."""
    was_training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, training in was_training.items():
            module.training = training
