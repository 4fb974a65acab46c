"""Weights rounded to a format equal a slow loop over rows and blocks."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from noisescope.core.precision import WeightFormat
from noisescope.inject.weights import rounded

WEIGHT = torch.randn(5, 70, generator=torch.Generator().manual_seed(0))


def short(value: float) -> float:
    return float(np.float32(value).astype(ml_dtypes.bfloat16))


def by_hand(row: list[float], name: str) -> list[float]:
    """One block."""
    peak = max(map(abs, row))
    if name == "mxfp4":
        scale = 2.0 ** (math.floor(math.log2(peak)) - 2)
        return [float(np.float32(np.clip(x / scale, -6, 6)).astype(ml_dtypes.float4_e2m1fn)) * scale for x in row]
    if name == "fp8":
        scale = short(peak / 448)
        return [float(np.clip(np.float32(x / scale), -448, 448).astype(ml_dtypes.float8_e4m3fn)) * scale for x in row]
    if name == "uint4":
        low, high = min(*row, 0.0), max(*row, 0.0)
        scale = short((high - low) / 15)
        zero = round(-low / scale)
        return [(min(15, max(0, round(x / scale) + zero)) - zero) * scale for x in row]
    top = {"int8": 127, "int6": 31, "int5": 15, "int4": 7}[name.partition(":")[0]]
    scale = short(peak / top)
    return [max(-top, min(top, round(x / scale))) * scale for x in row]


@pytest.mark.parametrize("name", ["fp8", "int8", "int6", "int5", "int4", "int4:64", "uint4", "mxfp4"])
def test_it_equals_a_slow_loop(name: str) -> None:
    form = WeightFormat.of(name)
    width = form.block or 70
    expected = [
        [x for start in range(0, 70, width) for x in by_hand(row[start : start + width], name.partition(":")[0])]
        for row in WEIGHT.tolist()
    ]
    assert torch.allclose(rounded(WEIGHT, form), torch.tensor(expected), rtol=1e-6, atol=0)


def test_bf16_is_a_cast_and_changes_nothing_of_a_bfloat16_model() -> None:
    form = WeightFormat.of("bf16")
    assert torch.equal(rounded(WEIGHT, form), WEIGHT.bfloat16().float())
    assert torch.equal(rounded(WEIGHT.bfloat16(), form), WEIGHT.bfloat16())


@pytest.mark.parametrize("name", ["fp8", "int8", "int4", "uint4", "mxfp4"])
def test_zeros_stay_zeros_and_the_dtype_stays(name: str) -> None:
    form = WeightFormat.of(name)
    assert torch.equal(rounded(torch.zeros(2, 40), form), torch.zeros(2, 40))
    assert rounded(WEIGHT.bfloat16(), form).dtype == torch.bfloat16


def test_more_bits_are_nearer() -> None:
    errors = [
        float((rounded(WEIGHT, WeightFormat.of(n)) - WEIGHT).norm())
        for n in ("int4:128", "int4", "int5", "int6", "int8", "bf16")
    ]
    assert errors == sorted(errors, reverse=True) and errors[0] > 20 * errors[-1]
