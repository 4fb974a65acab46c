"""Streamed divergences against the same figures computed at once, and against values worked out by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from noisescope.core.codec import decode, encode
from noisescope.core.errors import BadInputError
from noisescope.measure.divergence import Divergence, DivergenceColumns, DivergenceMeter, coarser, ulp_distance

TINY = 2.0**-149


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def pair(rows: int = 200, channels: int = 40, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    a = random(rows, channels) * torch.linspace(0.1, 30, channels) + offset
    return a, a + 0.01 * random(rows, channels, seed=1)


def met(a: Tensor, b: Tensor, cuts: int = 1) -> DivergenceMeter:
    meter = DivergenceMeter()
    for x, y in zip(a.tensor_split(cuts), b.tensor_split(cuts), strict=True):
        meter.update(x, y)
    return meter


def figures(meter: DivergenceMeter) -> dict[str, float]:
    return {k: v for k, v in dataclasses.asdict(meter.result()).items() if k != "ulp_dtype"}


def at_once(a: Tensor, b: Tensor, floor: Tensor) -> dict[str, float]:
    """The figures of all values at once, by numpy."""
    x, y = a.double().numpy().ravel(), b.double().numpy().ravel()
    d = np.abs(x - y)
    return {
        "mae": d.mean(),
        "mape": (d / np.maximum(np.abs(x), floor.double().numpy().ravel())).mean(),
        "pearson": np.corrcoef(x, y)[0, 1],
        "max_error": d.max(),
        "cosine": x @ y / math.sqrt((x @ x) * (y @ y)),
        "sqnr_db": 10 * math.log10((x @ x) / (d @ d)),
    }


def row_floor(a: Tensor) -> Tensor:
    return (0.01 * a.double().abs().mean(1, keepdim=True)).expand_as(a)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("cuts", [1, 7])
def test_figures_of_the_tensor_its_channels_and_its_blocks(offset: float, cuts: int) -> None:
    a, b = pair(offset=offset)
    meter, floor = met(a, b, cuts), row_floor(a)
    whole = dataclasses.asdict(meter.result())
    for name, value in at_once(a, b, floor).items():
        assert whole[name] == pytest.approx(value, rel=1e-9), name
    for columns, groups in (
        (meter.channels(), [slice(i, i + 1) for i in range(40)]),
        (meter.blocks(16), [slice(0, 16), slice(16, 32), slice(32, 40)]),
    ):
        assert columns.count.tolist() == [200 * len(range(40)[some]) for some in groups]
        for i, some in enumerate(groups):
            for name, value in at_once(a[:, some], b[:, some], floor[:, some]).items():
                assert getattr(columns, name)[i].item() == pytest.approx(value, rel=1e-7), (name, i)


def test_chunks_and_merges_do_not_matter() -> None:
    a, b = pair()
    whole = figures(met(a, b))
    left, right = met(a[:30], b[:30]), met(a[30:], b[30:], cuts=9)
    left.merge(right)
    left.merge(DivergenceMeter())
    empty = DivergenceMeter()
    empty.merge(met(a, b, cuts=3))
    for other in (left, empty):
        assert other.result().ulp_dtype == "float32"
        assert figures(other) == pytest.approx(whole, rel=1e-12)


def test_moments_hold_far_from_zero() -> None:
    noise = random(5000, 2).double()
    a = noise + 1e7
    b = a + 0.5 * random(5000, 2, seed=3).double()
    expected = np.corrcoef(noise[:, 0].numpy(), (b - 1e7)[:, 0].numpy())[0, 1]
    assert met(a, b, cuts=50).channels().pearson[0].item() == pytest.approx(expected, rel=1e-8)


def test_a_case_by_hand() -> None:
    a, b = torch.tensor([[1.0, -2.0], [4.0, 0.0]]), torch.tensor([[1.5, -2.0], [3.0, 0.01]])
    result = met(a, b).result()
    assert result.mae == pytest.approx(1.51 / 4)
    # The floor of the second row is 0.01 * (4 + 0) / 2 = 0.02, so that 0 -> 0.01 counts as 50 %.
    assert result.mape == pytest.approx((0.5 + 0.0 + 0.25 + 0.5) / 4)
    assert result.max_error == 1.0
    assert result.sqnr_db == pytest.approx(10 * math.log10(21 / 1.2501), rel=1e-6)
    assert (result.count, result.mismatches) == (4, 0)
    assert result.verdict == "poor"


def test_equal_tensors() -> None:
    a, _ = pair()
    result = met(a, a.clone()).result()
    assert (result.mae, result.mape, result.max_error, result.ulp_max) == (0, 0, 0, 0)
    assert (result.pearson, result.cosine, result.sqnr_db) == (1.0, 1.0, math.inf)
    assert result.verdict == "excellent"
    assert decode(Divergence, encode(result)) == result


def test_what_is_undefined_says_so() -> None:
    constant = met(torch.full((100, 3), 0.1), torch.full((100, 3), 0.1)).result()
    assert math.isnan(constant.pearson)
    assert constant.cosine == 1.0
    assert constant.verdict == "excellent"
    zeros = met(torch.zeros(2, 3), torch.zeros(2, 3)).result()
    assert math.isnan(zeros.cosine) and math.isnan(zeros.sqnr_db)
    assert zeros.mape == 0.0
    # Something where nothing should be: all of it is error.
    assert met(torch.zeros(2, 4), torch.eye(4)[:2]).result().mape == 2 / 8
    with pytest.raises(BadInputError, match="nothing has been compared"):
        DivergenceMeter().result()


def test_what_is_not_finite_is_counted_and_kept_apart() -> None:
    inf, nan = math.inf, math.nan
    a = torch.tensor([[1.0, nan, inf, 2.0, -inf, nan]])
    b = torch.tensor([[1.5, nan, inf, nan, inf, 3.0]])
    result = met(a, b).result()
    assert (result.count, result.mae) == (1, 0.5)
    assert (result.non_finite_reference, result.non_finite_other, result.mismatches) == (4, 4, 3)
    assert result.verdict == "poor"
    channels = met(a, b).channels()
    assert channels.mismatches.tolist() == [0, 0, 0, 1, 1, 1]
    assert channels.mae.isnan().tolist() == [False] + 5 * [True]
    assert channels.verdicts() == ["poor", "undefined", "undefined", "poor", "poor", "poor"]
    nothing = met(torch.tensor([nan]), torch.tensor([nan])).result()
    assert math.isnan(nothing.mae) and math.isnan(nothing.ulp_median)
    assert nothing.verdict == "undefined"


def test_a_stuck_channel_hides_in_the_tensor_and_not_in_its_channels() -> None:
    a = random(500, 256)
    b = a.clone()
    b[:, 77] = 0.0
    meter = met(a, b)
    assert meter.result().pearson > 0.99
    channels = meter.channels()
    assert channels.worst("mape", 3)[0] == 77
    assert channels.worst("sqnr_db", 3) == [77]
    assert channels.cosine[77].isnan()
    assert channels.verdicts().count("poor") == 1
    assert meter.blocks(32).worst("mae") == [77 // 32]
    with pytest.raises(BadInputError, match="Did you mean 'pearson'"):
        channels.worst("pearsen")


def test_worst_leaves_out_what_is_undefined() -> None:
    columns = met(torch.tensor([[1.0, math.nan, 2.0]]), torch.tensor([[1.1, math.nan, 2.0]])).channels()
    assert isinstance(columns, DivergenceColumns)
    assert columns.worst("mae", 3) == [0, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_ulps_are_steps_of_the_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, -1.0, 0.0, 0.0, 1.0, 1.0]).to(dtype)
    eps = torch.finfo(dtype).eps
    y = torch.tensor([1 + eps, -1 - 2 * eps, -0.0, 0.0, 1 - eps / 2, 1.0], dtype=torch.float64).to(dtype)
    assert ulp_distance(x, y).tolist() == [1, 2, 0, 0, 1, 0]


def test_ulps_of_subnormals_across_zero_and_at_the_ends() -> None:
    biggest = torch.finfo(torch.float32).max
    x = torch.tensor([TINY, -TINY, 0.0, 2.0**-126, biggest])
    y = torch.tensor([-TINY, -3 * TINY, 5 * TINY, 2.0**-126 - TINY, -biggest])
    assert ulp_distance(x, y).tolist() == [2, 2, 5, 1, 2 * 0x7F7FFFFF]
    wide = torch.tensor([torch.finfo(torch.float64).max], dtype=torch.float64)
    assert ulp_distance(wide, -wide).item() == pytest.approx(2.0 * 0x7FEFFFFFFFFFFFFF)


def test_ulps_are_counted_in_the_coarser_dtype() -> None:
    assert coarser(torch.float32, torch.bfloat16) == torch.bfloat16
    assert coarser(torch.float16, torch.bfloat16) == torch.bfloat16
    assert coarser(torch.float64, torch.float16) == torch.float16
    a = random(64, 8)
    result = met(a, a.bfloat16()).result()
    assert (result.ulp_max, result.ulp_dtype) == (0, "bfloat16")
    assert result.mae > 0
    # 70000 is beyond float16: one step above its largest value, 65504.
    assert ulp_distance(torch.tensor([70000.0]), torch.tensor([65504.0]).half()).item() == 1


def test_quantiles_of_ulps() -> None:
    steps = torch.cat([torch.zeros(900), torch.full((80,), 7.0), torch.full((19,), 20.0), torch.tensor([4000.0])])
    a = torch.ones(1000, 1)
    b = (a.view(torch.int32) + steps[:, None].int()).view(torch.float32)
    result = met(a, b, cuts=3).result()
    assert (result.ulp_median, result.ulp_99, result.ulp_max) == (0, 20, 4000)
    opposite = met(torch.ones(10, 1), torch.cat([torch.ones(9, 1), -torch.ones(1, 1)])).result()
    assert (opposite.ulp_median, opposite.ulp_max) == (0, 2 * 0x3F800000)


def test_shapes_of_all_kinds() -> None:
    for shape in ((), (5,), (2, 3, 4, 5)):
        a = random(*shape)
        assert met(a.unsqueeze(0), (a + 1).unsqueeze(0)).result().mae == pytest.approx(1)
    scalar = DivergenceMeter()
    scalar.update(torch.tensor(1.0), torch.tensor(3.0))
    scalar.update(torch.tensor(1.0), torch.tensor(1.0))
    assert scalar.result().mae == 1
    meter = met(*pair())
    meter.update(torch.empty(0, 40), torch.empty(0, 40))
    assert meter.result().count == 8000


def test_gradients_are_left_alone() -> None:
    a = random(3, 4).requires_grad_()
    assert met(a, a * 2).result().mae > 0


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (torch.ones(2, 3), torch.ones(3, 2), r"shapes \(2, 3\) and \(3, 2\)"),
        (torch.ones(2).long(), torch.ones(2), "int64 has no rounding"),
        (torch.ones(2), torch.ones(2).bool(), "bool has no rounding"),
    ],
)
def test_what_cannot_be_compared(a: Tensor, b: Tensor, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        DivergenceMeter().update(a, b)


def test_one_meter_is_for_one_site() -> None:
    meter = met(*pair())
    with pytest.raises(BadInputError, match="3 channels after chunks of 40"):
        meter.update(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(BadInputError, match="keep the dtypes"):
        meter.update(torch.ones(2, 40).half(), torch.ones(2, 40))
    with pytest.raises(BadInputError, match="keep the dtypes"):
        meter.merge(met(torch.ones(2, 40).half(), torch.ones(2, 40)))
