"""What every level of a diagnosis shares, its trials, and what each of them costs in clean evaluations.

It runs nothing and judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from noisescope.core.errors import BadInputError
from noisescope.core.records import Corruption, Injection, Params, Trial, is_number, operator_names
from noisescope.measure.metrics import Metric, metric_for

SEEDS = (0, 1, 2)
CHUNK = 25
BUDGET = 25.0
Span = tuple[int, int]


@dataclass(frozen=True)
class Setting:
    """On what, how strongly and how thoroughly a model is asked.

    `shape` is that of the workload's items; they have to come in an order that knows nothing of their difficulty.
    `operators` are those the model has. `budget` is in clean evaluations and includes `spent`, what screening and
    channels took before; None is without limit. `exhaustive` asks all there is to ask: no budget, no early stop.
    """

    workload: str
    metric: str
    shape: str
    samples: int
    layers: int
    operators: tuple[str, ...]
    kind: str = "relative_gaussian"
    scale: float = 0.05
    params: Params = ()
    seeds: tuple[int, ...] = SEEDS
    chunk: int = CHUNK
    confidence: float = 0.95
    budget: float | None = BUDGET
    spent: float = 0.0
    exhaustive: bool = False
    resamples: int = 10_000

    def __post_init__(self) -> None:
        metric_for(self.metric, self.shape)
        Corruption(self.kind, self.scale, self.params)
        if not self.scale > 0:
            raise BadInputError(f"noise scale {self.scale:g}: expected one above 0; the control is at 0 anyway.")
        for what, value, least in (("samples", self.samples, 2), ("layers", self.layers, 1), ("chunk", self.chunk, 2)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise BadInputError(f"{what} {value!r}: expected a whole number >= {least}.")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise BadInputError(f"seeds {self.seeds!r}: expected at least one, and each only once.")
        if not 0.5 < self.confidence < 1.0:
            raise BadInputError(f"confidence {self.confidence!r}: expected a share such as 0.95.")
        if self.budget is not None and (not is_number(self.budget) or not self.budget > 0):
            raise BadInputError(f"budget {self.budget!r}: expected clean evaluations above 0, or None.")
        object.__setattr__(self, "operators", elementary(self.operators))

    @property
    def judged_by(self) -> Metric:
        return metric_for(self.metric, self.shape)

    @property
    def alpha(self) -> float:
        return 1.0 - self.confidence

    @property
    def spans(self) -> tuple[Span, ...]:
        """The slices that are asked about one at a time. A rest too short to stand alone joins the one before."""
        starts = list(range(0, self.samples, self.chunk))
        if len(starts) > 1 and self.samples - starts[-1] < self.chunk / 2:
            starts.pop()
        return tuple(zip(starts, [*starts[1:], self.samples], strict=True))

    def seed(self, round_: int, chunk: int) -> int:
        """Seeds rotate over the chunks, so that the first round over the samples has met every seed."""
        return self.seeds[(round_ + chunk) % len(self.seeds)]


def elementary(operators: Iterable[str]) -> tuple[str, ...]:
    """Operators in the order of the vocabulary, without attention, which is made of others."""
    named = operator_names(tuple(operators)) or ()
    return tuple(name for name in named if name != "attention")


@dataclass(frozen=True)
class Unit:
    """What is perturbed together: operators (None: all) in layers (None: everywhere).

    Without a scale of its own it is perturbed at the setting's.
    """

    operators: tuple[str, ...] | None = None
    layers: tuple[int, ...] | None = None
    scale: float | None = None

    @property
    def name(self) -> str:
        where = "" if self.layers is None else span_name(self.layers)
        what = "" if self.operators is None else ", ".join(self.operators)
        at = "" if self.scale is None else f"scale {self.scale:g}"
        return " ".join(part for part in (what, where, at) if part) or "everything"

    def trial(self, setting: Setting, chunk: int, round_: int = 0) -> Trial:
        """The question of one chunk in one round over the samples."""
        strength = setting.scale if self.scale is None else self.scale
        corruption = Corruption(setting.kind, strength, setting.params)
        injection = Injection(corruption, self.layers, self.operators, seed=setting.seed(round_, chunk))
        return slice_trial(setting, chunk, injection)

    def cost(self, setting: Setting) -> float:
        """Of one round over all samples, in clean evaluations."""
        return (setting.layers - min(self.layers or (0,))) / setting.layers


def span_name(layers: tuple[int, ...]) -> str:
    """`layer 3`, `layers 3-5`."""
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}-{layers[-1]}"


def slice_trial(setting: Setting, chunk: int, *injections: Injection) -> Trial:
    """Any injections, or none for the baseline, on one chunk."""
    start, stop = setting.spans[chunk]
    return Trial(injections, setting.workload, setting.metric, start, stop)


def control_trial(setting: Setting, chunk: int) -> Trial:
    """Noise of strength 0 everywhere: it has to give what the baseline gives, to the last bit."""
    silent = Injection(Corruption(setting.kind, 0.0, setting.params), seed=setting.seeds[0])
    return slice_trial(setting, chunk, silent)


def cost_of(trial: Trial, setting: Setting) -> float:
    """Clean evaluations that a trial takes: its share of the samples times that of the layers that it has to run.

    A run begins at the first perturbed layer, with what a clean run had there. Embedding and output head are not
    counted.
    """
    stop = setting.samples if trial.stop is None else trial.stop
    first = min((_first_layer(injection) for injection in trial.injections), default=0)
    return (stop - trial.start) / setting.samples * (setting.layers - first) / setting.layers


def _first_layer(injection: Injection) -> int:
    if injection.layers is None:
        return 0
    return min(0 if layer is None else layer for layer in injection.layers)
