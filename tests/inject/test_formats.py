"""Round trips through number formats, to the bit: against the casts of torch and ml_dtypes and against slow loops."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from noisescope.core.errors import BadInputError
from noisescope.core.records import noise
from noisescope.inject.formats import FORMATS, GRIDS, power_below, round_to, spacing
from noisescope.inject.keyed import Draw
from noisescope.inject.kinds import Call
from noisescope.inject.landing import corrupt

CASTS: dict[str, Any] = {
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
}
TINY = np.float32(2.0**-126)


def through(kind: str, y: Tensor, **params: Any) -> Tensor:
    return corrupt(y, noise(kind, 0.7, **params), 0.7, Call(Draw(1), Draw(2)))


def patterns() -> Tensor:
    """All 65536 bf16 values, as float32."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).float()


def equal(a: Tensor, b: Tensor) -> bool:
    """Equal in every bit; any NaN equals any NaN."""
    both = a.isnan() & b.isnan()
    return bool(((a.view(torch.int32) == b.view(torch.int32)) | both).all())


def between() -> Tensor:
    """All bf16 values and their float32 neighbours: values beside every tie."""
    x = patterns()
    return torch.cat([x, x.nextafter(torch.tensor(math.inf)), x.nextafter(torch.tensor(-math.inf))])


def around_ties(dtype: torch.dtype) -> Tensor:
    """The ties between the finite values of a 16-bit dtype, and the float32 values beside each."""
    values = torch.arange(2**15, dtype=torch.int16).view(dtype).double()
    values = values[values.isfinite()]
    above = torch.cat([values[1:], 2 * values[-1:] - values[-2:-1]])
    ties = ((values + above) / 2).float()
    beside = [ties.nextafter(torch.tensor(end)) for end in (math.inf, -math.inf)]
    return torch.cat([ties, -ties, *beside])


@pytest.mark.parametrize("kind", CASTS)
def test_short_floats_equal_the_casts_of_ml_dtypes(kind: str) -> None:
    x = between()
    largest = GRIDS[kind].largest
    reference = x.nan_to_num(0.0).clamp(-largest, largest).numpy().astype(CASTS[kind]).astype(np.float32)
    expected = torch.where(x.isfinite(), torch.from_numpy(reference), x)
    assert equal(through(kind, x), expected)


@pytest.mark.parametrize(("kind", "dtype"), [("fp8_e4m3", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)])
def test_fp8_equals_the_casts_of_torch(kind: str, dtype: torch.dtype) -> None:
    x = between()
    x = x[x.abs() <= GRIDS[kind].largest]
    assert equal(through(kind, x), x.to(dtype).float())


