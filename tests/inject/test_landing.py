"""Landing keeps the rms of an error at every scale, its zero mean, and the bits of what it does not touch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from noisescope.core.records import noise
from noisescope.inject.keyed import Draw
from noisescope.inject.kinds import Call
from noisescope.inject.landing import corrupt, land


def lognormal(dtype: torch.dtype, count: int) -> Tensor:
    """Magnitudes over four decades with random signs, as activations have them."""
    draws = torch.randn(2, count, generator=torch.Generator().manual_seed(3))
    return (draws[0].exp() * draws[1].sign() * 0.3).to(dtype)


def call(seed: int = 1) -> Call:
    return Call(Draw(seed), Draw(2))


def realised(y: Tensor, after: Tensor) -> float:
    sound = y != 0
    moved = (after.double() - y.double())[sound] / y.double()[sound]
    return float(moved.square().mean().sqrt())


@pytest.mark.parametrize("kind", ["relative_gaussian", "relative_uniform"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-4, 3e-4, 1e-3, 5e-3, 5e-2])
def test_the_relative_noise_that_was_asked_for_arrives(kind: str, dtype: torch.dtype, scale: float) -> None:
    # At 1e-4 one bf16 value in 3000 moves: the rms of so few is known to 5 % only from many values.
    count = 2_000_000 if scale == 1e-4 and dtype == torch.bfloat16 else 400_000
    y = lognormal(dtype, count)
    after = corrupt(y, noise(kind, scale), scale, call())
    assert realised(y, after) == pytest.approx(scale, rel=0.05)
    moved = (after.double() - y.double()) / y.double()
    assert abs(moved.mean()) < 5 * scale / math.sqrt(count)


@pytest.mark.parametrize("scale", [1e-8, 1e-7, 1e-6, 7e-6, 1e-4, 1e-2])
def test_float32_keeps_noise_far_below_and_far_above_its_eps(scale: float) -> None:
    y = lognormal(torch.float32, 400_000)
    assert realised(y, corrupt(y, noise(scale=scale), scale, call())) == pytest.approx(scale, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kind", ["rms_gaussian", "absolute_gaussian"])
def test_outlier_channels_get_the_noise_of_the_rest(kind: str, dtype: torch.dtype) -> None:
    y = torch.ones(200_000, 4)
    y[:, 2] = 96.0
    y = y.to(dtype)
    scale = 0.05 if kind == "absolute_gaussian" else 0.05 / 48.01
    moved = corrupt(y, noise(kind, scale), scale, call()).double() - y.double()
    assert moved.square().mean(0).sqrt().tolist() == pytest.approx([0.05] * 4, rel=0.05)


def test_a_channel_far_above_the_rms_gets_its_noise_at_scales_that_others_take_unrounded() -> None:
    y = torch.ones(4000, 500, dtype=torch.bfloat16)
    y[:, 7] = 520.0
    moved = corrupt(y, noise("rms_gaussian", 0.032), 0.032, call())[:, 7].double() - 520
    assert moved.square().mean().sqrt() == pytest.approx(0.032 * math.sqrt(520**2 / 500 + 1), rel=0.2)


def test_a_rounding_error_of_the_own_dtype_arrives() -> None:
    y = torch.full((100_000,), 1.5, dtype=torch.bfloat16)
    moved = (corrupt(y, noise("ulp", 1.0), 1.0, call()) - y).double() * 2**7
    assert moved.square().mean() == pytest.approx(1 / 12, rel=0.05)


def test_rounding_is_independent_between_runs_and_of_the_noise() -> None:
    y = torch.ones(500_000, dtype=torch.bfloat16)
    one, two = (corrupt(y, noise(scale=1e-3), 1e-3, call(seed)) != y for seed in (1, 2))
    assert (one & two).float().mean() == pytest.approx(float(one.float().mean() * two.float().mean()), rel=0.3)


def test_channels_and_a_fraction_reach_what_both_reach() -> None:
    y = torch.ones(4000, 4)
    moved = corrupt(y, noise(channels=[1, 2], fraction=0.25), 0.05, call()) != y
    assert moved.float().mean(0).tolist() == pytest.approx([0.0, 0.25, 0.25, 0.0], abs=0.03)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_constant_error_keeps_its_second_moment(dtype: torch.dtype) -> None:
    y = torch.full((200_000,), 1.25, dtype=dtype)
    work = torch.float64 if dtype == torch.float64 else torch.float32
    for ulps in (0.1, 0.5, 1.0, 2.3, 17.6):
        size = ulps * torch.finfo(dtype).eps
        after = land(y, torch.full(y.shape, -size, dtype=work), Draw(3))
        moved = (y - after).double() / torch.finfo(dtype).eps
        assert moved.square().mean().sqrt() == pytest.approx(ulps, rel=0.02)
        assert set(torch.unique(moved).tolist()) <= {float(math.floor(ulps)), float(math.ceil(ulps))}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_error_zero_keeps_every_bit_pattern(dtype: torch.dtype) -> None:
    y = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    after = land(y, torch.zeros(y.shape), Draw(1))
    assert torch.equal(after.view(torch.int16), y.view(torch.int16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_ulp_is_the_step_to_the_next_value_at_every_finite_one(dtype: torch.dtype) -> None:
    patterns = torch.arange(0, 2**15, dtype=torch.int16)
    y = patterns.view(dtype)
    y = y[y.isfinite()]
    steps = y[1:].double() - y[:-1].double()
    after = land(y[:-1], steps.float(), Draw(1))
    assert torch.equal(after, y[1:])


def test_errors_larger_than_the_value_land_beside_it() -> None:
    y = torch.tensor([0.0, 1e-30, -0.5, 0.0], dtype=torch.bfloat16)
    after = land(y, torch.tensor([1.0, -3.0, 2.0, 0.1]), Draw(1))
    assert after.tolist() == pytest.approx([1.0, -3.0, 1.5, 0.1], rel=2**-8)


def test_the_finite_stays_finite_and_the_rest_stays() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        top = torch.finfo(dtype).max
        y = torch.tensor([top, -top, math.inf, -math.inf, math.nan, 1.0], dtype=dtype)
        push = torch.tensor([math.inf, -math.inf, 1.0, math.inf, 1.0, math.inf])
        after = land(y, push.double() if dtype == torch.float64 else push, Draw(1))
        assert after[:4].tolist() == [top, -top, math.inf, -math.inf]
        assert after[4].isnan()
        assert after[5] == top


def test_landing_is_unharmed_where_the_machine_flushes_subnormals() -> None:
    flushes = torch.set_flush_denormal(True)
    try:
        y = torch.tensor([0.0, 1e-39, 1.0], dtype=torch.bfloat16)
        after = land(y, torch.tensor([0.0, 0.0, 0.5]), Draw(1))
        full = corrupt(torch.zeros(64, dtype=torch.bfloat16), noise("mxfp4", 1.0), 1.0, call())
    finally:
        torch.set_flush_denormal(False)
    assert after.isfinite().all() or not flushes
    assert not full.any()
