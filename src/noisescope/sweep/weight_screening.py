"""Predicts the harm of rounding each weight matrix to each of several formats, from a few backward passes for all.

A rounding error dW of a weight moves the output of its layer by dW x_t at every token t of a sequence, and with it the
answers at all later ones. To second order the harm of that to a whole sequence is
KL = 1/2 E[(sum_t g_t^T dW x_t)^2], g_t the gradient that arrives when directions u with E[u u^T] = F, the Fisher
information of each answer, are sent back from all of them at once. The errors of two rows of a weight are those of
different roundings, and as good as independent: E[(sum_o e_o)^2] = sum_o E[e_o^2] then, and the right side, which is
what is summed up here, needs far fewer directions for the same spread.

It rounds nothing itself and changes no weight. At a time it holds one error matrix, not one per layer and format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError
from noisescope.inject.keys import mix, site_key
from noisescope.measure.inputs import called_with
from noisescope.model.linears import matrix_of
from noisescope.sweep.answers import answer_of, judged_of
from noisescope.sweep.evaluating import evaluating, without_cache
from noisescope.sweep.screening import (
    Batch,
    batches_to_screen,
    differentiable_inputs,
    only_activations,
    require_tokens,
    send_directions,
)

Rounding = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Prediction:
    """Predicted harm in nats of KL per token, and the standard error of that over sequences; NaN for a single one."""

    harm: float
    error: float


@dataclass
class WeightProfile:
    """Predictions by (path of a linear layer, name of a format), and what they were made from."""

    predictions: dict[tuple[str, str], Prediction] = field(default_factory=dict)
    tokens: int = 0
    draws: int = 0


def screen_weights(
    model: nn.Module,
    batches: Sequence[Batch],
    linears: Mapping[str, nn.Module],
    roundings: Mapping[str, Rounding],
    *,
    draws: int = 2,
    seed: int = 0,
) -> WeightProfile:
    """Predict what rounding the weight of each linear layer alone, in each way, costs the model."""
    batches = batches_to_screen(model, batches, draws, seed)
    sums = _Sums(linears, roundings)
    tokens = 0
    with evaluating(model), without_cache(model), only_activations(model), sums.listening():
        for number, batch in enumerate(batches):
            keys = [mix(site_key("weights"), seed, number, draw) for draw in range(draws)]
            with torch.enable_grad(), called_with(number + 1, batch):
                out, is_logits = answer_of(model(**differentiable_inputs(batch)))
            sums.begin(len(out))
            tokens += send_directions(out, judged_of(batch, out), keys, is_logits=is_logits)
    return WeightProfile(sums.predictions(require_tokens(tokens), draws), tokens, draws)


class _Sums:
    """What arrives of sum_o (sum_t g_to (dW x_t)_o)^2, by sequence."""

    def __init__(self, linears: Mapping[str, nn.Module], roundings: Mapping[str, Rounding]) -> None:
        self._linears, self._roundings = linears, roundings
        self._finished: dict[tuple[str, str], list[Tensor]] = {
            (path, name): [] for path in linears for name in roundings
        }
        self._rows = 0

    def begin(self, rows: int) -> None:
        """A batch of so many sequences comes back next."""
        self._rows = rows
        for parts in self._finished.values():
            parts.append(torch.zeros(rows, dtype=torch.float64))

    def listening(self) -> _Handles:
        """Follow every call of the layers as long as the handles are open."""
        return _Handles(
            [
                module.register_forward_hook(lambda _, given, out, path=path: self._follow(path, given[0], out))
                for path, module in self._linears.items()
            ]
        )

    def _follow(self, path: str, given: Tensor, out: Tensor) -> None:
        if out.requires_grad:
            values = given.detach()
            out.register_hook(lambda grad: self._add(path, values, grad))

    @torch.no_grad()
    def _add(self, path: str, values: Tensor, grad: Tensor) -> None:
        weight = matrix_of(self._linears[path]).float()
        # Some models flatten their sequences into one list of tokens before a layer.
        given, slopes = (part.float().reshape(self._rows, -1, part.shape[-1]) for part in (values, grad))
        for name, rounding in self._roundings.items():
            moved = given @ (rounding(weight) - weight).T
            found = moved.mul_(slopes).sum(1).square_().sum(-1, dtype=torch.float64)
            self._finished[path, name][-1] += found.cpu()

    def predictions(self, tokens: int, draws: int) -> dict[tuple[str, str], Prediction]:
        """1/2 of the mean over draws, per token."""
        found = {}
        for (path, name), parts in self._finished.items():
            by_sequence = torch.cat(parts) * (0.5 / (draws * tokens))
            if not bool(by_sequence.isfinite().all()):
                raise BadInputError(
                    f"{path} in {name}: values or gradients that are not finite; a prediction needs a model that "
                    "answers finitely. Load it in float32 or bfloat16."
                )
            count = len(by_sequence)
            error = float(by_sequence.std()) * math.sqrt(count) if count > 1 else math.nan
            found[path, name] = Prediction(float(by_sequence.sum()), error)
        return found


class _Handles:
    """Hooks that go when the block ends."""

    def __init__(self, handles: list[Any]) -> None:
        self._handles = handles

    def __enter__(self) -> None:
        """They are there already."""

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
