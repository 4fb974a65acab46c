"""What a quick look in float32 spares must be nothing that the check in float64 would have found."""

import pytest
import torch
from torch import Tensor

from noisescope.measure import products
from noisescope.measure.products import Product, check_product, product_from

ROWS, TERMS, WIDTH = 120, 256, 192


def made(dtype: torch.dtype, *, biased: bool) -> Product:
    g = torch.Generator().manual_seed(3)
    x, w = torch.randn(2, ROWS // 2, TERMS, generator=g), torch.randn(WIDTH, TERMS, generator=g) * 0.1
    # A channel of the input that is far larger than the others.
    x[..., 7] *= 300
    bias = torch.randn(WIDTH, generator=g).to(dtype) if biased else None
    x, w = x.to(dtype), w.to(dtype)
    given = product_from(x, w.mT, bias, torch.nn.functional.linear(x, w, bias))
    assert given is not None
    return given


def in_float64(given: Product) -> object:
    rows, mix = products._chosen(given, torch.Generator().manual_seed(0))
    return products._checked(given, rows, mix)


def healthy(y: Tensor) -> Tensor:
    return y


def one_value(y: Tensor) -> Tensor:
    y[0, 17, 5] += 0.2 * y.abs().max()
    return y


def stuck_channel(y: Tensor) -> Tensor:
    y[..., 11] = 0.5
    return y


def drift(y: Tensor) -> Tensor:
    return y * 1.004


def lean(y: Tensor) -> Tensor:
    """All values are rounded down."""
    return torch.nextafter(y, torch.full_like(y, -torch.inf))


def lost_block(y: Tensor) -> Tensor:
    y[:, 30:34, 50:60] = 0
    return y


def infinite(y: Tensor) -> Tensor:
    y[0, 3, 9] = torch.inf
    return y


def huge(y: Tensor) -> Tensor:
    """Its square is beyond float32."""
    y[0, :, 20] = torch.finfo(y.dtype).max / 8
    return y


@pytest.mark.parametrize("change", [healthy, one_value, stuck_channel, drift, lean, lost_block, infinite, huge])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_a_short_format_is_judged_as_in_float64(dtype, biased, change):
    given = made(dtype, biased=biased)
    given = Product(given.left, given.right, given.bias, change(given.out.clone()))
    found, whole = check_product(given, torch.Generator().manual_seed(0)), in_float64(given)
    assert found.holds == whole.holds == (change is healthy), (found, whole)
    assert (found.hits, found.channels, found.defect, found.note) == (
        whole.hits,
        whole.channels,
        whole.defect,
        whole.note,
    )
    if not found.holds:
        assert found.worst == pytest.approx(whole.worst)


def test_a_process_that_multiplies_float32_in_a_shorter_format_is_judged_in_float64(monkeypatch):
    given = made(torch.bfloat16, biased=False)
    monkeypatch.setattr(products, "_doubtful", None)
    torch.set_float32_matmul_precision("medium")
    try:
        assert check_product(given, torch.Generator().manual_seed(0)).holds
    finally:
        torch.set_float32_matmul_precision("highest")


def test_rows_that_are_not_finite_hide_no_others_of_their_block():
    given = made(torch.bfloat16, biased=False)
    x, y = given.left.clone(), given.out.clone()
    x[0, 40, 3] = torch.nan
    y[0, 40] = torch.nan
    assert check_product(Product(x, given.right, None, y), torch.Generator().manual_seed(0)).holds
    y[0, 41, 9] += 40 * y[0, 41].abs().max()
    found = check_product(Product(x, given.right, None, y), torch.Generator().manual_seed(0))
    assert 9 in found.channels
