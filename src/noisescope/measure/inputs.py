"""Checks what a model is to be called with, and names the batch that it could not be called with.

It runs nothing and changes no batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError, NoisescopeError

Tensors = Mapping[str, Tensor]
_EXPECTED = "expected a list of at least one dict of tensors, such as [{'input_ids': ids}]"
# What a call with the wrong arguments raises, in the model's own code or in torch.
_WRONG_CALL = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def module_of(model: object) -> nn.Module:
    """A model that is one."""
    if not isinstance(model, nn.Module):
        raise BadInputError(f"model {type(model).__name__}: expected a torch.nn.Module.")
    has_weights = next(model.parameters(), None) is not None
    # What accelerate has put elsewhere is on the meta device until its hook brings it.
    if has_weights and all(weight.is_meta for weight in model.parameters()) and not _is_fetched(model):
        raise BadInputError(f"{type(model).__name__} is on the meta device, without values; load its weights first.")
    return model


def _is_fetched(model: nn.Module) -> bool:
    return any(hasattr(module, "_hf_hook") for module in model.modules())


def checked_batches(batches: Iterable[Tensors], model: object = None) -> list[Tensors]:
    """Batches that are dicts of tensors with at least one row, and with tokens that the model has."""
    if isinstance(batches, Mapping | Tensor | str) or not isinstance(batches, Iterable):
        raise BadInputError(f"batches: seen {type(batches).__name__}, {_EXPECTED}.")
    # A list stays itself and is looked at by number: it may count how far somebody has gone through it.
    found = batches if isinstance(batches, list) else list(batches)
    if not found:
        raise BadInputError(f"no batches: {_EXPECTED}.")
    tokens = _tokens_of(model)
    for number in range(len(found)):
        _check(number + 1, found[number], tokens)
    return found


def _check(number: int, batch: Any, tokens: int | None) -> None:
    if not isinstance(batch, Mapping) or not all(isinstance(tensor, Tensor) for tensor in batch.values()):
        kinds = {n: type(v).__name__ for n, v in batch.items()} if isinstance(batch, Mapping) else type(batch).__name__
        raise BadInputError(f"batch {number} is {kinds}; expected a dict of tensors, called as model(**batch).")
    if not any(len(tensor) for tensor in batch.values() if tensor.ndim):
        raise BadInputError(f"batch {number} has no rows; expected tensors whose first dimension counts samples.")
    ids = batch.get("input_ids")
    if ids is None:
        return
    if not ids.numel():
        raise BadInputError(f"batch {number}: input_ids {tuple(ids.shape)} hold no token.")
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise BadInputError(f"batch {number}: input_ids are {ids.dtype}; expected whole numbers, such as torch.int64.")
    if tokens is not None and not 0 <= int(ids.min()) <= int(ids.max()) < tokens:
        strange = int(ids.min()) if ids.min() < 0 else int(ids.max())
        raise BadInputError(f"batch {number}: token {strange}; expected 0 to {tokens - 1}, which the model has.")
    mask = batch.get("attention_mask")
    if mask is not None and mask.ndim == 2 == ids.ndim and mask.shape[1] != ids.shape[1]:
        shapes = f"attention_mask {tuple(mask.shape)} for input_ids {tuple(ids.shape)}"
        raise BadInputError(f"batch {number}: {shapes}; expected equal shapes.")


def _tokens_of(model: object) -> int | None:
    """How many tokens the embedding of a model holds, if it says."""
    ask = getattr(model, "get_input_embeddings", None)
    try:
        table = ask() if ask is not None else None
    except (AttributeError, NotImplementedError):
        return None
    return table.num_embeddings if isinstance(table, nn.Embedding) else None


@contextmanager
def called_with(number: int, batch: Tensors) -> Iterator[None]:
    """Say with which batch it was, where a clean call of the model inside the block raises."""
    try:
        yield
    except (NoisescopeError, torch.OutOfMemoryError):
        raise
    except _WRONG_CALL as problem:
        given = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.items())
        said = (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")
        raise BadInputError(f"the model cannot be called with batch {number}, as model({given}): {said}.") from problem
