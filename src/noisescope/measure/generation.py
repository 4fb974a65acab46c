"""Generates the likeliest continuation of every prompt of a batch, and says whether its last number is the right one.

It samples nothing, and it needs no `generate` of the model: whatever can be called with tokens will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from noisescope.measure.batches import Batch, Settings
from noisescope.measure.calling import KEEP, Model, accepts, declares, field, logits_of
from noisescope.measure.workload import final_number

# No end of an answer is longer.
END_TOKENS = 32


@dataclass(frozen=True)
class Generated:
    """Per row: the new tokens without the one that ended them, and at how many of them the logits were not finite."""

    tokens: tuple[tuple[int, ...], ...]
    broken: tuple[int, ...]


def stop_tokens(model: Model, tokenizer: Any) -> frozenset[int]:
    """The tokens that end an answer, as the model and its tokenizer name them."""
    named = [getattr(getattr(model, part, None), "eos_token_id", None) for part in ("generation_config", "config")]
    named.append(getattr(tokenizer, "eos_token_id", None))
    return frozenset(
        token for one in named for token in (one if isinstance(one, list) else [one]) if isinstance(token, int)
    )


def generate(model: Model, batch: Batch, settings: Settings, tokenizer: Any) -> Generated:
    """The likeliest token after each prompt, again and again.

    That goes on until it is a stop token, or one of the row's ends has been said, or there is no room.
    """
    if len(set(batch.lengths)) > 1 and not accepts(model, "position_ids"):
        return _one_by_one(model, batch, settings, tokenizer)
    stops = stop_tokens(model, tokenizer)
    state = State(model, batch.inputs)
    limits = [min(settings.max_new_tokens, settings.max_length - length + 1) for length in batch.lengths]
    tokens: list[list[int]] = [[] for _ in batch.lengths]
    broken, open_rows = [0] * len(tokens), set(range(len(tokens)))
    while True:
        logits = state.next_logits()
        # Under NaN there is no likeliest token; the first of the largest finite values is as repeatable as one.
        chosen = logits.nan_to_num(nan=torch.finfo(logits.dtype).min).argmax(-1)
        failed = (~logits.logsumexp(-1).isfinite()).tolist()
        for row, token in enumerate(chosen.tolist()):
            if row not in open_rows:
                continue
            broken[row] += failed[row]
            if token in stops:
                open_rows.discard(row)
                continue
            tokens[row].append(token)
            if len(tokens[row]) >= limits[row] or _has_ended(tokenizer, tokens[row], batch.ends[row]):
                open_rows.discard(row)
        if not open_rows:
            return Generated(tuple(map(tuple, tokens)), tuple(broken))
        state.append(chosen)


def _has_ended(tokenizer: Any, tokens: Sequence[int], ends: Iterable[str]) -> bool:
    said = tokenizer.decode(tokens[-END_TOKENS:], skip_special_tokens=True)
    return any(end in said for end in ends)


def _one_by_one(model: Model, batch: Batch, settings: Settings, tokenizer: Any) -> Generated:
    """Without positions of its own choosing, a model would count padding in front of a prompt: each row runs alone."""
    tokens: list[tuple[int, ...]] = []
    broken: list[int] = []
    for row, length in enumerate(batch.lengths):
        inputs = {name: tensor[row : row + 1, -length:] for name, tensor in batch.inputs.items()}
        one = replace(batch, inputs=inputs, lengths=(length,), ends=(batch.ends[row],))
        alone = generate(model, one, settings, tokenizer)
        tokens += alone.tokens
        broken += alone.broken
    return Generated(tuple(tokens), tuple(broken))


class State:
    """A batch of growing rows. Where the model gives its keys and values, only the newest token is run."""

    def __init__(self, model: Model, inputs: Mapping[str, Tensor]) -> None:
        self.model, self.mask = model, inputs["attention_mask"]
        self.fresh = inputs["input_ids"]
        self.past: Any = None
        self.takes_positions = accepts(model, "position_ids")
        self.keeps = {"use_cache": True} if accepts(model, "past_key_values") and accepts(model, "use_cache") else {}
        self.last_only = {KEEP: 1} if declares(model, KEEP) else {}

    def next_logits(self) -> Tensor:
        """What the model says of the next token of each row."""
        more: dict[str, Any] = {**self.keeps, **self.last_only}
        if self.takes_positions:
            positions = (self.mask.cumsum(-1) - 1).clamp(min=0)
            more["position_ids"] = positions[:, -self.fresh.shape[1] :]
        if self.past is not None:
            more["past_key_values"] = self.past
        output = self.model(input_ids=self.fresh, attention_mask=self.mask, **more)
        self.past = field(output, "past_key_values") if self.keeps else None
        last = logits_of(output)[:, -1]
        return last.to(torch.promote_types(last.dtype, torch.float32))

    def append(self, tokens: Tensor) -> None:
        """Go on with one token in each row."""
        newest = tokens[:, None]
        self.fresh = newest if self.past is not None else torch.cat([self.fresh, newest], 1)
        self.mask = torch.cat([self.mask, torch.ones_like(newest)], 1)


def answered(tokenizer: Any, batch: Batch, seen: Generated) -> list[tuple[float, int]]:
    """Per row: 1 if the last number of what was generated is the right one, and the count of broken positions.

    A row with a broken position is wrong whatever came of it.
    """
    marks = []
    for answer, ends, tokens, broken in zip(batch.answers, batch.ends, seen.tokens, seen.broken, strict=True):
        said = final_number(spoken(tokenizer, tokens, ends))
        right = said is not None and said == final_number(answer)
        marks.append((float(right and not broken), broken))
    return marks


def spoken(tokenizer: Any, tokens: Sequence[int], ends: Iterable[str]) -> str:
    """The text of generated tokens, up to the first of the ends."""
    text: str = tokenizer.decode(list(tokens), skip_special_tokens=True)
    return text[: min((text.index(end) for end in ends if end in text), default=None)]
