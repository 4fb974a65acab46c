"""A plan for moving a model to other arithmetic, as records: what comes first, why, and how to see that it holds.

It ranks nothing and runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# What the priorities mean, the most urgent first.
PRIORITIES: Mapping[int, str] = MappingProxyType(
    {
        0: "fix first",
        1: "validate first",
        2: "spot-check",
        3: "standard check",
    }
)
# What more precision means for an operator.
PROTECTION: Mapping[str, str] = MappingProxyType(
    {
        "linear": "Keep the linear layers in 16 bits where the map is darkest, and quantize from the lightest on",
        "matmul": "Keep the matrix products of attention in 16 bits, with sums in 32 bits",
        "bmm": "Keep the batched matrix products in 16 bits, with sums in 32 bits",
        "softmax": "Compute softmax in 32 bits, and check the table of its exponential on the target",
        "silu": "Compute silu in 16 bits or more, and check its table on the target",
        "gelu": "Compute gelu in 16 bits or more, and check its table on the target",
        "layer_norm": "Compute layer_norm in 32 bits: its mean, its variance and its scaling",
        "rms_norm": "Compute rms_norm in 32 bits: its mean square and its scaling",
    }
)


@dataclass(frozen=True)
class Step:
    """One thing to do. `command` is how to see on the target that it is done, and `accept` what it has to say.

    No layers means that it is about operators everywhere.
    """

    priority: int
    component: str
    action: str
    severity: str
    reasons: tuple[str, ...]
    command: str
    accept: str
    layers: tuple[int | None, ...] = ()
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerRank:
    """Where a layer stands. None is what was not measured.

    `harm` is what noise costs in the least harmful window with it, `divergence` the largest mean relative error of
    the second system in it, and `product` what that error would cost if harm grew in proportion to it.
    """

    layer: int
    priority: int
    severity: str
    harm: float | None
    divergence: float | None
    product: float | None
    reason: str


@dataclass(frozen=True)
class Plan:
    """What to do, the most urgent first, and every layer by rank. `prepare` are the commands before all steps.

    `is_share`: harm is a share of the clean score, else a value of the metric.
    """

    model: str
    target: str
    metric: str
    is_share: bool
    scale: float
    steps: tuple[Step, ...]
    layers: tuple[LayerRank, ...]
    prepare: tuple[str, ...]
    notes: tuple[str, ...] = ()
