"""The size of a format counts everything that is stored."""

from __future__ import annotations

import pytest

from noisescope.core.codec import decode, encode
from noisescope.core.errors import BadInputError
from noisescope.core.precision import Choice, Group, Linear, Option, PrecisionMap, WeightFormat


# 3 rows of 70: a block of 32 makes 3 blocks a row, the last one short.
@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("bf16", 3 * 70 * 16),
        ("int8", 3 * (70 * 8 + 16)),
        ("fp8", 3 * (70 * 8 + 16)),
        ("int4", 3 * (70 * 4 + 3 * 16)),
        ("uint4", 3 * (70 * 4 + 3 * 20)),
        ("mxfp4", 3 * (70 * 4 + 3 * 8)),
        ("int4:64", 3 * (70 * 4 + 2 * 16)),
        ("int4:128", 3 * (70 * 4 + 16)),
    ],
)
def test_a_matrix_has_the_size_of_its_codes_scales_and_zero_points(name: str, bits: int) -> None:
    assert WeightFormat.of(name).size(3, 70) == bits


def test_the_usual_length_of_blocks_has_the_plain_name() -> None:
    assert WeightFormat.of("int4:32") == WeightFormat.of("int4")
    assert WeightFormat.of("int4:128").name == "int4:128"


@pytest.mark.parametrize("text", ["int3", "int8:32", "int4:0", "int4:x", "mxfp4:64", ""])
def test_what_is_no_format_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match=r"accepted|expected|no blocks"):
        WeightFormat.of(text)


def test_a_map_averages_over_weights_and_survives_json() -> None:
    small = Group("a.q+k", 0, (Linear("a.q", 2, 32), Linear("a.k", 2, 32)))
    large = Group("a.o", 0, (Linear("a.o", 12, 32),))
    options = [
        tuple(Option(n, g.size(WeightFormat.of(n)), h) for n, h in (("int4", 0.5), ("bf16", 0.0)))
        for g in (small, large)
    ]
    found = PrecisionMap(8.0, "exact", (Choice(small, "bf16", options[0]), Choice(large, "int4", options[1])), 9, 2)
    # 128 weights of 16 bits and 384 of 4.5.
    assert found.average_bits == pytest.approx((128 * 16 + 384 * 4.5) / 512)
    assert found.harm == 0.5 and found.weights == 512
    assert found.formats == {"a.q": "bf16", "a.k": "bf16", "a.o": "int4"}
    assert small.part == "q+k"
    assert decode(PrecisionMap, encode(found)) == found
