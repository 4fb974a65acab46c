"""How far the answers of a model move when one layer gets noise: by layer, scale and input.

It draws no conclusion from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from noisescope.core.records import noise
from noisescope.sweep.injecting import inject

SCALES = (0.02, 0.05, 0.1, 0.2)
# Chances are taken to be at least this large.
_EPS = 1e-6


def responses(model: nn.Module, inputs: Sequence[Mapping[str, Any]], layers: int, seed: int) -> npt.NDArray[np.float64]:
    """KL [layer, scale, row] of the answers with noise in a layer's linear operators from the answers without."""
    parts = []
    for given in inputs:
        clean = answer(model(**given))
        found = np.zeros((layers, len(SCALES), len(clean)))
        for layer, place in ((layer, place) for layer in range(layers) for place in range(len(SCALES))):
            spoiling = inject(model, noise(scale=SCALES[place]), layers=layer, operators="linear", seed=seed)
            # Behind a fault there may be nothing finite left that noise could change.
            spoiling.strict = False
            with spoiling:
                moved = by_position(clean, answer(model(**given)))
            found[layer, place] = moved.reshape(len(clean), -1).mean(1).double().cpu().numpy()
        parts.append(found)
    return np.concatenate(parts, axis=2)


def answer(out: Any) -> Tensor:
    """The first floating tensor that a model gives: logits, or a hidden state."""
    if isinstance(out, Tensor):
        return out.detach()
    values = out.values() if isinstance(out, Mapping) else out
    return next(v for v in values if isinstance(v, Tensor) and v.is_floating_point()).detach()


def by_position(clean: Tensor, noisy: Tensor) -> Tensor:
    """KL at every position in float32."""
    p, q = (x.float().softmax(-1) + _EPS for x in (clean, noisy))
    return (p * (p / q).log()).sum(-1).nan_to_num(nan=0.0)
