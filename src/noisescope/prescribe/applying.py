"""Fake quantization: a model whose weights are rounded to the formats of a map for as long as a block runs.

It computes in the model's own dtype, on values that the formats can hold; it stores nothing packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from noisescope.core.precision import WeightFormat
from noisescope.inject.weights import rounded
from noisescope.model.linears import matrix_of, set_matrix


@contextmanager
def rounded_weights(model: nn.Module, formats: Mapping[str, str]) -> Iterator[None]:
    """Inside, the linear layers at these paths have weights of these formats; afterwards their own, to the bit."""
    kept: dict[nn.Module, torch.Tensor] = {}
    try:
        for path, name in formats.items():
            module = model.get_submodule(path)
            weight = matrix_of(module)
            kept[module] = weight.clone()
            set_matrix(module, rounded(weight, WeightFormat.of(name)))
        yield
    finally:
        for module, weight in kept.items():
            set_matrix(module, weight)
