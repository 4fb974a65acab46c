"""The contract that every corruption kind keeps, run over the whole vocabulary, and the noises by their statistics."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from noisescope.core.errors import BadInputError
from noisescope.core.records import Corruption, freeze
from noisescope.core.vocabulary import KINDS, NOISE_KINDS
from noisescope.inject.keyed import Draw
from noisescope.inject.kinds import ERRORS, VALUES, Call, Product
from noisescope.inject.landing import corrupt

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CASES = [
    pytest.param(kind, dtype, id=f"{kind}-{str(dtype)[6:]}")
    for kind in KINDS
    for dtype in (*DTYPES, *((torch.float64,) if kind in NOISE_KINDS else ()))
]
NOISES = [kind for kind, spec in KINDS.items() if spec.family == "noise"]
FORMATS = [kind for kind, spec in KINDS.items() if spec.family == "format"]
FAULTS = [kind for kind, spec in KINDS.items() if spec.family == "fault"]
RANDOM = [*NOISES, "spike", "noise", "bit_flip", "value_corruption"]
STRENGTH = {"ulp": 3.0, "exp_lut": 0.5}
# Rates high enough for a small tensor to be hit.
PARAMS: dict[str, dict[str, Any]] = {
    "spike": {"rate": 0.2},
    "bit_flip": {"rate": 0.5, "bit": 6},
    "value_corruption": {"rate": 0.2},
    "low_precision_accumulation": {"dtype": "fp8_e5m2"},
}


def asked(kind: str, **params: Any) -> Corruption:
    return Corruption(kind, 0.3, freeze({**PARAMS.get(kind, {}), **params}), hardware=kind in FAULTS)


def call(y: Tensor, seed: int = 1) -> Call:
    """A call whose product, for the kind that asks for one, is y: y @ 1."""
    rows = y.float() if y.dim() else y.float().reshape(1)
    product = Product.of_matmul(rows, torch.eye(rows.shape[-1]) if y.dim() else torch.ones(1))
    return Call(Draw(seed), Draw(99), product)


def values(kind: str, dtype: torch.dtype, *shape: int) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    return (made.softmax(-1) if kind == "exp_lut" and made.dim() else made).to(dtype)


def run(kind: str, y: Tensor, seed: int = 1, **params: Any) -> Tensor:
    return corrupt(y, asked(kind, **params), STRENGTH.get(kind, 0.3), call(y, seed))


def bits(y: Tensor) -> Tensor:
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[y.element_size()]
    return y.contiguous().view(whole) if y.is_floating_point() else y


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def test_the_registry_holds_the_names_of_the_vocabulary() -> None:
    assert {*ERRORS, *VALUES} == set(KINDS)
    assert not {*ERRORS} & {*VALUES}


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_strength_zero_keeps_every_bit(kind: str, dtype: torch.dtype) -> None:
    y = torch.cat([values(kind, dtype, 40), torch.tensor([math.nan, math.inf, -0.0, 0.0], dtype=dtype)])
    after = corrupt(y, asked(kind), 0.0, call(y))
    assert same(after, y)
    assert after.data_ptr() != y.data_ptr()


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_it_changes_something_and_only_its_copy(kind: str, dtype: torch.dtype) -> None:
    y = values(kind, dtype, 12, 48)
    y[0, 0] = 3.01e-7  # so that fp16 has something to round in bf16
    kept = y.clone()
    state = torch.get_rng_state()
    after = run(kind, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert same(y, kept)
    assert (after.shape, after.dtype, after.device) == (y.shape, y.dtype, y.device)
    assert same(after, y) == (kind == str(dtype)[6:].replace("bfloat", "bf").replace("float", "fp"))


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_equal_draws_give_equal_bits_and_other_draws_other_noise(kind: str, dtype: torch.dtype) -> None:
    y = values(kind, dtype, 12, 48)
    assert same(run(kind, y), run(kind, y))
    assert same(run(kind, y), run(kind, y, seed=2)) == (kind not in RANDOM)


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_layout_does_not_matter(kind: str, dtype: torch.dtype) -> None:
    y = values(kind, dtype, 48, 12).t()
    assert not y.is_contiguous()
    after, packed = run(kind, y), run(kind, y.contiguous())
    # Sums run in another order: an rms may differ in its last bit.
    assert torch.allclose(after, packed, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_odd_shapes_are_kept(kind: str, dtype: torch.dtype) -> None:
    for shape in [(), (0,), (0, 4), (4, 0), (1,), (2, 1, 3)]:
        y = values(kind, dtype, *shape)
        after = run(kind, y)
        assert (after.shape, after.dtype) == (y.shape, y.dtype)


@pytest.mark.parametrize(("kind", "dtype"), [c for c in CASES if c.values[0] in NOISE_KINDS])
def test_noises_and_formats_leave_what_is_not_finite(kind: str, dtype: torch.dtype) -> None:
    y = values(kind, dtype, 64)
    y[[3, 20, 40]] = torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype)
    after = run(kind, y)
    assert same(after[[3, 20, 40]], y[[3, 20, 40]])
    assert after.isfinite().sum() == 61
    # Peaks see the finite values alone: the rest is as if 0 stood there. An rms also counts them.
    other = y.nan_to_num(0.0, 0.0, 0.0)
    sound = y.isfinite()
    if kind != "rms_gaussian":
        assert same(after[sound], run(kind, other)[sound])


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_faults_keep_nan_where_they_do_not_replace_it(kind: str, dtype: torch.dtype) -> None:
    y = values(kind, dtype, 4, 16)
    y[1, 3] = math.nan
    none: dict[str, Any] = {"rate": 0.0} if "rate" in KINDS[kind].params else {}
    after = run(kind, y, **none)
    assert after[1, 3].isnan()
    rows = [0, 2, 3] if kind != "low_precision_accumulation" else []
    assert after[rows].isfinite().all()


@pytest.mark.parametrize(("kind", "dtype"), [c for c in CASES if c.values[0] in (*NOISES, "noise")])
def test_noise_never_leaves_the_finite_range(kind: str, dtype: torch.dtype) -> None:
    top = torch.finfo(dtype).max
    y = torch.full((500,), top, dtype=dtype)
    y[::2] *= -1
    y[::5] = 0
    for strength in (0.01, 5.0, 1e30, 1e300):
        after = corrupt(y, asked(kind), strength, call(y))
        assert after.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_tensors_that_are_not_floating_point_pass(kind: str, dtype: torch.dtype) -> None:
    y = torch.arange(24).reshape(4, 6).to(dtype)
    assert same(run(kind, y), y)


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_leave_the_host_that_computes_in_float64_alone(kind: str) -> None:
    y = values(kind, torch.float64, 4, 16)
    assert same(run(kind, y), y)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_given_channels_are_reached(kind: str) -> None:
    y = values(kind, torch.float32, 20, 48)
    after = run(kind, y, channels=[0, 5, 47])
    rest = [c for c in range(48) if c not in (0, 5, 47)]
    assert same(after[:, rest], y[:, rest])
    assert not same(after, y)
    if kind != "stuck_at_zero":
        assert same(after[:, [0, 5, 47]], run(kind, y)[:, [0, 5, 47]])


@pytest.mark.parametrize("kind", KINDS)
def test_a_fraction_is_the_same_elements_in_every_run(kind: str) -> None:
    y = values(kind, torch.float32, 40, 48)
    whole, part = run(kind, y), run(kind, y, fraction=0.4)
    reached = bits(part) != bits(y)
    assert torch.equal(bits(part)[reached], bits(whole)[reached])
    if kind in NOISES:
        assert 0.35 < reached.float().mean() < 0.45
        assert torch.equal(bits(run(kind, y, seed=2, fraction=0.4)) != bits(y), reached)
    assert same(run(kind, y, fraction=0.0), y)


@pytest.mark.parametrize("kind", KINDS)
def test_channels_outside_the_tensor_are_refused(kind: str) -> None:
    y = values(kind, torch.float32, 4, 16)
    with pytest.raises(BadInputError, match="16 wide"):
        run(kind, y, channels=[3, 16])
    with pytest.raises(BadInputError, match="no channels"):
        run(kind, y, channels=[])


@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_comes_out(kind: str) -> None:
    y = values(kind, torch.float32, 4, 16).requires_grad_()
    assert not run(kind, y).requires_grad


@pytest.mark.parametrize("strength", [-1.0, math.nan, math.inf, "1", True])
def test_a_strength_that_is_none_is_refused(strength: Any) -> None:
    with pytest.raises(BadInputError, match="strength"):
        corrupt(torch.ones(3), asked("noise"), strength, call(torch.ones(3)))


def test_a_dtype_without_a_grid_is_refused() -> None:
    with pytest.raises(BadInputError, match="float8"):
        corrupt(torch.ones(3).to(torch.float8_e4m3fn), asked("noise"), 0.1, Call(Draw(1), Draw(2)))


def error(kind: str, y: Tensor, strength: float, **params: Any) -> Tensor:
    return ERRORS[kind](y, strength, Call(Draw(7), Draw(8)), asked(kind, **params).spec_params)


# Standard deviation of the error on 1, -4 and 0 in a tensor of rms 2; an ulp of bf16 is 2^-7 at 1, 2^-5 at 4.
SPREAD = {
    "relative_gaussian": (0.1, 0.4, 0.0),
    "relative_uniform": (0.1, 0.4, 0.0),
    "absolute_gaussian": (0.1, 0.1, 0.1),
    "rms_gaussian": (0.2, 0.2, 0.2),
    "noise": (0.2, 0.2, 0.2),
    "ulp": (0.1 * 2**-7 / math.sqrt(12), 0.1 * 2**-5 / math.sqrt(12), 0.0),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_errors_have_the_mean_and_the_spread_of_their_kind(kind: str, dtype: torch.dtype) -> None:
    count = 100_000
    # rms^2 = (2 * 1 + 3 * 16 + 7.5 * 0 + ...) / 12.5 = 4
    y = torch.cat([torch.ones(2 * count), torch.full((3 * count,), -4.0), torch.zeros(15 * count // 2)]).to(dtype)
    drawn = error(kind, y, 0.1)
    assert drawn.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    parts = torch.split(drawn.double(), [2 * count, 3 * count, 15 * count // 2])
    for part, spread in zip(parts, SPREAD[kind], strict=True):
        assert part.std() == pytest.approx(spread, rel=0.01)
        assert abs(part.mean()) <= 5 * spread / math.sqrt(len(part))


def test_gaussian_errors_are_gaussian_and_uniform_ones_bounded() -> None:
    y = torch.ones(400_000)
    gauss = error("relative_gaussian", y, 1.0)
    assert (gauss**4).mean() == pytest.approx(3.0, rel=0.03)
    assert (gauss.abs() < 1).float().mean() == pytest.approx(0.6827, abs=0.003)
    flat = error("relative_uniform", y, 1.0)
    assert math.sqrt(3) * 0.999 < flat.abs().max() <= math.sqrt(3) * 1.000001
    assert (flat**4).mean() == pytest.approx(9 / 5, rel=0.01)


@pytest.mark.parametrize(
    ("name", "value", "spacing"),
    [
        ("bf16", 1.0, 2.0**-7),
        ("bf16", -1.99, 2.0**-7),
        ("fp16", 3.0, 2.0**-9),
        ("fp16", 1e-7, 2.0**-24),
        ("fp8_e4m3", 300.0, 32.0),
        ("fp8_e4m3", 1e-4, 2.0**-9),
        ("fp8_e5m2", 1.0, 0.25),
        ("fp32", 1.0, 2.0**-23),
        ("fp8_e4m3", 5000.0, 512.0),
    ],
)
def test_ulp_noise_is_uniform_over_the_ulps_of_its_dtype(name: str, value: float, spacing: float) -> None:
    drawn = error("ulp", torch.full((50_000,), value), 3.0, dtype=name).abs() / spacing
    assert 1.49 < drawn.max() <= 1.5
    assert drawn.mean() == pytest.approx(0.75, rel=0.02)


def test_an_unknown_dtype_of_ulp_noise_is_refused() -> None:
    with pytest.raises(BadInputError, match="Did you mean 'fp8_e4m3'"):
        error("ulp", torch.ones(3), 1.0, dtype="fp8_e4m3fn")


def test_the_rms_counts_finite_values_alone() -> None:
    y = torch.tensor([3.0, math.nan, 4.0, math.inf, -5.0]).repeat(20_000)
    assert error("rms_gaussian", y, 1.0).std() == pytest.approx(math.sqrt(50 / 3), rel=0.01)


def test_the_rms_of_values_whose_squares_overflow_or_vanish() -> None:
    for size in (1e30, 1e-30):
        drawn = error("rms_gaussian", torch.full((10_000,), size), 1.0)
        assert drawn.std() == pytest.approx(size, rel=0.05)
