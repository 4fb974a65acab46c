"""Predicts the harm of noise at every site, operator and channel from one forward and one backward pass.

To second order the harm of small noise at a tensor y is KL = 1/2 sum_i var_i F_ii, with F the Fisher information of
the model's output distribution with respect to y. F is J^T (diag(p) - p p^T) J for logits with Jacobian J; instead of
sampling a label, whose gradient is mostly small and rarely huge, a whole direction u = sqrt(p) e - p (sqrt(p) . e) with
random signs e is sent back: E[u u^T] = diag(p) - p p^T exactly, with far less variance. Each site reduces its gradient
as it arrives. A model without logits is taken to answer with its last hidden state plus unit Gaussian noise.

It does not inject: `noisescope.inject` measures what this predicts, and only for small noise do the two agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError
from noisescope.core.records import Injection, Site, is_number, noise
from noisescope.core.vocabulary import OPERATORS
from noisescope.inject.keyed import Draw
from noisescope.inject.keys import mix, site_key
from noisescope.measure.profile import Profile
from noisescope.sweep.injecting import Injecting

Batch = Mapping[str, Tensor]


def screen(
    model: nn.Module, batches: Sequence[Batch], *, scale: float = 0.05, draws: int = 1, seed: int = 0
) -> Profile:
    """Predict the harm of relative noise at every site from `draws` backward passes per batch."""
    _check(batches, scale, draws)
    sums: dict[Site, Tensor] = {}
    tokens = 0
    with _only_activations(model), _evaluating(model):
        for number, batch in enumerate(batches):
            keys = [mix(site_key("screen"), seed, number, draw) for draw in range(draws)]
            tokens += _send_back(model, batch, sums, keys)
    factor = 0.5 * scale**2 / (max(tokens, 1) * draws)
    channels = {site: total.double().cpu().numpy() * factor for site, total in sums.items()}
    return Profile(scale, tokens, draws, {site: float(c.sum()) for site, c in channels.items()}, channels)


def _check(batches: Sequence[Batch], scale: float, draws: int) -> None:
    if not is_number(scale) or not 0 < scale < float("inf"):
        raise BadInputError(f"scale {scale!r}: expected a finite number > 0.")
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise BadInputError(f"draws {draws!r}: expected a whole number >= 1.")
    if isinstance(batches, Mapping) or not batches:
        raise BadInputError("batches: expected a list of at least one dict of tensors, such as [{'input_ids': ids}].")


def _send_back(model: nn.Module, batch: Batch, sums: dict[Site, Tensor], keys: list[int]) -> int:
    """One forward and a backward per key; adds sum (y g)^2 per channel to the sums. Returns the tokens judged."""

    def listen(site: Site, out: Tensor) -> None:
        if out.requires_grad:
            # Not the tensor itself: it would hold its own hook, and both would live until the next garbage collection.
            values = out.detach()
            out.register_hook(lambda grad: _add(sums, site, values, grad))

    look = Injection(noise(scale=0.0), operators=OPERATORS)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with torch.enable_grad(), Injecting(model, look, strict=False, sensor=listen):
        out, is_logits = _answer(model(**inputs))
        mask = _judged(batch, out)
        for number, key in enumerate(keys):
            direction = _direction(out.detach(), key, is_logits) * mask.unsqueeze(-1)
            torch.autograd.backward(out, direction.to(out.dtype), retain_graph=number + 1 < len(keys))
    return int(mask.sum())


def _add(sums: dict[Site, Tensor], site: Site, out: Tensor, grad: Tensor) -> None:
    squares = (out.float() * grad.detach().float()).square_()
    # Summed in float32, which is three times as fast, and only the sums kept in float64.
    total = squares.reshape(-1, squares.shape[-1]).sum(0).double()
    held = sums.get(site)
    if held is not None and held.shape != total.shape:
        # Attention scores are as wide as the sequence: their last dimension is a position, not a channel.
        total, held = total.sum(0, keepdim=True), held.sum(0, keepdim=True)
    sums[site] = total if held is None else held + total


def _answer(out: Any) -> tuple[Tensor, bool]:
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


def _judged(batch: Batch, out: Tensor) -> Tensor:
    """1 for every position that counts: what the attention mask leaves out is padding."""
    mask = batch.get("attention_mask")
    shape = out.shape[:-1]
    fits = mask is not None and mask.shape == shape
    return mask.to(out.device, torch.float32) if mask is not None and fits else torch.ones(shape, device=out.device)


def _direction(out: Tensor, key: int, is_logits: bool) -> Tensor:
    draw = Draw(key)
    if not is_logits:
        return draw.normal(out)
    signs = torch.where(draw.uniform(out) < 0.5, -1.0, 1.0)
    chances = out.float().softmax(-1)
    spread = chances.sqrt() * signs
    return spread - chances * spread.sum(-1, keepdim=True)


@contextmanager
def _only_activations(model: nn.Module) -> Iterator[None]:
    """No gradients of weights, which would cost a third of the backward; the graph starts at the embeddings."""
    wanted = {weight: weight.requires_grad for weight in model.parameters()}
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    handles = [m.register_forward_hook(lambda _m, _a, out: out.requires_grad_()) for m in embeddings]
    try:
        if embeddings:
            for weight in wanted:
                weight.requires_grad_(False)
        yield
    finally:
        for handle in handles:
            handle.remove()
        for weight, needs in wanted.items():
            weight.requires_grad_(needs)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was_training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, training in was_training.items():
            module.training = training
