"""How strong noise in training should be in each layer, from what noise there costs: the fragile get less.

It trains nothing; whether such scales help is a question for an experiment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from noisescope.core.errors import BadInputError
from noisescope.diagnose.window import WindowResult

FRAGILE, TOLERANT = 0.15, 0.05
_LESS, _SAME, _MORE = 0.5, 1.0, 2.0


def factor_of(degradation: float | None) -> float:
    """The factor on the base scale: 0.5 above 15 % degradation, 2 below 5 %, else 1, as where nothing is known."""
    if degradation is None:
        return _SAME
    if math.isnan(degradation):
        raise BadInputError("degradation NaN: expected a share of the clean score, or None where none was measured.")
    if degradation > FRAGILE:
        return _LESS
    return _MORE if degradation < TOLERANT else _SAME


def adaptive_factors(
    degradation: Mapping[int, float | None], layers: int, *, equal_mean: bool = False
) -> dict[int, float]:
    """A factor for each of `layers` layers; those that are not named are not known.

    With `equal_mean` the factors are divided by their mean, so that all layers together get as much noise as with
    one scale for all.
    """
    strange = [layer for layer in degradation if layer not in range(layers)]
    if strange:
        raise BadInputError(f"layer {strange[0]!r}: expected layers 0 to {layers - 1}.")
    factors = {layer: factor_of(degradation.get(layer)) for layer in range(layers)}
    mean = sum(factors.values()) / layers if equal_mean else 1.0
    return {layer: factor / mean for layer, factor in factors.items()}


def layer_degradation(windows: Iterable[WindowResult]) -> dict[int, float | None]:
    """What noise costs around each layer: the mean over the windows with it that were measured, None without any."""
    costs: dict[int, list[float]] = {}
    for window in windows:
        for layer in window.layers:
            found = costs.setdefault(layer, [])
            if window.answer.harm is not None:
                found.append(window.answer.harm.estimate)
    return {layer: sum(found) / len(found) if found else None for layer, found in sorted(costs.items())}
