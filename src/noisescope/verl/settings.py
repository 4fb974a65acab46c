"""Everything that the process-wide switchboard can be set to, and the checks of what a person may write.

It switches nothing on; calls (`noisy_ops`) and environment variables (`environment`) both end here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from noisescope.core.errors import BadInputError
from noisescope.core.records import Corruption, Injection, Scaling, is_number, operator_names
from noisescope.core.vocabulary import PRODUCTS

UNSCALED = Scaling()


@dataclass(frozen=True)
class Settings:
    """Everything that can be switched."""

    scale: float = 0.05
    kind: str = "relative_gaussian"
    all_operators: bool = False
    forward: bool = True
    backward: bool = True
    layers: tuple[int, ...] | None = None
    operators: tuple[str, ...] | None = None
    scaling: Scaling = UNSCALED
    seed: int = 0
    training_only: bool = False

    def injection(self) -> Injection:
        """The injection that these settings ask for. A list of operators wins over the two modes."""
        operators = self.operators
        if operators is None and not self.all_operators:
            operators = PRODUCTS
        phases = tuple(p for p, on in (("forward", self.forward), ("backward", self.backward)) if on)
        return Injection(Corruption(self.kind, self.scale), self.layers, operators, phases, self.seed, self.scaling)


def checked_layers(layers: Iterable[int | str] | None) -> tuple[int, ...] | None:
    """Layer numbers as they were written; None stays None."""
    if layers is None:
        return None
    if not isinstance(layers, Iterable) or isinstance(layers, str):
        raise BadInputError(f"layers {layers!r}: expected a list of layer indices, or None for all layers.")
    return tuple(_layer(index) for index in layers)


def checked_operators(operators: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Operator names with aliases resolved; None stays None."""
    if operators is not None and not isinstance(operators, Iterable):
        raise BadInputError(f"operators {operators!r}: expected a list of names, or None to leave it to the mode.")
    return operator_names(operators)


def checked_seed(seed: int) -> int:
    """A seed as it was written."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise BadInputError(f"seed {seed!r}: expected an integer.")
    return seed


def operator_factors(scales: Mapping[str, float] | None) -> tuple[tuple[str, float], ...]:
    """Factors by operator, aliases resolved."""
    factors: dict[str, float] = {}
    for name, factor in _entries("operator scales", scales):
        factors.update(dict.fromkeys(operator_names([name]) or (), _factor(name, factor)))
    return tuple(factors.items())


def layer_factors(scales: Mapping[int, float] | None) -> tuple[tuple[int, float], ...]:
    """Factors, or scales, by layer. Keys may be digits, as they are in JSON."""
    return tuple((_layer(layer), _factor(layer, factor)) for layer, factor in _entries("layer scales", scales))


def _entries(what: str, scales: Any) -> Iterable[tuple[Any, Any]]:
    if scales is None:
        return ()
    if not isinstance(scales, Mapping):
        raise BadInputError(f"{what} {scales!r}: expected a dict, or None for no factors.")
    return scales.items()


def _layer(index: Any) -> int:
    number = int(index) if isinstance(index, str) and index.isdecimal() else index
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise BadInputError(f"layer {index!r}: expected a layer index >= 0.")
    return number


def _factor(name: object, factor: Any) -> float:
    if not is_number(factor) or not 0 <= factor < float("inf"):
        raise BadInputError(f"scale {factor!r} of {name!r}: expected a finite number >= 0.")
    return float(factor)
