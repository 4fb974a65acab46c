"""Predicts the harm of noise at every site, operator and channel from one forward and one backward pass.

To second order the harm of small noise at a tensor y is KL = 1/2 sum_i var_i F_ii, with F the Fisher information of
the model's output distribution with respect to y: F = J^T (diag(p) - p p^T) J for logits with Jacobian J. A random
direction u with E[u u^T] = diag(p) - p p^T is sent back from the logits; the gradient g = J^T u that arrives at y has
E[g_i^2] = F_ii, and for noise relative to the value var_i = scale^2 y_i^2. A model without logits is taken to answer
with its last hidden state plus unit Gaussian noise.

It does not inject: `noisescope.inject` measures what this predicts, and only for small noise do the two agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError
from noisescope.core.records import Injection, Site, is_number, noise, whole_number
from noisescope.core.vocabulary import OPERATORS
from noisescope.inject.keyed import Draw
from noisescope.inject.keys import mix, site_key
from noisescope.measure.inputs import called_with, checked_batches, module_of
from noisescope.measure.profile import Profile
from noisescope.sweep.answers import answer_of, judged_of
from noisescope.sweep.directions import fisher_direction
from noisescope.sweep.evaluating import evaluating, without_cache
from noisescope.sweep.injecting import Injecting
from noisescope.sweep.squares import Squares

Batch = Mapping[str, Tensor]
# What fused attention hides is not taken out of it, but computed from its operands.
_WITNESSED = ("matmul", "bmm", "attention", "softmax")
_HEARD = tuple(name for name in OPERATORS if name not in _WITNESSED)


def screen(
    model: nn.Module, batches: Sequence[Batch], *, scale: float = 0.05, draws: int = 1, seed: int = 0
) -> Profile:
    """Predict the harm of relative noise at every site from `draws` backward passes per batch."""
    if not is_number(scale) or not 0 < scale < float("inf"):
        raise BadInputError(f"scale {scale!r}: expected a finite number > 0.")
    batches = batches_to_screen(model, batches, draws, seed)
    # A compiled graph cannot be listened to; the module it was made from gives the same.
    model = getattr(model, "_orig_mod", model)
    squares, tokens = Squares(), 0
    with evaluating(model), without_cache(model), only_activations(model):
        for number, batch in enumerate(batches):
            keys = [mix(site_key("screen"), seed, number, draw) for draw in range(draws)]
            out, is_logits = _listened(model, number + 1, batch, squares)
            tokens += send_directions(out, judged_of(batch, out), keys, is_logits=is_logits)
    _check_finite(squares.totals)
    factor = 0.5 * scale**2 / (require_tokens(tokens) * draws)
    channels = {site: total.cpu().numpy() * factor for site, total in squares.totals.items()}
    return Profile(scale, tokens, draws, {site: float(c.sum()) for site, c in channels.items()}, channels)


def batches_to_screen(model: nn.Module, batches: Sequence[Batch], draws: int, seed: int) -> list[Batch]:
    """The batches; refused is what nothing can be predicted from."""
    whole_number("draws", draws, 1)
    whole_number("seed", seed)
    return checked_batches(batches, module_of(model))


def require_tokens(tokens: int) -> int:
    """How many tokens were judged, if there were any."""
    if not tokens:
        raise BadInputError("no token counts: attention_mask leaves all of them out; expected 1 where a token is.")
    return tokens


def _check_finite(totals: Mapping[Site, Tensor]) -> None:
    broken = [site for site, total in totals.items() if not bool(total.isfinite().all())]
    if broken:
        raise BadInputError(
            f"{len(broken)} of {len(totals)} sites, {broken[0].operator} at {broken[0].path or 'the model'} first, got "
            "values or gradients that are not finite: a prediction needs a model that answers finitely. Load it in "
            "float32 or bfloat16."
        )


def _listened(model: nn.Module, number: int, batch: Batch, squares: Squares) -> tuple[Tensor, bool]:
    """What the model answers, and whether that is logits; a backward from there adds each site to the sums."""
    heard, seen = (Injection(noise(scale=0.0), operators=names) for names in (_HEARD, _WITNESSED))
    with (
        torch.enable_grad(),
        Injecting(model, heard, strict=False, sensor=squares.listen),
        Injecting(model, seen, strict=False, witness=squares.witness),
        called_with(number, batch),
    ):
        return answer_of(model(**differentiable_inputs(batch)))


def send_directions(out: Tensor, mask: Tensor, keys: Sequence[int], *, is_logits: bool) -> int:
    """A backward per key of a random direction whose second moment is the Fisher information of the answer.

    Returns how many tokens are judged.
    """
    if not out.requires_grad:
        raise BadInputError(
            "no gradient leads from the inputs to the output: expected a model with torch.nn.Embedding or with "
            "floating-point inputs, whose forward does not run under no_grad or inference_mode."
        )
    for number, key in enumerate(keys):
        direction = fisher_direction(out.detach(), mask, Draw(key), is_logits=is_logits)
        torch.autograd.backward(out, direction, retain_graph=number + 1 < len(keys))
    return int(mask.sum())


def differentiable_inputs(batch: Batch) -> dict[str, Tensor]:
    """Without labels, for a loss is of no use; the graph starts at inputs that are numbers."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    floating = [name for name, value in inputs.items() if isinstance(value, Tensor) and value.is_floating_point()]
    return inputs | {name: inputs[name].detach().clone().requires_grad_() for name in floating}


@contextmanager
def only_activations(model: nn.Module) -> Iterator[None]:
    """No gradients of weights, which would cost a third of the backward; the graph starts at the embeddings."""
    wanted = {weight: weight.requires_grad for weight in model.parameters()}
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    handles = [module.register_forward_hook(_begin) for module in embeddings]
    try:
        for weight in wanted:
            weight.requires_grad_(False)
        yield
    finally:
        for handle in handles:
            handle.remove()
        for weight, needs in wanted.items():
            weight.requires_grad_(needs)


def _begin(_module: nn.Module, _args: Any, out: Tensor) -> Tensor:
    # A copy, because models scale their embeddings in place, which a leaf does not allow.
    return out.requires_grad_().clone()
