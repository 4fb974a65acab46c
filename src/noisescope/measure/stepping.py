"""Walks sequences one token at a time, as generation does, on tokens of its own choice or on those of another walk.

On the tokens of another walk, two runs differ by nothing but what happened to the machine: what one step leaves behind
is in the keys and values alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from noisescope.core.errors import BadInputError
from noisescope.measure.batches import Samples
from noisescope.measure.calling import Model, device_of
from noisescope.measure.generation import State

# Tokens of a sample that are read before the first step; fewer where a sample is shorter.
PROMPT = 32
# Rows that are walked at a time.
ROWS = 16
During = Callable[[int], AbstractContextManager[object]]


@dataclass(frozen=True, eq=False)
class Walk:
    """The likeliest token of each row [rows, steps], and where there was none, because a logit was not finite."""

    tokens: Tensor
    broken: Tensor


def prompts_of(samples: Samples) -> Tensor:
    """The first tokens of every sample [samples, tokens], as many of each as all of them have."""
    found: dict[int, Tensor] = {}
    for batch in samples.batches():
        ids = batch.inputs.get("input_ids")
        if ids is None or samples.view not in ("answer", "choices"):
            raise BadInputError(f"{samples.name}: no texts that a model could go on with, so there is no generation.")
        for row, (sample, length) in enumerate(zip(batch.samples, batch.lengths, strict=True)):
            found.setdefault(sample, ids[row, :length])
    length = min(PROMPT, *(len(one) for one in found.values()))
    return torch.stack([found[sample][:length] for sample in sorted(found)])


def _nothing(_: int) -> AbstractContextManager[object]:
    return nullcontext()


def walk(model: Model, prompts: Tensor, steps: int, *, along: Walk | None = None, during: During = _nothing) -> Walk:
    """So many steps behind every prompt, each within what `during` gives for it.

    The model goes on with the tokens of the walk `along`, or with its own. No token ends a sequence.
    """
    parts = [
        _walk(model, some, steps, None if along is None else along.tokens[start : start + ROWS], during)
        for start, some in zip(range(0, len(prompts), ROWS), prompts.split(ROWS), strict=True)
    ]
    return Walk(torch.cat([part.tokens for part in parts]), torch.cat([part.broken for part in parts]))


@torch.no_grad()
def _walk(model: Model, prompts: Tensor, steps: int, along: Tensor | None, during: During) -> Walk:
    ids = prompts.to(device_of(model))
    state = State(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    tokens, broken = [], []
    for step in range(steps):
        with during(step):
            logits = state.next_logits()
        tokens.append(logits.nan_to_num(nan=torch.finfo(logits.dtype).min).argmax(-1))
        broken.append(~logits.logsumexp(-1).isfinite())
        state.append(tokens[-1] if along is None else along[:, step].to(ids.device))
    return Walk(torch.stack(tokens, 1).cpu(), torch.stack(broken, 1).cpu())