@pytest.mark.parametrize(("kind", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_half_floats_equal_the_casts_of_torch_with_their_overflow(kind: str, dtype: torch.dtype) -> None:
    x = torch.cat([between(), around_ties(dtype)])
    assert equal(through(kind, x), x.to(dtype).float())
    assert through(kind, torch.tensor([3.4e38])).isinf().all()


def test_what_is_finite_in_the_format_stays_finite_in_the_tensor() -> None:
    y = torch.tensor([65504.0, -65504.0, math.inf], dtype=torch.float16)
    assert through("bf16", y).tolist() == [65504.0, -65504.0, math.inf]
    top = torch.finfo(torch.float32).max
    for kind in ("int8", "int4", "mxfp4", "fp8_e4m3", "fp16"):
        assert through(kind, torch.tensor([top, -top]), granularity="tensor").isfinite().all()


def test_integers_have_no_negative_zero() -> None:
    for kind in ("int8", "int4"):
        assert not through(kind, torch.tensor([-0.001, -0.0, 5.0])).signbit().any()


def round_half_even(value: np.float32) -> np.float32:
    return np.float32(round(float(value)))


def integer_block(block: list[np.float32], levels: int) -> list[np.float32]:
    sizes = [abs(v) for v in block if np.isfinite(v)]
    scale = max(np.float32(max(sizes, default=0.0)) / np.float32(levels), TINY)
    return [np.clip(round_half_even(v / scale), -levels, levels) * scale if np.isfinite(v) else v for v in block]


def to_e2m1(value: float) -> float:
    """The nearest of the eight magnitudes, ties to the one with the even mantissa bit."""
    ladder = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    size = min(abs(value), 6.0)
    best = min(range(8), key=lambda i: (abs(ladder[i] - size), i % 2))
    return math.copysign(ladder[best], value)


def mx_block(block: list[np.float32], levels: int) -> list[np.float32]:
    sizes = [abs(float(v)) for v in block if np.isfinite(v)]
    top = max(sizes, default=0.0)
    exponent = min(max(math.frexp(top)[1] - 1 - 2, -126), 127) if top else -126
    scale = 2.0**exponent
    return [np.float32(to_e2m1(float(v) / scale) * scale) if np.isfinite(v) else v for v in block]


def by_blocks(x: Tensor, size: int, code: Any, levels: int) -> Tensor:
    rows = x.reshape(-1, x.shape[-1]).numpy()
    coded = [
        [out for start in range(0, len(row), size) for out in code(list(row[start : start + size]), levels)]
        for row in rows
    ]
    return torch.tensor(np.array(coded, dtype=np.float32)).reshape(x.shape)


def sample() -> Tensor:
    """Rows of 77 values (a ragged tail for every block), each row of another size, with zeros and outliers."""
    made = torch.randn(12, 77, generator=torch.Generator().manual_seed(2))
    made *= torch.logspace(-30, 30, 12)[:, None]
    made[:, ::9] *= 40
    made[3, 32:64] = 0
    made[4, 2], made[5, 70], made[6, 40] = math.nan, math.inf, -math.inf
    return made


@pytest.mark.parametrize(("kind", "code", "levels"), [("int8", integer_block, 127), ("int4", integer_block, 7)])
@pytest.mark.parametrize("block", [1, 16, 32, 77, 100])
def test_integers_equal_a_slow_loop_over_blocks(kind: str, code: Any, levels: int, block: int) -> None:
    got = through(kind, sample(), granularity="block", block=block)
    expected = by_blocks(sample(), block, code, levels)
    assert torch.equal(got.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("block", [16, 32])
def test_mxfp4_equals_a_slow_loop_over_blocks(block: int) -> None:
    got = through("mxfp4", sample(), block=block)
    assert equal(got, by_blocks(sample(), block, mx_block, 0))


@pytest.mark.parametrize(("kind", "code", "levels"), [("int8", integer_block, 127), ("mxfp4", mx_block, 0)])
def test_blocks_over_all_bf16_patterns_equal_the_slow_loop(kind: str, code: Any, levels: int) -> None:
    x = patterns().reshape(-1, 256)
    got, expected = through(kind, x, granularity="block", block=32), by_blocks(x, 32, code, levels)
    assert bool(((got == expected) | (got.isnan() & expected.isnan())).all())


def test_all_bf16_patterns_stay_bf16_patterns() -> None:
    y = patterns().bfloat16()
    for kind in FORMATS:
        after = through(kind, y)
        assert after.dtype == torch.bfloat16
        assert torch.equal(after.view(torch.int16)[~y.isfinite()], y.view(torch.int16)[~y.isfinite()])


def test_the_defaults_are_those_of_the_vocabulary() -> None:
    x = torch.linspace(-1, 1, 64).reshape(1, 64)
    x[0, 0] = 1000
    # int8 has one scale per tensor: 1000 / 127 = 7.9 leaves nothing of values up to 1.
    assert through("int8", x).count_nonzero() == 1
    # int4 has one per block of 32: the first block holds the outlier, the second keeps its values.
    assert through("int4", x)[0, 1:32].count_nonzero() == 0
    assert through("int4", x)[0, 32:].count_nonzero() > 28


def test_granularities_by_hand() -> None:
    x = torch.tensor([[1.0, 100.0], [0.3, 254.0]])
    # tensor: scale 254 / 127 = 2, ties to even: 0.5 -> 0, 0.15 -> 0.
    assert through("int8", x).tolist() == [[0.0, 100.0], [0.0, 254.0]]
    # channel: scales 1 / 127 and 2; 0.3 * 127 = 38.1 -> 38.
    assert through("int8", x, granularity="channel").flatten().tolist() == pytest.approx([1.0, 100.0, 38 / 127, 254.0])
    # block of 2 along the row: scales 100 / 127 and 2.
    rows = through("int8", x, granularity="block", block=2)
    assert rows.flatten().tolist() == pytest.approx([100 / 127, 100.0, 0.0, 254.0])
    # 1-d channel: every value is its own channel and survives.
    assert through("int4", x[0], granularity="channel").tolist() == pytest.approx([1.0, 100.0])


@pytest.mark.parametrize("granularity", ["tensor", "channel", "block"])
def test_a_scale_puts_the_peak_on_the_largest_value(granularity: str) -> None:
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(1)) * 1e-4
    for kind in ("fp16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1", "int8", "int4"):
        after = through(kind, x, granularity=granularity)
        where = x.abs().argmax()
        assert after.flatten()[where] == pytest.approx(float(x.flatten()[where]), rel=1e-6)
    # Without a scale nothing is left of values this small in fp4.
    assert not through("fp4_e2m1", x).any()


def test_scaled_fp8_by_hand() -> None:
    # Peak 4.48 -> scale 0.01: 1.0 is 100, whose neighbours in e4m3 are 96 and 104, a tie that goes to the even 96.
    x = torch.tensor([4.48, 1.01, -0.5])
    after = through("fp8_e4m3", x, granularity="tensor")
    assert after.tolist() == pytest.approx([4.48, 1.04, -0.48], rel=1e-5)


@pytest.mark.parametrize("kind", FORMATS)
def test_blocks_of_zeros_and_of_nothing_finite_stay(kind: str) -> None:
    x = torch.zeros(2, 64)
    x[1, :32] = math.nan
    after = through(kind, x, granularity="block")
    assert not after[0].any()
    assert after[1, :32].isnan().all()
    assert not after[1, 32:].any()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_value_that_is_not_finite_does_not_poison_its_block(kind: str) -> None:
    x = torch.linspace(0.1, 5.0, 32)
    x[7] = 0
    poisoned = x.clone()
    poisoned[7] = math.inf
    sound = poisoned.isfinite()
    for granularity in ("tensor", "block"):
        expected = through(kind, x, granularity=granularity)
        assert torch.equal(through(kind, poisoned, granularity=granularity)[sound], expected[sound])


@pytest.mark.parametrize("kind", FORMATS)
def test_a_second_round_trip_through_a_fixed_grid_changes_nothing(kind: str) -> None:
    x = sample()
    grid = {"granularity": "none"} if FORMATS[kind].bare else {}
    once = through(kind, x, **grid)
    twice = through(kind, once, **grid)
    assert torch.allclose(once, twice, rtol=1e-6, atol=0, equal_nan=True)


def test_parameters_that_make_no_sense_are_refused() -> None:
    x = torch.ones(4)
    with pytest.raises(BadInputError, match="Did you mean 'block'"):
        through("int4", x, granularity="blok")
    with pytest.raises(BadInputError, match="no range without a scale"):
        through("int8", x, granularity="none")
    with pytest.raises(BadInputError, match="block 0"):
        through("mxfp4", x, block=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_and_spacings_agree_with_frexp(dtype: torch.dtype) -> None:
    x = torch.cat([patterns(), torch.tensor([2.0**-126, 1.9999999, 2.0])]).to(dtype)
    x = x[x.isfinite() & (x.abs() >= 2.0**-126)]
    exponent = torch.frexp(x).exponent.to(dtype) - 1
    assert torch.equal(power_below(x), exponent.exp2())
    assert spacing(torch.tensor([0.0, 1.0, 448.0], dtype=dtype), GRIDS["fp8_e4m3"]).tolist() == [2.0**-9, 0.125, 32.0]


def test_rounding_in_float64_happens_once() -> None:
    # Just above the tie between 1 and 1.125: float32 would first round it down onto the tie, which goes to 1.
    x = torch.tensor([1.0625 + 1e-12], dtype=torch.float64)
    assert round_to("fp8_e4m3", x).tolist() == [1.125]


@pytest.mark.parametrize("name", GRIDS)
def test_rounding_keeps_nan_and_saturates_or_overflows(name: str) -> None:
    # Quiet and signalling NaN with the payloads next to infinity and to the sign bit.
    odd = torch.tensor([0x7FC00000, 0x7F800001, 0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    assert round_to(name, odd).isnan().all()
    beyond = round_to(name, torch.tensor([0.0, math.inf, -math.inf]))
    largest = math.inf if name in ("bf16", "fp16", "fp32", "fp64") else GRIDS[name].largest
    assert beyond[1:].tolist() == [largest, -largest]
