"""Each fault against values worked out by hand, and the product that can be computed again."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from noisescope.core.errors import BadInputError
from noisescope.core.records import fault
from noisescope.inject.keyed import Draw
from noisescope.inject.kinds import Call, Product
from noisescope.inject.landing import corrupt


def broken(kind: str, y: Tensor, magnitude: float = 0.3, *, seed: int = 1, **params: Any) -> Tensor:
    product = params.pop("product", None)
    return corrupt(y, fault(kind, magnitude, **params), magnitude, Call(Draw(seed), Draw(50), product))


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4)).to(dtype)


def test_dead_zone() -> None:
    y = torch.tensor([0.2, -0.5, 1.0, -7.0])
    # rms = sqrt((0.04 + 0.25 + 1 + 49) / 4) = 3.546; times 0.2 = 0.709
    assert broken("dead_zone", y, 0.2).tolist() == pytest.approx([0.0, 0.0, 1.0, -7.0])
    assert broken("dead_zone", y, 0.2, limit=0.3).tolist() == pytest.approx([0.0, -0.5, 1.0, -7.0])
    assert broken("dead_zone", torch.tensor([0.3, math.inf, math.nan]), limit=0.5)[1] == math.inf


def test_saturation() -> None:
    y = torch.tensor([0.2, -0.5, 10.0, -9.0])
    assert broken("saturation", y, 0.05).tolist() == pytest.approx([0.2, -0.5, 0.5, -0.5])
    assert broken("saturation", y, 0.05, limit=9.5).tolist() == pytest.approx([0.2, -0.5, 9.5, -9.0])
    assert broken("saturation", y, 1.0).tolist() == y.tolist()
    # The range is that of the tensor, also where one channel alone saturates.
    assert broken("saturation", y, 0.04, channels=[1]).tolist() == pytest.approx([0.2, -0.4, 10.0, -9.0])
    hot = broken("saturation", torch.tensor([4.0, math.inf, -math.inf, math.nan]), 0.5)
    assert hot[:3].tolist() == [2.0, 2.0, -2.0]
    assert hot[3].isnan()


@pytest.mark.parametrize("limit", [-1.0, "high", True])
@pytest.mark.parametrize("kind", ["dead_zone", "saturation"])
def test_a_limit_that_is_none_is_refused(kind: str, limit: Any) -> None:
    with pytest.raises(BadInputError, match="limit"):
        broken(kind, torch.ones(3), limit=limit)


def test_spike() -> None:
    y = random(400, 500)
    after = broken("spike", y, 0.25)
    hit = after != y
    assert hit.float().mean() == pytest.approx(0.001, rel=0.3)
    assert torch.equal(after[hit], y[hit] * 4)
    assert not torch.equal(broken("spike", y, 0.25, seed=2) != y, hit)
    assert broken("spike", torch.full((8,), 60000.0, dtype=torch.float16), 0.1, rate=1.0).isinf().all()


def test_noise_has_the_rms_of_the_tensor_times_the_magnitude() -> None:
    y = random(300, 400) * 5
    moved = broken("noise", y, 0.01) - y
    assert moved.std() == pytest.approx(0.05, rel=0.02)
    assert not torch.equal(broken("noise", y, 0.01), broken("noise", y, 0.01, seed=2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bit_flip_flips_the_bit_that_was_asked_for(dtype: torch.dtype) -> None:
    y = random(100, 100, dtype=dtype)
    whole, width = (torch.int32, 32) if dtype == torch.float32 else (torch.int16, 16)
    assert torch.equal(broken("bit_flip", y, bit=width - 1, rate=1.0), -y)
    for bit in range(width):
        after = broken("bit_flip", y, bit=bit, rate=0.1)
        flipped = (after.view(whole) ^ y.view(whole)).long() & (2**width - 1)
        assert set(flipped.unique().tolist()) == {0, 1 << bit}
        assert (flipped != 0).float().mean() == pytest.approx(0.1, rel=0.15)
    with pytest.raises(BadInputError, match=f"0 to {width - 1}"):
        broken("bit_flip", y, bit=width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bit_flip_without_a_bit_takes_any_one(dtype: torch.dtype) -> None:
    y = random(200, 200, dtype=dtype)
    whole, width = (torch.int32, 32) if dtype == torch.float32 else (torch.int16, 16)
    after = broken("bit_flip", y, rate=0.5)
    flipped = (after.view(whole) ^ y.view(whole)).long() & (2**width - 1)
    seen, counts = flipped[flipped != 0].unique(return_counts=True)
    assert seen.tolist() == [1 << bit for bit in range(width)]
    assert counts.min() > 0.8 * counts.max()


def test_stuck_at_zero() -> None:
    y = random(50, 400)
    after = broken("stuck_at_zero", y)
    stuck = (after == 0).all(0)
    assert stuck.sum() == 4
    assert torch.equal(after[:, ~stuck], y[:, ~stuck])
    # Stuck hardware: other runs and other batches meet the same channels.
    assert torch.equal((broken("stuck_at_zero", y[:7], seed=9) == 0).all(0), stuck)
    assert (broken("stuck_at_zero", y[:, :5]) == 0).all(0).sum() == 1
    assert torch.equal(broken("stuck_at_zero", y, rate=0.0), y)
    named = broken("stuck_at_zero", y, channels=[1, 399])
    assert (named == 0).all(0).nonzero().flatten().tolist() == [1, 399]


def test_value_corruption() -> None:
    y = random(300, 300)
    after = broken("value_corruption", y, 0.5, rate=0.1)
    hit = after != y
    bound = 0.5 * y.abs().max()
    assert hit.float().mean() == pytest.approx(0.1, rel=0.05)
    assert after[hit].abs().max() <= bound
    assert after[hit].std() == pytest.approx(float(bound) / math.sqrt(3), rel=0.02)


def test_stuck_channel() -> None:
    y = torch.tensor([[3.0, 4.0], [-4.0, 3.0]])
    # rms = sqrt((9 + 16 + 16 + 9) / 4) = sqrt(12.5)
    assert broken("stuck_channel", y, 2.0).tolist() == [
        [pytest.approx(2 * math.sqrt(12.5)), 4.0],
        [pytest.approx(2 * math.sqrt(12.5)), 3.0],
    ]
    assert torch.equal(broken("stuck_channel", y, 2.0, channel=1)[:, 0], y[:, 0])
    for channel in (2, -1, 0.5):
        with pytest.raises(BadInputError, match="2 wide"):
            broken("stuck_channel", y, channel=channel)


def test_gain_drift_and_offset() -> None:
    y = torch.tensor([3.0, -4.0, math.inf])
    assert broken("gain_drift", y, 0.25).tolist() == [3.75, -5.0, math.inf]
    rms = math.sqrt(12.5)
    assert broken("offset", y, 0.5).tolist() == pytest.approx([3 + rms / 2, -4 + rms / 2, math.inf])
    # 1 + 0.001 in bf16 is 1: what is below half an ulp leaves no trace.
    assert broken("gain_drift", torch.ones(5, dtype=torch.bfloat16), 0.001).tolist() == [1.0] * 5


def test_exp_lut() -> None:
    logits = torch.tensor([[2.0, 1.3, 0.9, -1.0], [5.0, 5.0, 4.9, -math.inf]])
    after = broken("exp_lut", logits.softmax(-1), 0.5)
    # Distances to the largest: -0.7 -> -1.0, -1.1 -> -1.5, -3.0 -> -3.0 (or a step below, by rounding); -0.1 -> -0.5.
    coarse = torch.tensor([[0.0, -1.0, -1.5], [0.0, 0.0, -0.5]]).exp()
    assert torch.allclose(after[:, :3] / after[:, :1], coarse, atol=1e-6)
    assert torch.allclose(after.sum(-1), torch.ones(2), atol=1e-6)
    assert after[1, 3] == 0


def test_exp_lut_leaves_rows_that_are_no_softmax() -> None:
    p = torch.tensor([[0.0, 0.0], [math.nan, math.nan], [0.75, 0.25]])
    after = broken("exp_lut", p, 1.0)
    assert after[0].tolist() == [0.0, 0.0]
    assert after[1].isnan().all()
    assert after[2].tolist() == pytest.approx([1 / (1 + math.exp(-2)), 1 - 1 / (1 + math.exp(-2))])


def test_a_fine_exp_table_is_nearly_right() -> None:
    p = random(20, 64).softmax(-1)
    assert (broken("exp_lut", p, 1e-3) / p - 1).abs().max() < 2e-3


def slow_sum(partials: list[Tensor], dtype: torch.dtype) -> Tensor:
    total = torch.zeros(())
    for part in partials:
        total = (total + part).to(dtype).float()
    return total


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_low_precision_accumulation_rounds_between_chunks(name: str, dtype: torch.dtype) -> None:
    x, weight, bias = random(3, 5, 40), random(7, 40), random(7)
    y = torch.nn.functional.linear(x, weight, bias)
    after = broken("low_precision_accumulation", y, product=Product.of_linear(x, weight, bias), dtype=name, chunk=16)
    cuts = [slice(0, 16), slice(16, 32), slice(32, 40)]
    expected = slow_sum([*(x[..., c] @ weight[:, c].T for c in cuts), bias], dtype)
    assert torch.equal(after, expected)
    assert 0 < (after - y).abs().max() < 0.4


def test_low_precision_accumulation_swallows_small_terms() -> None:
    # In bf16 256 + 1 is 256, so that a sum of 1000 ones, one at a time, ends there.
    ones = torch.ones(1, 1000)
    product = Product.of_matmul(ones, ones.T)
    assert broken("low_precision_accumulation", ones @ ones.T, product=product, chunk=1).tolist() == [[256.0]]
    assert broken("low_precision_accumulation", ones @ ones.T, product=product, chunk=1000).tolist() == [[1000.0]]
    e4m3: dict[str, Any] = {"dtype": "fp8_e4m3", "chunk": 500}
    assert broken("low_precision_accumulation", ones @ ones.T, product=product, **e4m3).tolist() == [[448.0]]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4, 9), (9, 5)),
        ((2, 4, 9), (2, 9, 5)),
        ((2, 3, 4, 9), (9, 5)),
        ((9,), (9, 5)),
        ((4, 9), (9,)),
        ((9,), (9,)),
        ((3, 0), (0, 2)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_of_a_product_add_up_to_it(a: tuple[int, ...], b: tuple[int, ...], dtype: torch.dtype) -> None:
    left, right = random(*a, dtype=dtype), random(*b, dtype=dtype)
    parts = list(Product.of_matmul(left, right).chunks(4))
    assert all(part.dtype == torch.float32 for part in parts)
    assert torch.allclose(sum(parts[1:], start=parts[0]), left.float() @ right.float(), atol=1e-5)
    y = left @ right
    after = broken("low_precision_accumulation", y, product=Product.of_matmul(left, right), dtype="fp32")
    assert (after.shape, after.dtype) == (y.shape, y.dtype)
    assert torch.allclose(after, y, atol=0.1)


def test_a_linear_of_one_output_and_without_bias() -> None:
    x, weight = random(6, 20), random(20)
    y = torch.nn.functional.linear(x, weight)
    after = broken("low_precision_accumulation", y, product=Product.of_linear(x, weight), dtype="fp32")
    assert torch.allclose(after, y, atol=1e-5)


def test_low_precision_accumulation_says_what_it_lacks() -> None:
    y = torch.ones(2, 2)
    product = Product.of_matmul(torch.ones(2, 3), torch.ones(3, 2))
    with pytest.raises(BadInputError, match="no product of two matrices"):
        broken("low_precision_accumulation", y)
    with pytest.raises(BadInputError, match="chunk 0"):
        broken("low_precision_accumulation", y, product=product, chunk=0)
    with pytest.raises(BadInputError, match="Did you mean 'bf16'"):
        broken("low_precision_accumulation", y, product=product, dtype="bf-16")
    with pytest.raises(BadInputError, match=r"shape \(2, 2\) for an output of shape \(4, 1\)"):
        broken("low_precision_accumulation", torch.ones(4, 1), product=product)
