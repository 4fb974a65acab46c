"""Lets the head of a model run on scored positions alone: the hidden states of all others are left out in front of it.

It knows no head by name: the model says which module makes its logits, and one that does not say so runs as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def head_of(model: object) -> nn.Module | None:
    """The module that makes the logits; None if the model does not say."""
    ask = getattr(model, "get_output_embeddings", None)
    # A hook would have what is compiled compiled anew.
    if not isinstance(model, nn.Module) or ask is None or is_compiled(model):
        return None
    head = ask()
    return head if isinstance(head, nn.Module) and not is_compiled(head) else None


def is_compiled(module: nn.Module) -> bool:
    """Whether a call of the module runs a compiled graph, by whichever of torch's ways."""
    by_function = hasattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable")
    return by_function or hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


class Narrowed:
    """What the head was given in one call: `done` once positions were left out."""

    def __init__(self, shape: torch.Size, rows: Tensor, positions: Tensor) -> None:
        self.shape = shape
        self.rows = rows
        self.positions = positions
        self.done = False

    def logits(self, found: Tensor) -> Tensor | None:
        """The logits [scored, token] in what the model gave [1, scored, token]; None if it is something else."""
        fits = self.done and found.shape[:2] == (1, len(self.rows))
        return found[0] if fits else None

    def hook(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """In front of the head: leave positions out, if it is given hidden states [row, position, channel]."""
        hidden = args[0] if args else None
        if not isinstance(hidden, Tensor) or hidden.dim() != 3 or hidden.shape[:2] != self.shape:
            return None
        self.done = True
        return hidden[self.rows, self.positions].unsqueeze(0), *args[1:]


@contextmanager
def narrowed(head: nn.Module, shape: torch.Size, rows: Tensor, positions: Tensor) -> Iterator[Narrowed]:
    """Inside, the head of a model that is called on inputs of this shape runs on these rows and positions alone."""
    narrow = Narrowed(shape, rows, positions)
    handle = head.register_forward_pre_hook(narrow.hook)
    try:
        yield narrow
    finally:
        handle.remove()
