"""Measures the Hessian trace of every layer from one product per probe, beside one product per probe and layer.

Usage: python bench/hessian_cost.py [--rounds N] [--out FILE]

Qwen2 with 12 layers of width 128, random weights, 2 rows of 32 tokens, 4 probes. Both have to agree within what their
probes leave open.
"""

from __future__ import annotations

import math
import statistics

import torch
from measuring import Variant, measure, present, qwen, ratios, table, tokens
from torch import Tensor, nn

from noisescope.measure.curvature import hessian_traces, model_loss

LAYERS, PROBES, AGREE = 12, 4, 256
Groups = dict[str, list[nn.Parameter]]


def layer_by_layer(model: nn.Module, batch: dict[str, Tensor], groups: Groups, probes: int) -> dict[str, list[float]]:
    """Hutchinson's estimate for each layer by itself, from one gradient of all."""
    signs = torch.Generator().manual_seed(1)
    parameters = [one for members in groups.values() for one in members]
    gradients = dict(
        zip(parameters, torch.autograd.grad(model_loss(model, batch), parameters, create_graph=True), strict=True)
    )
    found: dict[str, list[float]] = {name: [] for name in groups}
    for name, members in groups.items():
        for _ in range(probes):
            probe = [torch.randint(0, 2, one.shape, generator=signs) * 2.0 - 1.0 for one in members]
            own = [gradients[one] for one in members]
            products = torch.autograd.grad(own, members, grad_outputs=probe, retain_graph=True)
            found[name].append(sum(float((v * hv).sum()) for v, hv in zip(probe, products, strict=True)))
    return found


def apart(model: nn.Module, batch: dict[str, Tensor], groups: Groups) -> float:
    """How many standard errors the two estimates lie apart where they do so most."""
    ours = hessian_traces(model, [batch], groups, probes=AGREE)
    worst = 0.0
    for name, forms in layer_by_layer(model, batch, groups, AGREE).items():
        values = torch.tensor(forms, dtype=torch.float64)
        error = math.hypot(ours[name].standard_error, float(values.std()) / math.sqrt(AGREE))
        worst = max(worst, abs(ours[name].trace - float(values.mean())) / error)
    return worst


def labelled(rows: int, columns: int, vocabulary: int) -> dict[str, Tensor]:
    """Random tokens that are to be predicted."""
    ids = tokens(rows, columns, vocabulary)
    return {"input_ids": ids, "labels": ids}


def groups_of(model: nn.Module) -> Groups:
    """The weights of each layer."""
    return {str(number): list(layer.parameters()) for number, layer in enumerate(model.model.layers)}


def lines_of(rounds: int) -> list[str]:
    """The table, and how far the two ways agree."""
    model, batch = qwen(LAYERS, 128, 512), labelled(2, 32, 512)
    groups = groups_of(model)

    def gradient() -> None:
        model_loss(model, batch).backward()
        model.zero_grad()

    variants = [
        Variant("one gradient", gradient),
        Variant(
            "noisescope: one product for all layers", lambda: hessian_traces(model, [batch], groups, probes=PROBES)
        ),
        Variant("one product for each layer", lambda: layer_by_layer(model, batch, groups, PROBES)),
    ]
    seconds = measure(variants, rounds)
    _, ours, theirs = ratios(seconds).values()
    times = sorted(b / a for a, b in zip(ours, theirs, strict=True))
    small = qwen(2, 16, 32)
    off = apart(small, labelled(2, 8, 32), groups_of(small))
    return [
        *table(seconds, "one gradient"),
        "",
        f"One for each layer takes {statistics.median(times):.1f} times as long ({times[0]:.1f} to {times[-1]:.1f}). "
        f"On a small model with {AGREE} probes the two lie {off:.1f} standard errors apart where they do so most.",
    ]


if __name__ == "__main__":
    present(__doc__, 7, lines_of)
