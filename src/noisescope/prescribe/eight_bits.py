"""Linear layers in int8 by value: weights with a scale per row, inputs with a scale per tensor or per token.

Nothing is packed. The scale of a tensor comes from peaks that were seen beforehand, as in a deployment: what is larger
is clamped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.precision import WeightFormat
from noisescope.core.smoothing import TOKEN
from noisescope.inject.weights import rounded
from noisescope.model.linears import matrix_of, set_matrix

INT8 = WeightFormat.of("int8")
_LEVELS = 127


def input_peaks(model: nn.Module, paths: Iterable[str], batches: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The largest size of each input channel of linear layers over all tokens that are not padding, in float32."""
    peaks: dict[str, Tensor] = {}
    kept: Tensor | None = None

    def see(path: str, given: Tensor) -> None:
        largest = real_rows(given, kept).abs().amax(0).float()
        peaks[path] = torch.maximum(peaks[path], largest) if path in peaks else largest

    with ExitStack() as stack, torch.no_grad():
        for path in paths:
            module = model.get_submodule(path)
            stack.callback(module.register_forward_pre_hook(lambda _, x, path=path: see(path, x[0])).remove)
        for batch in batches:
            kept = batch.get("attention_mask")
            model(**batch)
    return peaks


def real_rows(given: Tensor, mask: Tensor | None) -> Tensor:
    """One row per token, without padding if the mask is laid out as the tokens are."""
    rows = given.detach().reshape(-1, given.shape[-1])
    return rows[mask.reshape(-1).bool()] if mask is not None and mask.numel() == len(rows) else rows


def rounded_input(given: Tensor, peaks: Tensor, activations: str) -> Tensor:
    """Values that int8 can hold, in float32."""
    wide = given.float()
    largest = wide.abs().amax(-1, keepdim=True) if activations == TOKEN else peaks.amax()
    step = (largest / _LEVELS).clamp(min=torch.finfo(torch.float32).tiny)
    return (wide / step).round_().clamp_(-_LEVELS, _LEVELS).mul_(step)


@contextmanager
def eight_bits(
    model: nn.Module, peaks: Mapping[str, Tensor], activations: str, factors: Mapping[str, Tensor] | None = None
) -> Iterator[None]:
    """Inside, these linear layers compute in int8; afterwards as before, with their own weights, to the bit.

    Factors by path divide input channels and multiply columns before they are rounded, as if they were folded in.
    """
    own: dict[nn.Module, Tensor] = {}
    with ExitStack() as stack:
        try:
            for path, largest in peaks.items():
                module = model.get_submodule(path)
                by = (factors or {}).get(path, torch.ones_like(largest)).to(largest)
                weight = matrix_of(module)
                own[module] = weight.clone()
                set_matrix(module, rounded(weight * by.to(weight.dtype), INT8) / by.to(weight.dtype))
                hook = _rounding(largest / by, by, activations)
                stack.callback(module.register_forward_pre_hook(hook).remove)
            yield
        finally:
            for module, weight in own.items():
                set_matrix(module, weight)


def _rounding(peaks: Tensor, by: Tensor, activations: str) -> Any:
    def hook(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x = given[0]
        return (rounded_input(x.float() / by, peaks, activations) * by).to(x.dtype), *given[1:]

    return hook
