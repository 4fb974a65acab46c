"""The records that flow through everything: Corruption, Injection, Trial, Reading, Finding.

All are frozen, made of plain values, and checked when they are made. Nothing here knows torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Self

from noisescope.core.codec import LATER
from noisescope.core.errors import BadInputError, unknown_name
from noisescope.core.vocabulary import (
    FAULT_KINDS,
    KINDS,
    NOISE_KINDS,
    OPERATOR_ALIASES,
    OPERATORS,
    PHASES,
    REACH_PARAMS,
)

Params = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Site:
    """One place in a model. `layer` is None outside the stack of layers (embedding, final norm, output head)."""

    layer: int | None
    operator: str
    path: str


@dataclass(frozen=True)
class Corruption:
    """What is done to a tensor: a kind, how strongly, and the kind's own parameters.

    `hardware` marks a fault of the simulated machine: it fires in every run and leaves float64 alone, because the
    host that checks the machine computes in float64 and is healthy.
    """

    kind: str
    strength: float
    params: Params = ()
    hardware: bool = False

    def __post_init__(self) -> None:
        accepted = FAULT_KINDS if self.hardware else NOISE_KINDS
        if self.kind not in accepted:
            raise unknown_name("fault kind" if self.hardware else "noise kind", self.kind, accepted)
        if not is_number(self.strength) or not math.isfinite(self.strength) or self.strength < 0:
            word = "magnitude" if self.hardware else "scale"
            raise BadInputError(f"{word} {self.strength!r} of {self.kind}: expected a finite number >= 0.")
        object.__setattr__(self, "strength", float(self.strength))
        known = {**KINDS[self.kind].params, **REACH_PARAMS}
        for name, _ in self.params:
            if name not in known:
                raise unknown_name(f"parameter of {self.kind}", name, known)
        _check_reach(dict(self.params))

    @property
    def spec_params(self) -> dict[str, Any]:
        """Every parameter of the kind, defaults filled in."""
        return {**REACH_PARAMS, **KINDS[self.kind].params, **dict(self.params)}

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators to which the kind can be applied."""
        return KINDS[self.kind].operators


def is_number(value: object) -> bool:
    """True for an int or float that is not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_reach(params: Mapping[str, Any]) -> None:
    for name in ("fraction", "rate"):
        value = params.get(name, 0.0)
        if not is_number(value) or not 0.0 <= value <= 1.0:
            raise BadInputError(f"{name} {value!r}: expected a share between 0 and 1.")
    channels = params.get("channels")
    if channels is not None and not (
        isinstance(channels, tuple) and all(isinstance(c, int) and c >= 0 for c in channels)
    ):
        raise BadInputError(f"channels {channels!r}: expected a list of channel indices >= 0.")


def freeze(params: Mapping[str, Any]) -> Params:
    """Parameters as a hashable, ordered tuple."""
    return tuple(sorted((k, tuple(v) if isinstance(v, list | set | range) else v) for k, v in params.items()))


def noise(kind: str = "relative_gaussian", scale: float = 0.05, **params: Any) -> Corruption:
    """A noise, or a round trip through a number format, as a corruption.

    A round trip has no strength of its own: any scale but 0 is the whole round trip, 0 is none.
    """
    return Corruption(kind, scale, freeze(params))


def fault(kind: str, magnitude: float = 0.3, **params: Any) -> Corruption:
    """A fault of the simulated hardware as a corruption. Magnitude 0 is a healthy machine, whatever the kind."""
    return Corruption(kind, magnitude, freeze(params), hardware=True)


def operator_names(names: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Operator names with aliases resolved, in the order of the vocabulary; None stays None."""
    if names is None:
        return None
    chosen: set[str] = set()
    for name in _listed("operators", names, ", ".join(OPERATORS)):
        if name not in OPERATORS and name not in OPERATOR_ALIASES:
            raise unknown_name("operator", name, (*OPERATORS, *OPERATOR_ALIASES))
        chosen.update(OPERATOR_ALIASES.get(name, (name,)))
    return tuple(name for name in OPERATORS if name in chosen)


@dataclass(frozen=True)
class Scaling:
    """Factors on the base scale by operator and by layer, or a layer's scale in place of the base."""

    operators: tuple[tuple[str, float], ...] = ()
    layers: tuple[tuple[int, float], ...] = ()
    layers_absolute: bool = False

    def strength(self, base: float, layer: int | None, operator: str) -> float:
        """The strength at one site."""
        of_layer = dict(self.layers).get(layer) if layer is not None else None
        if of_layer is not None:
            base = of_layer if self.layers_absolute else base * of_layer
        return base * dict(self.operators).get(operator, 1.0)


