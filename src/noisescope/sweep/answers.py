"""What of a model's output is judged where there is no workload: its answer, and at which positions.

It compares nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from noisescope.core.errors import BadInputError


def answer_of(out: Any) -> tuple[Tensor, bool]:
    """What the model answers with, and whether that is logits."""
    if isinstance(out, Tensor):
        return out, True
    logits = getattr(out, "logits", None)
    if isinstance(logits, Tensor):
        return logits, True
    hidden = getattr(out, "last_hidden_state", None)
    if isinstance(hidden, Tensor):
        return hidden, False
    raise BadInputError(f"{type(out).__name__}: expected a model that returns a tensor, logits or a last_hidden_state.")


def judged_of(batch: Mapping[str, Tensor], out: Tensor) -> Tensor:
    """1 for every position that counts: what the attention mask leaves out is padding."""
    mask = batch.get("attention_mask")
    shape = out.shape[:-1]
    fits = mask is not None and mask.shape == shape
    return mask.to(out.device, torch.float32) if mask is not None and fits else torch.ones(shape, device=out.device)
