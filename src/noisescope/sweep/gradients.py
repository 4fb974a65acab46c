"""How large noise in the gradients is beside noise in the activations, and what each does to the gradient of the loss.

It trains nothing and leaves no gradient on the model.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from noisescope.core.experiment import SAMPLING, Disturbance
from noisescope.core.records import noise
from noisescope.core.vocabulary import PHASES
from noisescope.inject.tally import Tally
from noisescope.sweep.injecting import inject
from noisescope.sweep.training import loss_of


def disturbances(
    model: nn.Module, batches: Sequence[dict[str, Tensor]], scale: float, seed: int
) -> tuple[Disturbance, ...]:
    """Noise of one scale in each phase alone, and beside it what the choice of the rows does."""
    clean = [_gradient(model, batch) for batch in batches]
    found = [_noisy(model, batches, clean, (phase, scale, seed)) for phase in PHASES]
    others = [*clean[1:], clean[0]]
    pairs = [_compared(other, own) for own, other in zip(clean, others, strict=True)]
    return (*found, Disturbance(SAMPLING, 0.0, 0.0, *_columns(pairs)))


def _noisy(
    model: nn.Module, batches: Sequence[dict[str, Tensor]], clean: Sequence[Tensor], how: tuple[str, float, int]
) -> Disturbance:
    phase, scale, seed = how
    pairs, relative, error = [], list[float](), list[float]()
    for number, (batch, own) in enumerate(zip(batches, clean, strict=True)):
        with inject(model, noise(scale=scale), phases=phase, seed=seed + number) as handle:
            pairs.append(_compared(_gradient(model, batch), own))
        relative += _of_sites(handle.stats, phase, "relative")
        error += _of_sites(handle.stats, phase, "error")
    return Disturbance(phase, statistics.median(relative), statistics.median(error), *_columns(pairs))


def _of_sites(stats: Tally, phase: str, name: str) -> list[float]:
    return [getattr(realised, name) for realised in stats.by_site(phase).values() if realised.measured]


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def _gradient(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The gradient of the loss with respect to all weights that learn, as one vector."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    found = torch.autograd.grad(loss_of(model, batch), weights, allow_unused=True)
    return torch.cat([g.flatten().double() for g in found if g is not None])


def _compared(disturbed: Tensor, clean: Tensor) -> tuple[float, float]:
    cosine = torch.nn.functional.cosine_similarity(disturbed, clean, dim=0)
    return float((disturbed - clean).norm() / clean.norm()), float(cosine)
