"""A model that is made up: what noise in each operator and layer costs is planted, and readings are drawn from that."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from noisescope.core.codec import key_of
from noisescope.core.records import Reading, Trial
from noisescope.diagnose.setting import Setting, cost_of

OPERATORS = ("linear", "matmul", "softmax", "silu", "rms_norm")


def setting(**changes: Any) -> Setting:
    given: dict[str, Any] = {
        "workload": "w",
        "metric": "accuracy",
        "shape": "choice",
        "samples": 200,
        "layers": 30,
        "operators": OPERATORS,
        "spent": 5.0,
        "resamples": 1000,
    }
    return Setting(**{**given, **changes})


@dataclass
class World:
    """Harm planted by operator, by layer, and by pair of layers that only do harm together, at noise of 0.05.

    Harm is a share of the clean score. `shared` is how much of a sample's luck is its own, whatever the noise.
    """

    samples: int = 200
    metric: str = "accuracy"
    operators: Mapping[str, float] = field(default_factory=dict)
    layers: Mapping[int, float] = field(default_factory=dict)
    pairs: Mapping[tuple[int, int], float] = field(default_factory=dict)
    base: float = 0.0
    accuracy: float = 0.8
    shared: float = 0.7
    seed: int = 0
    power: float = 2.0
    failing: frozenset[str] = frozenset()
    silent: bool = False
    asked: dict[str, Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        self.luck = draw.random(self.samples)
        self.weight = draw.lognormal(-0.125, 0.5, self.samples)
        self.clean = {
            "accuracy": (draw.random(self.samples) < self.accuracy).astype(float),
            "nll": draw.lognormal(0.5, 0.4, self.samples),
            "perplexity": np.exp(draw.lognormal(0.5, 0.4, self.samples)),
            "kl_to_clean": np.zeros(self.samples),
            "top1_agreement": np.ones(self.samples),
        }[self.metric]

    def harm(self, trial: Trial) -> float:
        """The planted harm of a trial."""
        if not trial.injections:
            return 0.0
        one = trial.injections[0]
        total = 0.0
        if one.layers is None and one.operators is None:
            total = self.base + sum(self.operators.values())
        elif one.operators is not None:
            total = sum(self.operators.get(name, self.base) for name in one.operators)
        else:
            inside = {layer for layer in one.layers or () if layer is not None}
            total = sum(self.layers.get(layer, self.base) for layer in inside)
            total += sum(extra for pair, extra in self.pairs.items() if set(pair) <= inside)
        return total * (one.corruption.strength / 0.05) ** self.power

    def values(self, trial: Trial) -> np.ndarray[Any, Any]:
        harm = self.harm(trial)
        stop = self.samples if trial.stop is None else trial.stop
        part = slice(trial.start, stop)
        if harm == 0.0:
            return self.clean[part]
        one = trial.injections[0]
        name = f"{one.layers} {one.operators} {one.corruption.strength} {one.seed}"
        draw = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        fresh, own = draw.random(self.samples), draw.random(self.samples) < self.shared
        jitter = draw.lognormal(-0.02, 0.2, self.samples)
        if self.metric in ("accuracy", "top1_agreement"):
            lost = np.where(own, self.luck, fresh) < harm
            return np.where(lost, 0.0, self.clean)[part]
        grown = harm * self.weight * jitter
        if self.metric == "nll":
            return (self.clean * (1.0 + grown))[part]
        if self.metric == "perplexity":
            return (self.clean * np.exp(np.log1p(harm) * self.weight * jitter))[part]
        return grown[part]

    def measure(self, trial: Trial) -> Reading:
        key = key_of(trial)
        self.asked[key] = trial
        if key in self.failing:
            return Reading(trial, error="out of memory")
        made = 0 if self.silent else len(trial.injections)
        return Reading(trial, tuple(self.values(trial).tolist()), injections=made)

    def cost(self, setting: Setting) -> float:
        return math.fsum(cost_of(trial, setting) for trial in self.asked.values())

    def profile(self, layers: int, spread: float = 0.1) -> tuple[float, ...]:
        """What screening would predict of each layer: proportional to its own harm, with errors; pairs are unseen."""
        draw = np.random.default_rng(self.seed + 1)
        own = [self.layers.get(layer, self.base) + 1e-4 for layer in range(layers)]
        return tuple(float(h * math.exp(spread * e)) for h, e in zip(own, draw.standard_normal(layers), strict=True))


def ask(question: Any, world: World, known: dict[str, Reading] | None = None) -> Any:
    """Plan and measure until nothing is left to ask, then conclude."""
    known = {} if known is None else known
    tried: set[str] = set()
    while True:
        keyed = {key_of(trial): trial for trial in question.plan(known)}
        pending = {k: t for k, t in keyed.items() if k not in tried and (k not in known or known[k].error)}
        if not pending:
            return question.conclude(known)
        tried.update(pending)
        known.update({key: world.measure(trial) for key, trial in pending.items()})
