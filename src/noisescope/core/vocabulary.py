"""The closed lists of words: operators, phases and corruption kinds, with what each kind accepts.

A kind is listed here with its parameters so that a record can be checked without torch; what the kind does to a
tensor is in `noisescope.inject`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Family = Literal["noise", "format", "fault"]

OPERATORS = ("linear", "matmul", "bmm", "attention", "softmax", "silu", "gelu", "layer_norm", "rms_norm")
OPERATOR_ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"layernorm": ("layer_norm", "rms_norm"), "sdpa": ("attention",)}
)
PHASES = ("forward", "backward")
PRODUCTS = ("linear", "matmul", "bmm")


@dataclass(frozen=True)
class KindSpec:
    """What may be asked of one corruption kind."""

    family: Family
    meaning: str
    params: Mapping[str, object] = field(default_factory=dict)
    operators: tuple[str, ...] = OPERATORS
    needs_operands: bool = False


def _noise(meaning: str, **params: object) -> KindSpec:
    return KindSpec("noise", meaning, params)


def _format(meaning: str, granularity: str, block: int = 32) -> KindSpec:
    return KindSpec("format", meaning, {"granularity": granularity, "block": block})


def _fault(meaning: str, operators: tuple[str, ...] = OPERATORS, **params: object) -> KindSpec:
    return KindSpec("fault", meaning, params, operators, needs_operands=operators == PRODUCTS)


KINDS: Mapping[str, KindSpec] = MappingProxyType(
    {
        "relative_gaussian": _noise("n * |x| * s"),
        "absolute_gaussian": _noise("n * s"),
        "rms_gaussian": _noise("n * rms(x) * s"),
        "relative_uniform": _noise("uniform error with the standard deviation |x| * s"),
        "ulp": _noise("random rounding error of a dtype: uniform over s of its ulps", dtype="bf16"),
        "bf16": _format("round trip through bfloat16", "none"),
        "fp16": _format("round trip through float16", "none"),
        "fp8_e4m3": _format("round trip through float8 e4m3, saturating at 448", "none"),
        "fp8_e5m2": _format("round trip through float8 e5m2, saturating at 57344", "none"),
        "int8": _format("round trip through symmetric int8, one scale per tensor", "tensor"),
        "int4": _format("round trip through symmetric int4, one scale per block of 32", "block"),
        "fp4_e2m1": _format("round trip through float4 e2m1, saturating at 6", "none"),
        "mxfp4": _format("round trip through float4 e2m1 with a power-of-two scale per block of 32", "block"),
        "dead_zone": _fault("|x| < m * rms, or < limit, becomes 0", limit=None),
        "saturation": _fault("clamped to +-m * max|x| of the healthy values, or to +-limit", limit=None),
        "spike": _fault("a random share of values, 0.1 % by default, times 1/m", rate=0.001),
        "noise": _fault("n * rms * m, fresh each run"),
        "bit_flip": _fault("one bit of a random share of values flips", bit=None, rate=0.01),
        "stuck_at_zero": _fault("chosen channels, or a share of them, are 0", rate=0.01),
        "value_corruption": _fault("a random share of values is drawn anew from +-m * max|x|", rate=0.01),
        "stuck_channel": _fault("one channel holds the constant m * rms", channel=0),
        "gain_drift": _fault("every value times 1 + m"),
        "offset": _fault("every value plus m * rms"),
        "exp_lut": _fault("softmax whose exp comes from a table with steps of m", ("softmax",)),
        "low_precision_accumulation": _fault(
            "sums of products kept in a short format between chunks", PRODUCTS, dtype="bf16", chunk=16
        ),
    }
)

NOISE_KINDS = tuple(name for name, spec in KINDS.items() if spec.family != "fault")
FAULT_KINDS = tuple(name for name, spec in KINDS.items() if spec.family == "fault")
REACH_PARAMS: Mapping[str, object] = MappingProxyType({"channels": None, "fraction": 1.0})
