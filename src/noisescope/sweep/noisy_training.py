"""Noise in a training run: on at one step after the other, in the passes that learn, and off everywhere else.

The noise of a step depends on the seed and the number of the step alone, so that a run that is resumed goes on with
the noise that it would have had. It neither trains nor knows whose loop it is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from torch import nn

from noisescope.core.errors import BadInputError
from noisescope.core.records import Injection, Scaling, Site, is_number, noise, operator_names
from noisescope.core.vocabulary import PHASES
from noisescope.inject.active import Active
from noisescope.inject.instrument import Instrument
from noisescope.inject.keys import mix
from noisescope.inject.norm_weights import NAME, NormNoise
from noisescope.inject.schedule import Schedule, read_schedule
from noisescope.inject.tally import Tally
from noisescope.model.layout import layout_of
from noisescope.sweep.injecting import instrument_of

_NORMS = ("rms_norm", "layer_norm")
_OPERATORS, _WEIGHTS = 0, 1


@dataclass(frozen=True)
class NoisePlan:
    """Which noise a training run gets.

    `schedule` is the scale of noise in operators, `norms` that of Gaussian noise on the weights of norms; None is
    none. `factors` multiply the scale in layers, `operator_factors` that of operators. `is_fresh` says whether every
    step draws anew.
    """

    schedule: Schedule | None
    kind: str = "relative_gaussian"
    layers: tuple[int | None, ...] | None = None
    operators: tuple[str, ...] | None = None
    phases: tuple[str, ...] = PHASES
    factors: tuple[tuple[int, float], ...] = ()
    norms: Schedule | None = None
    seed: int = 0
    is_fresh: bool = True
    operator_factors: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if self.schedule is None and self.norms is None:
            raise BadInputError("noise in training without a schedule: name one for operators, for norms, or for both.")

    def injection(self, scale: float, step: int, stream: int = 0, part: int = 0) -> Injection:
        """What is injected into operators at one step. `stream` tells workers apart that see different data."""
        seed = mix(self.seed, stream, step if self.is_fresh else 0, _OPERATORS)
        if part:
            seed = mix(seed, part)
        scaling = Scaling(self.operator_factors, self.factors)
        return Injection(noise(self.kind, scale), self.layers, self.operators, self.phases, seed, scaling)

    def weight_seed(self, step: int) -> int:
        """The seed of the noise on norm weights, which all workers share as they share the weights."""
        return mix(self.seed, 0, step if self.is_fresh else 0, _WEIGHTS)


def noise_plan(
    schedule: str | float | Schedule | None = "decay",
    *,
    norms: str | float | Schedule | None = None,
    factors: Mapping[int, float] | None = None,
    operator_factors: Mapping[str, float] | None = None,
    seed: int = 0,
    kind: str = "relative_gaussian",
    **where: str | int | Iterable[str] | Iterable[int | None] | None,
) -> NoisePlan:
    """A plan from what a person writes. `where` are layers, operators and phases, both phases if left out.

    A schedule is a scale, a preset (decay, qerl, qerl_code) or its kind with its scales, such as linear:0.05:0.01.
    """
    strange = [name for name in where if name not in ("layers", "operators", "phases")]
    if strange:
        raise BadInputError(
            f"unknown option {strange[0]!r} of noise in training: expected layers, operators or phases."
        )
    _check_numbers("layers", factors)
    _check_numbers("operators", operator_factors)
    asked = Injection.of(noise(kind), seed=seed, **{"phases": PHASES, **where})  # type: ignore[arg-type]
    return NoisePlan(
        schedule_of(schedule),
        kind,
        asked.layers,
        asked.operators,
        asked.phases,
        tuple(sorted((factors or {}).items())),
        schedule_of(norms),
        seed,
        operator_factors=tuple(
            (o, f) for name, f in (operator_factors or {}).items() for o in operator_names(name) or ()
        ),
    )


def _check_numbers(what: str, factors: Mapping[Any, float] | None) -> None:
    wrong = {k: f for k, f in (factors or {}).items() if not is_number(f) or not 0 <= f < float("inf")}
    if wrong:
        raise BadInputError(f"factors of {what} {wrong}: expected finite numbers >= 0.")


def schedule_of(asked: str | float | Schedule | None) -> Schedule | None:
    """A schedule from what a person writes; None stays None."""
    return asked if asked is None or isinstance(asked, Schedule) else read_schedule(str(asked))


class TrainingNoise:
    """The noise of a plan in one model. Also a context manager, which leaves nothing on the model.

    `stream` tells workers apart that train one model on different data.
    """

    def __init__(self, model: nn.Module, plan: NoisePlan, *, stream: int = 0) -> None:
        self.plan, self.stream = plan, stream
        self.instrument: Instrument = instrument_of(model)
        self.stats = Tally()
        # Of the last start.
        self.scale = self.norm_scale = 0.0
        self._active: Active | None = None
        self._are_norms_on = False
        self._norms = None if plan.norms is None else NormNoise(model, norms_of(model, plan.layers))
        if plan.schedule is not None:
            Active(plan.injection(0.0, 0)).check_layers(self.instrument.layers)
        _check_factors(plan, self.instrument.layers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def weight_stats(self) -> Tally:
        """What became of the noise on norm weights."""
        return Tally() if self._norms is None else self._norms.stats

    @property
    def is_on(self) -> bool:
        """Whether a pass that learns would be noisy now."""
        return self._active is not None or self._are_norms_on

    def start(self, step: int, steps: int, part: int = 0) -> None:
        """The noise of one step of so many, for all its passes until `stop` or the next start.

        A step that is done in several parts, each with a start of its own, numbers them, so that each part draws anew.
        """
        self.stop()
        self.scale = 0.0 if self.plan.schedule is None else self.plan.schedule.scale(step, steps)
        if self.scale:
            self._active = Active(self.plan.injection(self.scale, step, self.stream, part), stats=self.stats)
            self.instrument.training_only = True
            self.instrument.start(self._active)
        if self._norms is not None and self.plan.norms is not None:
            self.norm_scale = self.plan.norms.scale(step, steps)
            self._norms.start(self.norm_scale, self.plan.weight_seed(step))
            self._are_norms_on = bool(self.norm_scale)

    def stop(self) -> None:
        """No noise from now on."""
        if self._active is not None:
            self.instrument.stop(self._active)
            self.instrument.training_only = False
            self._active = None
        if self._norms is not None:
            self._norms.stop()
        self._are_norms_on = False

    def verify(self) -> None:
        """Raise if noise is on and something that was selected was never reached, or nothing changed."""
        if self._active is not None:
            self._active.verify(self.instrument.met)
        if self._norms is not None and self._are_norms_on:
            self._norms.verify()

    def figures(self) -> dict[str, float]:
        """The scales of the last step; realised noise and injections since the last call."""
        figures: dict[str, float] = {}
        if self.plan.schedule is not None:
            figures["scale"] = self.scale
            figures["injections"] = self.stats.total_forward + self.stats.total_backward
            figures |= {f"realised_{phase}": self.stats.realised_in((phase,)) for phase in self.plan.phases}
        if self.plan.norms is not None:
            figures |= {"norm_scale": self.norm_scale, "realised_norms": self.weight_stats.realised}
        self.stats.reset()
        self.weight_stats.reset()
        return figures


def norms_of(model: nn.Module, layers: tuple[int | None, ...] | None = None) -> dict[Site, nn.Module]:
    """The norms of a model that have a weight, those that write their formula by hand among them."""
    layout = layout_of(model)
    by_hand = dict(layout.written_out)
    found: dict[Site, nn.Module] = {}
    for path, module in model.named_modules():
        is_norm = by_hand.get(path) in _NORMS or isinstance(module, nn.LayerNorm | nn.RMSNorm)
        layer = layout.layer_of(path)[0]
        if is_norm and getattr(module, "weight", None) is not None and (layers is None or layer in layers):
            found[Site(layer, NAME, path)] = module
    return found


def _check_factors(plan: NoisePlan, layers: int) -> None:
    strange = [layer for layer, _ in plan.factors if not 0 <= layer < layers]
    if strange:
        raise BadInputError(f"a factor for layer {strange[0]}: the model has layers 0 to {layers - 1}.")