@dataclass(frozen=True)
class Injection:
    """A corruption at selected sites, in selected phases, from a seed."""

    corruption: Corruption
    layers: tuple[int | None, ...] | None = None
    operators: tuple[str, ...] | None = None
    phases: tuple[str, ...] = ("forward",)
    seed: int = 0
    scaling: Scaling = Scaling()
    # Paths of modules; only the calls that these make themselves.
    paths: tuple[str, ...] | None = field(default=None, metadata=LATER)

    @classmethod
    def of(
        cls,
        corruption: Corruption,
        *,
        layers: int | Iterable[int | None] | None = None,
        operators: str | Iterable[str] | None = None,
        phases: str | Iterable[str] = ("forward",),
        seed: int = 0,
    ) -> Self:
        """An injection from what a person writes: aliases resolved, everything checked."""
        if not isinstance(corruption, Corruption):
            raise BadInputError(f"corruption {corruption!r}: expected noisescope.noise(...) or noisescope.fault(...).")
        chosen = _layer_numbers(layers)
        named = operator_names(operators)
        _check_fit(corruption, named or ())
        wanted = _listed("phases", phases, ", ".join(PHASES))
        for phase in wanted:
            if phase not in PHASES:
                raise unknown_name("phase", phase, PHASES)
        for what, selection in (("layers", chosen), ("operators", named), ("phases", wanted)):
            if selection is not None and not selection:
                raise BadInputError(f"empty selection of {what}: nothing would be injected; leave it out to take all.")
        return cls(corruption, chosen, named, wanted, whole_number("seed", seed))

    def takes(self, layer: int | None, operator: str, path: str | None = None) -> bool:
        """Whether a site of this layer and operator is selected. No list of operators takes all elementary ones.

        Without a path, whether any such site may be.
        """
        if self.layers is not None and layer not in self.layers:
            return False
        if None not in (self.paths, path) and path not in (self.paths or ()):
            return False
        if self.operators is None:
            return operator != "attention" and operator in self.corruption.operators
        return operator in self.operators


def whole_number(what: str, value: object, least: int | None = None) -> int:
    """A whole number, of whichever library, as a plain one."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and value < least):
        at_least = "an integer" if least is None else f"a whole number >= {least}"
        raise BadInputError(f"{what} {value!r}: expected {at_least}.")
    return int(value)


def _listed(what: str, seen: Any, accepted: str) -> tuple[Any, ...]:
    """One name, or any collection of them, as a tuple."""
    if isinstance(seen, str):
        return (seen,)
    if not isinstance(seen, Iterable):
        raise BadInputError(f"{what} {seen!r}: expected one or more of {accepted}.")
    return tuple(seen)


def _layer_numbers(layers: Any) -> tuple[int | None, ...] | None:
    if layers is None:
        return None
    wanted = (layers,) if isinstance(layers, Integral) else layers
    if isinstance(wanted, str) or not isinstance(wanted, Iterable):
        raise BadInputError(f"layers {layers!r}: expected a layer number, a list of them, or None for all.")
    return tuple(None if layer is None else whole_number("layer", layer) for layer in wanted)


def _check_fit(corruption: Corruption, named: tuple[str, ...]) -> None:
    unable = [name for name in named if name not in corruption.operators]
    if unable:
        fits = ", ".join(corruption.operators)
        raise BadInputError(f"{corruption.kind} cannot be applied to {', '.join(unable)}; it fits {fits}.")


@dataclass(frozen=True)
class Trial:
    """A question: these injections, on this slice of this workload. Named by its content."""

    injections: tuple[Injection, ...]
    workload: str
    metric: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class Reading:
    """The answer to a trial: one value per sample, or the error that stood in the way.

    A value may be NaN or infinite; `nonfinite` counts the outputs of the model that were. `injections` counts the calls
    of operators that were injected into.
    """

    trial: Trial
    values: tuple[float, ...] = ()
    error: str | None = None
    nonfinite: int = 0
    injections: int = 0


@dataclass(frozen=True)
class Finding:
    """A statement with its severity, its figures and the trials behind it."""

    statement: str
    severity: str
    figures: tuple[tuple[str, float], ...] = ()
    evidence: tuple[str, ...] = ()
    decided: bool = True
