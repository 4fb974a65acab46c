"""Joins a model to an injection: what `noisescope.inject` and `noisescope.sites` do."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import nn

from noisescope.core.errors import BadInputError, NoisescopeError
from noisescope.core.records import Corruption, Injection, Site, noise
from noisescope.core.vocabulary import OPERATOR_ALIASES, OPERATORS
from noisescope.inject.active import Active, Sensor, Witness
from noisescope.inject.instrument import Instrument
from noisescope.inject.tally import Tally
from noisescope.measure.inputs import called_with, checked_batches, module_of
from noisescope.model.layout import layout_of
from noisescope.model.sample import sample_batch
from noisescope.sweep.evaluating import evaluating

_INSTRUMENTS: weakref.WeakKeyDictionary[nn.Module, Instrument] = weakref.WeakKeyDictionary()


def inject(
    model: nn.Module,
    corruption: Corruption,
    *,
    layers: int | Iterable[int | None] | None = None,
    operators: str | Iterable[str] | None = None,
    phases: str | Iterable[str] = ("forward",),
    seed: int = 0,
) -> Injecting:
    """Inject a corruption into a model inside a `with` block; the block's value is the handle with the statistics.

    `layers` are indices of the model's layers (None among them is all that lies outside), `operators` names such as
    "linear" or "softmax"; left out, they mean all. Leaving the block raises NeverFiredError if something that was
    selected was never reached, and NoEffectError if injections were made and not one value changed.
    """
    asked = Injection.of(corruption, layers=layers, operators=operators, phases=phases, seed=seed)
    named = [operators] if isinstance(operators, str) else list(operators or ())
    injecting = Injecting(model, asked)
    injecting.accept_either(tuple(OPERATOR_ALIASES[name] for name in named if name in OPERATOR_ALIASES))
    return injecting


class Injecting:
    """One injection into one model, as a context manager and as the handle it gives."""

    def __init__(
        self,
        model: nn.Module,
        injection: Injection,
        *,
        strict: bool = True,
        sensor: Sensor | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.injection = injection
        self.instrument = instrument_of(model)
        self.strict = strict
        self._active = Active(injection, sensor, witness)
        self._active.check_layers(self.instrument.layers)

    def accept_either(self, groups: tuple[tuple[str, ...], ...]) -> None:
        """Of each group of operators one has to fire, not all."""
        self._active.either = groups

    @property
    def stats(self) -> Tally:
        """What was injected so far."""
        return self._active.stats

    def __enter__(self) -> Injecting:
        if self._active in self.instrument.actives:
            raise BadInputError("this injection is already on: make a second one with inject(...) to nest it.")
        self._active.stats.reset()
        self._active.called = False
        self._active.runs.clear()
        self.instrument.start(self._active)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        met = self.instrument.met
        self.instrument.stop(self._active)
        if kind is None and self.strict:
            self._active.verify(met)
        if error is not None and type(error).__module__.startswith("torch._dynamo"):
            _raise_what_the_compiler_wrapped(error)


def _raise_what_the_compiler_wrapped(error: BaseException) -> None:
    """Raise our own refusal, if that is what the compiler met while it traced."""
    inner = error.__cause__ or error.__context__
    while inner is not None:
        if isinstance(inner, NoisescopeError):
            raise inner from None
        inner = inner.__cause__ or inner.__context__


def instrument_of(model: nn.Module) -> Instrument:
    """The instrument of a model; a compiled model shares that of the module it was made from."""
    model = module_of(model)
    model = getattr(model, "_orig_mod", model)
    known = _INSTRUMENTS.get(model)
    if known is None or not known.still_fits(model):
        if known is not None and known.actives:
            raise BadInputError("the model's modules were changed while an injection is on; leave its block first.")
        known = _INSTRUMENTS[model] = Instrument()
        known.attach(model, layout_of(model))
    return known


def sites(model: nn.Module, batch: Mapping[str, Any] | None = None) -> list[Site]:
    """Every place of the model that an injection can reach, in the order in which they run.

    Without a batch to run on, a few tokens are used.
    """
    look = Injection(noise(scale=0.0), operators=OPERATORS)
    model = module_of(model)
    (inputs,) = checked_batches([sample_batch(model) if batch is None else batch], model)
    watched = Injecting(model, look, strict=False)
    with evaluating(model), torch.no_grad(), watched as handle, called_with(1, inputs):
        model(**inputs)
    return list(handle.stats.by_site())
