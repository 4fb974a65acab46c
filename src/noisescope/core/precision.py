"""Number formats of weights with their real size in bits, and the record of which weights get which: a precision map.

It rounds nothing and chooses nothing. Bits are those of the codes and of every scale and zero point that belongs to
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from noisescope.core.errors import BadInputError, unknown_name

_SCALE = 16


@dataclass(frozen=True)
class WeightFormat:
    """A format of weights. `block` neighbours in a row share a scale; None is one scale per row.

    `number` is what one code is: an integer, with a zero point if `zero_bits` is not 0, or a float of inject.formats.
    """

    name: str
    number: str
    bits: int
    block: int | None = None
    scale_bits: int = 0
    zero_bits: int = 0

    def size(self, rows: int, columns: int) -> int:
        """The bits of a matrix: its codes, and a scale and a zero point per block of each row."""
        blocks = -(-columns // self.block) if self.block else 1
        return rows * (columns * self.bits + blocks * (self.scale_bits + self.zero_bits))

    @classmethod
    def of(cls, text: str) -> WeightFormat:
        """The format that a text names: int4, or int4:128 for blocks of another length."""
        name, _, length = text.strip().partition(":")
        if name not in WEIGHT_FORMATS:
            raise unknown_name("weight format", name, WEIGHT_FORMATS)
        form = WEIGHT_FORMATS[name]
        if not length:
            return form
        if name not in BLOCKED:
            raise BadInputError(f"{text!r}: {name} has no blocks whose length could be chosen; write {name}.")
        if not length.isdecimal() or int(length) < 1:
            raise BadInputError(f"{text!r}: expected a length of blocks such as {name}:128.")
        block = int(length)
        return form if block == form.block else replace(form, name=f"{name}:{block}", block=block)


def _row(form: WeightFormat) -> tuple[str, WeightFormat]:
    return form.name, form


WEIGHT_FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    dict(
        map(
            _row,
            (
                WeightFormat("bf16", "bf16", 16),
                WeightFormat("fp8", "fp8_e4m3", 8, None, _SCALE),
                WeightFormat("int8", "integer", 8, None, _SCALE),
                WeightFormat("int6", "integer", 6, 32, _SCALE),
                WeightFormat("int5", "integer", 5, 32, _SCALE),
                WeightFormat("int4", "integer", 4, 32, _SCALE),
                WeightFormat("uint4", "integer", 4, 32, _SCALE, zero_bits=4),
                # The shared exponent is 8 bits, and its blocks are 32 by definition (OCP MX 1.0).
                WeightFormat("mxfp4", "mxfp4", 4, 32, 8),
            ),
        )
    )
)
BLOCKED = ("int4", "int5", "int6", "uint4")


@dataclass(frozen=True)
class Linear:
    """The weight of one linear layer, as output rows by input columns."""

    path: str
    rows: int
    columns: int

    @property
    def weights(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class Group:
    """Linear layers that get one format together, because a deployment computes them as one. `layer` as in a Site."""

    name: str
    layer: int | None
    linears: tuple[Linear, ...]

    @property
    def weights(self) -> int:
        """How many weights it has."""
        return sum(linear.weights for linear in self.linears)

    @property
    def part(self) -> str:
        """The path within its parent, such as q_proj+k_proj+v_proj."""
        return self.name.rpartition(".")[2]

    def size(self, form: WeightFormat) -> int:
        """Its bits in a format."""
        return sum(form.size(linear.rows, linear.columns) for linear in self.linears)


@dataclass(frozen=True)
class Option:
    """A format that a group could get: its bits, and the predicted harm in nats of KL per token with its error."""

    format: str
    bits: int
    harm: float
    error: float = 0.0


@dataclass(frozen=True)
class Choice:
    """A group, what it could get, and what it gets."""

    group: Group
    format: str
    options: tuple[Option, ...]

    @property
    def option(self) -> Option:
        """What it gets."""
        return next(option for option in self.options if option.format == self.format)


@dataclass(frozen=True)
class Measured:
    """KL to the original in nats per token, with its interval over samples, of weights that were really rounded.

    `above` is how much more that is than the map's on the same samples; None for the map itself.
    """

    name: str
    average_bits: float
    estimate: float
    low: float
    high: float
    above: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class PrecisionMap:
    """Which weights get which format. `average_bits` counts scales and zero points, over all weights in the groups.

    `remark` says why the average is below the target where it is; `left_out` which weights are not in the map.
    """

    target: float
    rule: str
    choices: tuple[Choice, ...]
    tokens: int
    draws: int
    remark: str = ""
    left_out: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()
    samples: int = 0
    confidence: float = 0.95

    @property
    def weights(self) -> int:
        """How many weights the map is about."""
        return sum(choice.group.weights for choice in self.choices)

    @property
    def average_bits(self) -> float:
        return sum(choice.option.bits for choice in self.choices) / self.weights

    @property
    def harm(self) -> float:
        """What the groups' predictions add up to."""
        return sum(choice.option.harm for choice in self.choices)

    @property
    def formats(self) -> dict[str, str]:
        """The format of every linear layer, by path."""
        return {linear.path: choice.format for choice in self.choices for linear in choice.group.linears}
