"""Each way of being wrong is planted in exact values and has to be named."""

import re

import pytest
import torch

from noisescope.measure.defects import defect_of

EXACT = torch.randn(40, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def told(seen, exact=EXACT):
    return defect_of(seen, exact, (seen.double() - exact).abs() > 0.02 * exact.abs() + 1e-3)


def with_bit(x, bit):
    return (x.view(torch.int16) ^ (1 << bit)).view(x.dtype)


def in_a_channel(value):
    seen = EXACT.clone()
    seen[:, 2] = value
    return seen.float()


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (torch.where(EXACT.abs() < 0.5, 0.0, EXACT).float(), r"0 where up to 0\.\d+ is right \(a dead zone"),
        (in_a_channel(0.0), "stuck at 0"),
        (in_a_channel(0.75), "hold 0.75 whatever goes in"),
        (EXACT.clamp(-1.25, 1.25).float(), "clamped at 1.25 where up to"),
        ((1.5 * EXACT).bfloat16(), "1.5 times what is right"),
        ((EXACT - 0.5).float(), "all off by -0.5"),
        (with_bit(EXACT.bfloat16(), 6), "bit 6 of 16 is wrong"),
        (with_bit(EXACT.bfloat16(), 15), "-1 times what is right"),
        (EXACT.float() / 0.0, "NaN or infinite"),
        (EXACT.flip(0).float(), "no simple pattern"),
    ],
)
def test_what_is_wrong_is_said(seen, words):

    assert re.search(words, told(seen)), told(seen)


def test_bits_that_differ_from_value_to_value_are_told():
    x = EXACT.bfloat16()
    seen = torch.stack([with_bit(row, 5 + i % 3) for i, row in enumerate(x)])
    assert "one bit of 16 is wrong in each" in told(seen)


def test_nothing_wrong_has_no_words():
    assert told(EXACT.bfloat16()) == ""
