"""Measures the harm of injected noise at rising scales with the same draws: how a group of sites responds.

What law the responses follow, and up to which scale, is for `noisescope.measure.validity` to judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from noisescope.core.records import Injection, noise
from noisescope.measure.inputs import called_with, checked_batches, module_of
from noisescope.measure.scoring import AT_POSITIONS
from noisescope.measure.statistics import FloatArray
from noisescope.measure.validity import Validity, judge_validity
from noisescope.sweep.answers import answer_of, judged_of
from noisescope.sweep.evaluating import evaluating, without_cache
from noisescope.sweep.injecting import Injecting
from noisescope.sweep.prefix import Prefix

Batch = Mapping[str, Tensor]
Group = tuple[int | None, str]
SCALES, SEEDS = (0.01, 0.05, 0.1), (0, 1, 2)
# Values of one block of rows of logits.
_BLOCK = 1 << 22


def validity(
    model: nn.Module,
    batches: Sequence[Batch],
    groups: Sequence[Group],
    *,
    scales: Sequence[float] = SCALES,
    seeds: Sequence[int] = SEEDS,
) -> tuple[Validity, ...]:
    """Up to which scale the harm of groups (layer, operator) follows the law that screening predicts with.

    Groups are named as in the harm of a profile. Each costs a run for every scale and seed, from its layer on.
    """
    responses = Responses(model, batches)
    return tuple(judge_validity(name_of(one), scales, responses.of_group(one, scales, seeds)) for one in groups)


def name_of(group: Group) -> str:
    """`softmax in layer 3`, `linear outside the layers`."""
    layer, operator = group
    return f"{operator} outside the layers" if layer is None else f"{operator} in layer {layer}"


class Responses:
    """The clean answers of a model to its batches, with which injected runs are compared."""

    def __init__(self, model: nn.Module, batches: Sequence[Batch]) -> None:
        self.model = module_of(model)
        checked = checked_batches(batches, model)
        self.batches = [{name: value for name, value in batch.items() if name != "labels"} for batch in checked]
        self._clean = []
        for number, batch in enumerate(self.batches, start=1):
            with called_with(number, batch):
                self._clean.append(self._run(batch))
        self._prefix = Prefix(model, self._see, self.batches[0])

    def of_group(self, group: Group, scales: Sequence[float], seeds: Sequence[int]) -> FloatArray:
        """As `measure`, for relative Gaussian noise in one operator of one layer."""
        layer, operator = group
        return self.measure(Injection.of(noise(), layers=[layer], operators=[operator]), scales, seeds)

    def measure(self, injection: Injection, scales: Sequence[float], seeds: Sequence[int] = (0,)) -> FloatArray:
        """KL(clean || noisy) in nats per judged token: [scales, seeds times rows], the noise of a seed only scaled.

        A row of few tokens weighs less than one of many: values are scaled so that their plain mean is that per token.
        """
        return np.array([np.concatenate([self._at(injection, scale, seed) for seed in seeds]) for scale in scales])

    def _at(self, injection: Injection, scale: float, seed: int) -> FloatArray:
        asked = Injection.of(
            noise(injection.corruption.kind, scale, **dict(injection.corruption.params)),
            layers=injection.layers,
            operators=injection.operators,
            seed=seed,
        )
        sums, tokens = list[FloatArray](), list[FloatArray]()
        # Nobody else may run the model while this is in it.
        with evaluating(self.model), self._prefix.skipping(self._prefix.first([asked])), Injecting(self.model, asked):
            for batch, (clean, is_logits) in zip(self.batches, self._clean, strict=True):
                noisy, _ = self._run(batch)
                judged = judged_of(batch, noisy)
                harm = _harm(clean, noisy, is_logits=is_logits) * judged
                rows = harm.shape[0]
                sums.append(harm.reshape(rows, -1).sum(-1).double().cpu().numpy())
                tokens.append(judged.reshape(rows, -1).sum(-1).double().cpu().numpy())
        found: FloatArray = np.concatenate(sums) / np.concatenate(tokens).mean()
        return found

    def _run(self, batch: Batch) -> tuple[Tensor, bool]:
        with torch.no_grad(), evaluating(self.model), without_cache(self.model):
            return answer_of(self.model(**batch))

    def _see(self, batch: Batch) -> Tensor:
        return self._run(batch)[0]


def _harm(clean: Tensor, noisy: Tensor, *, is_logits: bool) -> Tensor:
    """KL at every position; between unit Gaussians it is half the squared distance of their means."""
    if not is_logits:
        return (noisy.float() - clean.float()).square().sum(-1) / 2
    p, q = clean.reshape(-1, clean.shape[-1]), noisy.reshape(-1, noisy.shape[-1])
    parts = []
    for one, other in zip(p.split(_rows(p)), q.split(_rows(q)), strict=True):
        wide = other.float()
        parts.append(AT_POSITIONS["kl_to_clean"](wide, wide.logsumexp(-1), one))
    return torch.cat(parts).reshape(clean.shape[:-1])


def _rows(logits: Tensor) -> int:
    return max(1, _BLOCK // logits.shape[-1])
