"""Calls a model on a batch and finds in what it gives the logits or the last hidden state.

It judges neither. A model is whatever can be called with the tensors of a batch as keywords.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError
from noisescope.measure.head import head_of, narrowed

Model = Callable[..., Any]
# Two runs that should be the same to rounding differ by less than this share of the largest logit in any format.
CAUSAL_TOLERANCE = 0.05
PROBE_LENGTH = 8
# The keyword of transformers: an index over positions, or how many of the last.
KEEP = "logits_to_keep"


def device_of(model: Model) -> torch.device:
    """Where a model's first parameter is, among those that are not on disk; the CPU for what has none."""
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    return next((weight.device for weight in parameters if not weight.is_meta), torch.device("cpu"))


def declares(model: Model, name: str) -> bool:
    """Whether the model itself has a parameter of this name."""
    return name in _parameters(model)


def accepts(model: Model, name: str) -> bool:
    """Whether a keyword of this name reaches the model, or something that it hands its keywords to."""
    kinds = [parameter.kind for parameter in _parameters(model).values()]
    return declares(model, name) or inspect.Parameter.VAR_KEYWORD in kinds


def _parameters(model: Model) -> Mapping[str, inspect.Parameter]:
    # A compiled module takes anything and hands it on to this one.
    called = getattr(model, "_orig_mod", model)
    return inspect.signature(called.forward if isinstance(called, nn.Module) else called).parameters


def field(output: object, name: str) -> Any:
    """A named part of what a model gave, or None."""
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def logits_of(output: object) -> Tensor:
    """The logits [row, position, token] in what a model gave; [row, class] are those of one position."""
    found = output if isinstance(output, Tensor) else field(output, "logits")
    if isinstance(output, tuple) and output and not isinstance(found, Tensor):
        found = output[0]
    if isinstance(found, Tensor) and found.ndim in (2, 3):
        return found if found.ndim == 3 else found[:, None]
    given = ", ".join(output) if isinstance(output, Mapping) else type(output).__name__
    raise BadInputError(
        f"the model gives no logits for every token (it gives {given}); expected a causal language model. For an "
        "encoder take the metric embedding_shift."
    )


def logits_at(model: Model, inputs: Mapping[str, Tensor], rows: Tensor, positions: Tensor) -> Tensor:
    """The logits [scored, token] at these rows and positions.

    The head of a small model is a fifth of its work, so it runs on these alone where the model says which module it
    is; else on the positions that some row needs, if the model can leave others out.
    """
    if "labels" in inputs:
        # A loss that is computed on the way needs the logits of all positions.
        return _picked(logits_of(model(**inputs)), rows, positions)
    ids, head = inputs.get("input_ids"), head_of(model)
    if head is not None and ids is not None and len(rows) < ids.numel():
        with narrowed(head, ids.shape, rows, positions) as narrow:
            found = logits_of(model(**inputs))
        logits = narrow.logits(found) if narrow.done else _picked(found, rows, positions)
        if logits is not None:
            return logits
    if not declares(model, KEEP):
        return _picked(logits_of(model(**inputs)), rows, positions)
    kept, place = positions.unique(return_inverse=True)
    return _picked(logits_of(model(**inputs, **{KEEP: kept})), rows, place)


def _picked(logits: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    if len(places) and int(places.max()) >= logits.shape[1]:
        raise BadInputError(
            f"the model gives logits for {logits.shape[1]} positions of {int(places.max()) + 1} or more; expected a "
            "causal language model. For an encoder take the metric embedding_shift."
        )
    flat, index = logits.flatten(0, 1), rows * logits.shape[1] + places
    # Where all are wanted in their order, a copy would double the largest tensor there is.
    return flat if torch.equal(index, torch.arange(len(flat), device=index.device)) else flat[index]


def hidden_of(model: Model, inputs: Mapping[str, Tensor]) -> Tensor:
    """The last hidden state [row, position, channel] of a model on a batch."""
    more = {"output_hidden_states": True} if accepts(model, "output_hidden_states") else {}
    output = model(**inputs, **more)
    found = field(output, "last_hidden_state")
    if found is None:
        states = field(output, "hidden_states")
        found = states[-1] if states else None
    if found is None and isinstance(output, Tensor):
        found = output[:, None] if output.ndim == 2 else output
    if isinstance(found, Tensor) and found.ndim == 3:
        return found
    raise BadInputError("the model gives no last hidden state; expected one, for an embedding to be made of it.")


def require_causal(model: Model, inputs: Mapping[str, Tensor]) -> None:
    """Raise unless the logits at a position stay as they are when a later token changes."""
    longest = int(inputs["attention_mask"].sum(1).argmax())
    if not is_causal(model, {name: tensor[longest, None, :PROBE_LENGTH] for name, tensor in inputs.items()}):
        raise BadInputError(
            "the model's logits at a token depend on the tokens behind it, so they do not foretell them; expected a "
            "causal language model. For an encoder take the metric embedding_shift."
        )


def is_causal(model: Model, row: Mapping[str, Tensor]) -> bool:
    """Whether the logits of a row, the first of these inputs, stay as they are when its last token changes."""
    twice = {name: torch.cat([tensor[:1]] * 2) if tensor.ndim else tensor for name, tensor in row.items()}
    ids = twice["input_ids"] if "input_ids" in twice else twice["inputs_embeds"]
    # Behind the last token there may be padding.
    mask = row.get("attention_mask")
    last = ids.shape[1] - 1 if mask is None or mask.ndim != 2 else int(mask[0].nonzero()[-1])
    if last < 1:
        return True
    if ids.is_floating_point():
        ids[1, last] *= -1
    else:
        ids[1, last] = ids[0, 0] if ids[1, last] != ids[0, 0] else (ids[0, 0] + 1) % max(2, int(ids.max()))
    with torch.no_grad():
        logits = logits_of(model(**twice))
    one, other = logits[:, :last].float().nan_to_num()
    return bool((one - other).abs().max() <= _rounding(model, logits) * one.abs().max())


def _rounding(model: Model, logits: Tensor) -> float:
    """The share of the largest logit by which two runs may differ in the coarsest arithmetic that the model uses."""
    weights = model.parameters() if isinstance(model, nn.Module) else iter(())
    eps = [torch.finfo(one.dtype).eps for one in (logits, *weights) if one.is_floating_point()]
    return min(CAUSAL_TOLERANCE, math.sqrt(max(eps)))
