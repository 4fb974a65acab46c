"""The bit-sensitivity curve: what it costs where one given bit flips in a share of an operator's outputs.

It asks for the trials of every bit of a number format and makes points of them; a bit harms by what it means, so none
is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.core.records import Injection, fault
from noisescope.diagnose.fault_loss import LossQuestion
from noisescope.diagnose.fault_tests import Lost
from noisescope.diagnose.setting import Setting
from noisescope.measure.statistics import Interval

# Exponent and mantissa bits of the formats in which a model computes; above them is the sign.
FORMATS: Mapping[str, tuple[int, int]] = MappingProxyType({"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)})
RATE = 1e-4


def width(dtype: str) -> int:
    """The bits of a format."""
    if dtype not in FORMATS:
        raise unknown_name("number format of the model", dtype, FORMATS)
    return 1 + sum(FORMATS[dtype])


def part_of(dtype: str, bit: int) -> str:
    """Which part of a number a bit is, 0 the lowest of the mantissa."""
    exponent, mantissa = FORMATS[dtype]
    return "mantissa" if bit < mantissa else "exponent" if bit < mantissa + exponent else "sign"


@dataclass(frozen=True)
class BitPoint:
    """One bit: the share of the score that is lost, and the share of positions that were not finite.

    Without a loss, `gaps` say what stood in the way.
    """

    bit: int
    part: str
    loss: Interval | None
    nonfinite: float
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True)
class BitCurve:
    """All bits of one operator's outputs in one format, the lowest first."""

    operator: str
    dtype: str
    rate: float
    metric: str
    points: tuple[BitPoint, ...]


@dataclass(frozen=True)
class BitCurves:
    """The curves that were measured."""

    curves: tuple[BitCurve, ...]

    def merged(self, others: Iterable[BitCurve]) -> BitCurves:
        """These and others; of two for one operator, format and rate the other one."""
        named = {(one.operator, one.dtype, one.rate): one for one in (*self.curves, *others)}
        return BitCurves(tuple(named[key] for key in sorted(named)))


def bit_question(
    setting: Setting, operators: tuple[str, ...], dtype: str, positions: int, rate: float = RATE
) -> LossQuestion:
    """Every bit of every operator."""
    strange = [name for name in operators if name not in setting.operators]
    if strange or not operators:
        raise unknown_name("operator of this model", strange[0] if strange else "", setting.operators)
    if not 0 < rate <= 1:
        raise BadInputError(f"bit rate {rate!r}: expected a share of the outputs above 0, up to 1.")
    flips = [(name, bit) for name in operators for bit in range(width(dtype))]
    faults = tuple((f"{name} {bit}", _flip(name, bit, rate)) for name, bit in flips)
    return LossQuestion(setting, faults, positions)


def _flip(operator: str, bit: int, rate: float) -> Injection:
    return Injection.of(fault("bit_flip", 1.0, bit=bit, rate=rate), operators=operator)


def bit_curves(
    found: Mapping[str, Lost], operators: tuple[str, ...], dtype: str, metric: str, rate: float
) -> tuple[BitCurve, ...]:
    """The curves from what every flip cost."""
    return tuple(
        BitCurve(
            name, dtype, rate, metric, tuple(_point(found[f"{name} {bit}"], dtype, bit) for bit in range(width(dtype)))
        )
        for name in operators
    )


def _point(lost: Lost, dtype: str, bit: int) -> BitPoint:
    return BitPoint(bit, part_of(dtype, bit), lost.loss, lost.rate, lost.gaps)
