"""Trains a causal model on prepared items under noise, and refuses a noisy training in which no noise landed.

It evaluates nothing and writes nothing. Noise is on from the forward to the end of the backward of each step, and off
for the optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisescope.core.errors import NoEffectError
from noisescope.core.experiment import Trained
from noisescope.measure.batches import Prepared
from noisescope.measure.calling import device_of, logits_of
from noisescope.measure.given import IGNORED
from noisescope.sweep.noisy_training import NoisePlan, TrainingNoise

Example = tuple[tuple[int, ...], tuple[int, ...]]
_WARMUP, _LAST, _DECAY, _CLIP = 0.1, 0.02, 0.01, 1.0
_POINTS = 40


@dataclass(frozen=True)
class Lessons:
    """How long training is, how many rows a step has, how fast it learns at most, and in which order rows come."""

    steps: int
    rows: int
    rate: float
    seed: int


def examples_of(prepared: Prepared) -> list[Example]:
    """Tokens and labels of every item; an answer is followed by the token that ends it, if the tokenizer has one."""
    end = getattr(prepared.tokenizer, "eos_token_id", None)
    ending = (end,) if isinstance(end, int) and prepared.shape != "text" else ()
    found = []
    for (row,) in prepared.rows:
        piece = row.pieces[0]
        scored = (*piece.targets, *ending)
        tokens = (*row.tokens[: piece.start + 1], *scored)
        found.append((tokens, (*[IGNORED] * (piece.start + 1), *scored)))
    return found


def batch_of(examples: Sequence[Example], device: torch.device) -> dict[str, Tensor]:
    """Rows padded behind their end, where no position of a causal model sees it."""
    width = max(len(tokens) for tokens, _ in examples)
    tokens = [(*row, *[0] * (width - len(row))) for row, _ in examples]
    labels = [(*row, *[IGNORED] * (width - len(row))) for _, row in examples]
    return {"input_ids": torch.tensor(tokens, device=device), "labels": torch.tensor(labels, device=device)}


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The mean over all labels of the negative log-likelihood."""
    logits = logits_of(model(input_ids=batch["input_ids"], use_cache=False))[:, :-1]
    return F.cross_entropy(logits.float().flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=IGNORED)


def orders(examples: int, lessons: Lessons) -> Iterator[list[int]]:
    """Which rows each step learns from; they are drawn with replacement."""
    draw = torch.Generator().manual_seed(lessons.seed)
    for _ in range(lessons.steps):
        yield torch.randint(0, examples, (lessons.rows,), generator=draw).tolist()


def train(
    model: nn.Module,
    examples: Sequence[Example],
    lessons: Lessons,
    plan: NoisePlan | None = None,
    tell: Callable[[], None] = lambda: None,
) -> Trained:
    """Train a model in place. With a plan, a phase of it that never fired or changed nothing is an error."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lessons.rate, weight_decay=_DECAY)
    noise = None if plan is None else TrainingNoise(model, plan)
    losses, scales = list[float](), list[float]()
    model.train()
    try:
        for step, chosen in enumerate(orders(len(examples), lessons)):
            for group in optimizer.param_groups:
                group["lr"] = lessons.rate * pace(step, lessons.steps)
            batch = batch_of([examples[i] for i in chosen], device_of(model))
            losses.append(_step(model, optimizer, batch, noise, (step, lessons.steps)))
            scales.append(0.0 if noise is None else noise.scale)
            tell()
    finally:
        if noise is not None:
            noise.stop()
        model.eval()
    return _trained(losses, scales, noise)


def _step(
    model: nn.Module, optimizer: Any, batch: dict[str, Tensor], noise: TrainingNoise | None, at: tuple[int, int]
) -> float:
    if noise is not None:
        noise.start(*at)
    loss = loss_of(model, batch)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if noise is not None:
        if at[0] == 0:
            noise.verify()
        noise.stop()
    torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
    optimizer.step()
    return float(loss.detach())


def pace(step: int, steps: int) -> float:
    """The share of the learning rate at a step: up over the first tenth, then down to a fiftieth on a straight line."""
    rising = (step + 1) / max(1.0, _WARMUP * steps)
    return min(1.0, rising, max(_LAST, 1.0 - step / steps))


def _trained(losses: Sequence[float], scales: Sequence[float], noise: TrainingNoise | None) -> Trained:
    curve = _thinned(losses)
    if noise is None:
        return Trained(curve)
    stats, phases = noise.stats, noise.plan.phases
    realised = tuple((phase, stats.realised_in((phase,))) for phase in phases)
    counts = {"forward": stats.total_forward, "backward": stats.total_backward}
    silent = [phase for phase, found in realised if not (found > 0 and math.isfinite(found) and counts[phase])]
    if silent:
        raise NoEffectError(
            f"training with {noise.plan.kind} noise: {counts[silent[0]]} injections in {silent[0]} over {len(losses)} "
            "steps, and none that changed a value; expected noise in every phase of the plan. Nothing was learned of "
            "noise, so there is nothing to evaluate."
        )
    mean = math.fsum(scales) / len(scales)
    return Trained(curve, counts["forward"], counts["backward"], mean, realised, _by_layer(noise))


def _by_layer(noise: TrainingNoise) -> tuple[tuple[int, float], ...]:
    """The mean over sites and phases of the noise realised in each layer."""
    found: dict[int, list[float]] = {}
    for phase in noise.plan.phases:
        for site, realised in noise.stats.by_site(phase).items():
            if site.layer is not None and realised.measured:
                found.setdefault(site.layer, []).append(realised.relative)
    return tuple((layer, sum(all_) / len(all_)) for layer, all_ in sorted(found.items()))


def _thinned(losses: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """The mean loss of equal stretches of the run, under the last step of each."""
    size = max(1, math.ceil(len(losses) / _POINTS))
    parts = [(start, losses[start : start + size]) for start in range(0, len(losses), size)]
    return tuple((start + len(part), sum(part) / len(part)) for start, part in parts)
