"""What is seen of a model before it is asked anything: predicted harm by site, and channel statistics.

Both are kept in the run folder. It judges neither, and of the workload it sees as much as `TOKENS` says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.measure import summaries
from noisescope.measure.batches import Samples
from noisescope.measure.calling import device_of
from noisescope.measure.observer import DEFAULT_PATTERNS, SIDES, ChannelObserver, choose_modules
from noisescope.measure.outliers import ChannelSummary
from noisescope.measure.profile import Profile
from noisescope.runs.kept_keys import DRAWS, TOKENS, channels_key, profile_key
from noisescope.sweep.evaluating import evaluating
from noisescope.sweep.progress import Progress
from noisescope.sweep.screening import screen
from noisescope.sweep.store import Store

Inputs = Mapping[str, Tensor]
# What a screening takes, and what the watching of channels takes where it screens as well, in clean forwards.
SCREEN_COST, WATCH_COST = 5.5, 4.0
DELIMITERS = (".", ",", ";", ":", "!", "?", "\n")


def inputs_of(samples: Samples, device: torch.device, limit: int | None = None) -> list[Inputs]:
    """The inputs of a workload's batches, up to the one that reaches the limit of tokens."""
    batches: list[Inputs] = [batch.inputs for batch in samples.batches(device=device)]
    if limit is None:
        return batches
    before = [0, *accumulate(map(tokens_of, batches))]
    return [batch for batch, seen in zip(batches, before, strict=False) if seen < limit]


def tokens_of(inputs: Inputs) -> int:
    """The tokens of a batch, padding left out; for inputs of another kind their rows."""
    mask = inputs.get("attention_mask")
    first = next(iter(inputs.values()))
    return int(mask.sum()) if mask is not None else first.numel() if first.ndim == 2 else len(first)


def profile_of(model: nn.Module, samples: Samples, scale: float, store: Store, progress: Progress) -> Profile:
    """Predicted harm of noise at every site, on the first tokens of the samples."""
    key = profile_key(samples.key, scale)
    profile = store.kept("profile", key, Profile.from_arrays)
    if profile is None:
        with progress:
            batches = progress.over(inputs_of(samples, device_of(model), TOKENS))
            profile = screen(model, batches, scale=scale, draws=DRAWS)
        store.keep("profile", key, profile.to_arrays())
    return profile


@dataclass(frozen=True)
class Channels:
    """Statistics of the channels of watched modules, and of the layers' outputs."""

    modules: tuple[ChannelSummary, ...]
    stream: tuple[ChannelSummary, ...]


def channels_of(
    model: nn.Module, layers: Sequence[str], samples: Samples, store: Store, progress: Progress
) -> Channels:
    """Channel statistics over all samples, at linear modules and along the layers; memory does not grow with them."""
    key = channels_key(samples.key, layers)
    every = store.kept("channels", key, summaries.from_arrays)
    if every is None:
        with progress:
            every = _watch(model, layers, samples, progress)
        store.keep("channels", key, summaries.to_arrays(every))
    stream = tuple(one for one in every if one.path in layers)
    return Channels(tuple(one for one in every if one.path not in layers), stream)


def _watch(model: nn.Module, layers: Sequence[str], samples: Samples, progress: Progress) -> tuple[ChannelSummary, ...]:
    observer = ChannelObserver(
        model,
        _patterns(model),
        sides=SIDES,
        stream=layers,
        delimiters=delimiters_of(samples.tokenizer),
        gradients=True,
    )
    inputs = inputs_of(samples, device_of(model))
    first = len(inputs_of(samples, device_of(model), TOKENS))
    screened, others = progress.over(inputs[:first]), progress.over(inputs[first:])
    with evaluating(model), observer:
        # The one with gradients, for the channels' Fisher information.
        screen(model, screened)
        with torch.no_grad():
            for batch in others:
                model(**batch)
    return observer.summaries()


def _patterns(model: nn.Module) -> Sequence[str] | None:
    """None, which is the usual modules, where the model has any of them, else every linear one."""
    names = {path.rpartition(".")[2] for path in choose_modules(model, ("*",))}
    return None if names & set(DEFAULT_PATTERNS) else ("*",)


def delimiters_of(tokenizer: Any) -> Collection[int]:
    """The ids of tokens that only divide a text."""
    if tokenizer is None:
        return ()
    written: Iterable[list[int]] = (tokenizer.encode(mark, add_special_tokens=False) for mark in DELIMITERS)
    return {tokens[0] for tokens in written if len(tokens) == 1}
