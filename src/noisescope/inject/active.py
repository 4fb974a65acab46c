"""One injection at work: what it does at a site, with which key, and whether it did what was asked."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from noisescope.core.errors import BadInputError, LayersNotFoundError, NeverFiredError, NoEffectError, unknown_name
from noisescope.core.records import Injection, Site
from noisescope.core.vocabulary import KINDS
from noisescope.inject.keys import mix, site_key
from noisescope.inject.tally import Tally
from noisescope.inject.where import Place

Sensor = Callable[[Site, Tensor], None]
# Told of a site, the function that ran there, its arguments and its output after every injection.
Witness = Callable[[Site, Callable[..., Any], tuple[Any, ...], dict[str, Any], Any], None]
_SERIAL = itertools.count()


@dataclass(frozen=True)
class Charge:
    """What one active injection does at one place to one operator in one phase."""

    active: Active
    site: Site
    strength: float
    key: int

    @property
    def idle(self) -> bool:
        """Whether nothing is changed here and nobody listens."""
        return self.strength == 0 and self.active.sensor is None

    def call_key(self, number: int, ordinal: int, operand: int = 0) -> int:
        """The key of one call: the pass, the call within it, and which operand of it."""
        return mix(self.key, number, ordinal, operand)


@dataclass(frozen=True)
class Plan:
    """Everything that happens at one place to one operator."""

    forward: tuple[Charge, ...] = ()
    backward: tuple[Charge, ...] = ()


@dataclass(eq=False)
class Active:
    """An injection that is switched on, and its statistics."""

    injection: Injection
    # Told of every output that the injection reaches, after it was changed.
    sensor: Sensor | None = None
    # Sees calls as they were; unlike a sensor it asks for no operator that would not have run without it.
    witness: Witness | None = None
    stats: Tally = field(default_factory=Tally)
    serial: int = field(default_factory=lambda: next(_SERIAL))
    called: bool = False
    # Groups of operators of which one must fire: what one alias stands for.
    either: tuple[tuple[str, ...], ...] = ()
    # How often each operator call of a compiled graph has run.
    runs: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def charge(self, place: Place, operator: str, phase: str) -> Charge | None:
        """What happens at this place in this phase; None where nothing was asked for."""
        asked = self.injection
        if phase not in asked.phases or not asked.takes(place.layer, operator, place.path):
            return None
        if phase == "backward" and KINDS[asked.corruption.kind].needs_operands:
            raise BadInputError(
                f"{asked.corruption.kind} computes products of the forward pass anew; leave the backward phase out."
            )
        strength = asked.scaling.strength(asked.corruption.strength, place.layer, operator)
        stream = "fault" if asked.corruption.hardware else "noise"
        key = mix(site_key(stream, phase, place.layer, operator, place.local), asked.seed)
        return Charge(self, place.site(operator), strength, key)

    def check_layers(self, layers: int) -> None:
        """Refuse layer numbers that the model does not have."""
        asked = [index for index in self.injection.layers or () if index is not None]
        if asked and not layers:
            raise LayersNotFoundError(
                f"layers {asked} were asked for, but the model's stack of layers could not be found. "
                "Leave layers out to take the whole model, or wrap the blocks in one torch.nn.ModuleList."
            )
        strange = [index for index in asked if index not in range(layers) or isinstance(index, bool)]
        if strange:
            raise unknown_name("layer", strange[0], [str(i) for i in range(layers)])

    def verify(self, met: set[str]) -> None:
        """Raise where something selected was never reached, or where nothing that was reached changed."""
        if not self.called:
            raise NeverFiredError(
                "nothing was injected: the model was not called while the injection was on. "
                "Call the model that was passed to inject(), inside the block."
            )
        asked = self.injection
        for phase in asked.phases:
            # Gradients are not touched at strength 0, so they are not counted either.
            if phase == "forward" or asked.corruption.strength:
                self._verify_reached(phase, met)
            self._verify_changed(phase)

    def _verify_changed(self, phase: str) -> None:
        asked, sites = self.injection, self.stats.by_site(phase)
        selections = [(f" in {name}", [s for s in sites if s.operator == name]) for name in asked.operators or ()]
        selections += [(f" in layer {index}", [s for s in sites if s.layer == index]) for index in asked.layers or ()]
        for where, chosen in [*selections, ("", list(sites))]:
            strongest = max((self._strength(site) for site in chosen), default=0.0)
            compared = sum(sites[site].measured for site in chosen)
            elements = sum(sites[site].elements for site in chosen)
            if strongest and elements and not any(sites[site].changed for site in chosen):
                raise NoEffectError(
                    f"{asked.corruption.kind} of strength {strongest:g} reached {elements} values{where} and changed "
                    f"none of the {compared} that were compared: it lies below what the number format resolves, or "
                    "leaves these values as they are (a fault leaves float64 alone). Use a larger strength, or "
                    "strength 0 for a control."
                )

    def _strength(self, site: Site) -> float:
        return self.injection.scaling.strength(self.injection.corruption.strength, site.layer, site.operator)

    def _verify_reached(self, phase: str, met: set[str]) -> None:
        sites = self.stats.by_site(phase)
        asked = self.injection
        fired = {site.operator for site in sites}
        spared = {name for group in self.either if fired & set(group) for name in group}
        missing = [name for name in asked.operators or () if name not in fired and name not in spared]
        layers = [i for i in asked.layers or () if i not in {site.layer for site in sites}]
        paths = [path for path in asked.paths or () if path not in {site.path for site in sites}]
        if sites and not missing and not layers and not paths:
            return
        if phase == "backward" and not sites:
            raise NeverFiredError(
                "backward noise was selected and no gradient passed: no backward ran, or nothing there needs gradients."
            )
        what = f"operator {', '.join(missing)}" if missing else f"layer {layers}" if layers else "no selected operator"
        what = f"module {', '.join(paths)}" if paths else what
        raise NeverFiredError(
            f"{what} was selected for {phase} and never fired. Operators met in this model: "
            f"{', '.join(sorted(met)) or 'none'}. Fused or custom kernels hide operators: load the model with "
            "attn_implementation='sdpa' or 'eager', and see noisescope.sites(model)."
        )
