"""The table of metrics: what each measures, which shapes of items it fits, and how its values are summed up.

It computes nothing from a model's output, `noisescope.measure.scoring` does, and it does not need torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from noisescope.core.errors import BadInputError, unknown_name

View = Literal["answer", "choices", "generation", "whole", "positions"]

# What is shown to the model and scored: the answer given the prompt; every choice given the prompt; the prompt alone,
# to be answered; the whole item, read by an encoder; or positions of tensors that came as they are.
_ANSWER: Mapping[str, View] = MappingProxyType(
    {**dict.fromkeys(("question", "completion", "text", "choice"), "answer"), "tensors": "positions"}
)
_WHOLE: Mapping[str, View] = MappingProxyType(dict.fromkeys(_ANSWER, "whole"))


@dataclass(frozen=True)
class Metric:
    """One metric. `against_clean`: each value compares a run with the clean run, so `clean` is what clean itself gets.

    The score of a set of samples is the mean of their values, or their geometric mean.
    """

    name: str
    meaning: str
    views: Mapping[str, View]
    higher_is_better: bool = False
    geometric: bool = False
    clean: float | None = None

    @property
    def against_clean(self) -> bool:
        """Whether a value compares with the clean run."""
        return self.clean is not None

    def score(self, values: Sequence[float]) -> float:
        """One number for a set of samples."""
        if not values:
            raise BadInputError(f"{self.name} of no samples: expected one value or more.")
        if self.geometric:
            return math.exp(math.fsum(math.log(value) for value in values) / len(values))
        return math.fsum(values) / len(values)


_TABLE = (
    Metric("nll", "mean negative log-likelihood per token of the answer or text, in nats", _ANSWER),
    Metric("perplexity", "exp of nll; of several samples, exp of their mean nll", _ANSWER, geometric=True),
    Metric("kl_to_clean", "mean KL(clean || noisy) per token of the answer or text, in nats", _ANSWER, clean=0.0),
    Metric(
        "top1_agreement",
        "share of those tokens at which the most likely token is that of the clean run",
        _ANSWER,
        higher_is_better=True,
        clean=1.0,
    ),
    Metric(
        "accuracy",
        "1 if the last number that is generated is the right one, or the right choice is the likeliest per byte",
        MappingProxyType({"question": "generation", "choice": "choices"}),
        higher_is_better=True,
    ),
    Metric(
        "accuracy_plain",
        "1 if the right choice as a whole is the likeliest, which favours short choices",
        MappingProxyType({"choice": "choices"}),
        higher_is_better=True,
    ),
    Metric(
        "embedding_shift", "cosine distance of the mean last hidden state to that of the clean run", _WHOLE, clean=0
    ),
)
METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _TABLE})
USUAL: Mapping[str, str] = MappingProxyType(
    {"question": "accuracy", "choice": "accuracy", "completion": "nll", "text": "nll", "tensors": "top1_agreement"}
)


def fitting(shape: str) -> tuple[str, ...]:
    """The metrics that fit a shape of items."""
    return tuple(name for name, metric in METRICS.items() if shape in metric.views)


def metric_for(name: str, shape: str) -> Metric:
    """The metric of this name, if it fits items of this shape."""
    if name not in METRICS:
        raise unknown_name("metric", name, METRICS)
    if shape not in METRICS[name].views:
        fits = " and ".join(METRICS[name].views)
        raise BadInputError(
            f"{name} fits {fits} items, and these are {shape} items; those that fit: {', '.join(fitting(shape))}."
        )
    return METRICS[name]


def relative_degradation(name: str, shape: str, clean: float, noisy: float) -> float:
    """The share of the clean score that is lost, or by which it rises where less is better; below 0 is a gain."""
    metric = metric_for(name, shape)
    if metric.clean == 0.0:
        raise BadInputError(f"{name} is 0 for every clean run; its value is the harm itself: use it as it is.")
    if clean == 0.0:
        others = [other for other in fitting(shape) if not other.startswith("accuracy") and other != "embedding_shift"]
        raise BadInputError(
            f"the clean {name} is 0, so a degradation relative to it is undefined: nothing is left to lose. Metrics "
            f"that work on these {shape} items: {', '.join(other for other in others if other != name)}."
        )
    lost = clean - noisy if metric.higher_is_better else noisy - clean
    return lost / abs(clean)
