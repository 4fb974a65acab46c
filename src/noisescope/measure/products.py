"""Checks matrix products on the host, at a fraction of their cost, against what rounding allows.

Rows are checked in two ways. A few are computed anew, and each of their values has to lie within the rounding of the
output plus the error of a sum of K terms in any order. All rows are added up in blocks with random signs u, and
(u X) W has to be u Y: an error anywhere in a column of a block shows there unless it cancels, which needs the signs.

The error of a sum: with partial sums s_j and independent roundings, its variance is sum_j s_j^2 u^2 / 3. Partial sums
of terms t_k stay near sqrt(sum t^2) where signs are mixed and below |y| where they agree, in whatever order they are
added, so that u sqrt(K (sum t^2 + y^2)) is more than twice the standard deviation.

What is in a short format is first looked at in float32, where every product of two values is exact, and without the
error of the sums: a column that holds even so needs no more. The few others are judged in float64 as above.

It does not run the operator: the output is the one that the run had.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from noisescope.measure.judged import Judged, together
from noisescope.measure.judging import excess_of, joined, lean_of, leans, tallied
from noisescope.measure.leaning import leaning
from noisescope.measure.rounding import half_spacing, host, is_short, sum_unit, unit

# Standard deviations of a sum's error, at least twice over: see the formula above.
_SIGMAS = 4.0
# A mixed row may lie this many standard deviations off: 1e-15 by chance, in some 1e8 mixed values of a large run.
_MIXED_SIGMAS = 8.0
_RANGE = torch.finfo(torch.float32).max / 4
_BLOCK = 16
_ROWS = 16
# Below this many multiplications every row is computed anew.
_SMALL = 1 << 22
# So many values of the right side are in float64 at a time.
_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Product:
    """out [batch, rows, columns] of left [batch, rows, K] @ right [batch or 1, K, columns] + bias, as the run had them.

    Operands that are wider than the output were rounded to its dtype by automatic casting.
    """

    left: Tensor
    right: Tensor
    bias: Tensor | None
    out: Tensor

    def wide(self, x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """An operand on the host in a wide dtype."""
        x = x.detach().to("cpu")
        return (x.to(self.out.dtype) if _is_wider(x.dtype, self.out.dtype) else x).to(dtype)

    def slabs(self, dtype: torch.dtype = torch.float64) -> Iterator[tuple[slice, Tensor]]:
        """The right side in a wide dtype, some columns at a time."""
        batch, terms, columns = self.right.shape
        step = max(_AT_ONCE // max(batch * terms, 1), 1)
        for start in range(0, columns, step):
            chosen = slice(start, start + step)
            yield chosen, self.wide(self.right[..., chosen], dtype)

    def bias_of(self, columns: slice, rows: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Tensor | None:
        """The bias of some columns and rows in a wide dtype; one row where all are the same."""
        if self.bias is None:
            return None
        bias = self.bias[..., columns]
        if bias.stride(1) == 0:
            return self.wide(bias[:, :1], dtype)
        return self.wide(bias if rows is None else bias[:, rows.to(bias.device)], dtype)

    def only(self, columns: Tensor) -> Product:
        """The same of some columns."""
        right, out = (x[..., columns.to(x.device)] for x in (self.right, self.out))
        bias = None if self.bias is None else self.bias[..., columns.to(self.bias.device)]
        return Product(self.left, right, bias, out)


def product_from(left: Tensor, right: Tensor, bias: Tensor | None, out: Tensor) -> Product | None:
    """A product of operands of any number of dimensions, as batches of matrices; None where one is a vector."""
    if left.dim() < 1 or right.dim() < 2 or out.dim() != max(left.dim(), right.dim()):
        return None
    k, n = right.shape[-2:]
    a, b, y = left.detach(), right.detach(), out.detach()
    if b.dim() == 2:
        a, b, y = a.reshape(1, -1, k), b.unsqueeze(0), y.reshape(1, -1, n)
    else:
        batch = out.shape[:-2]
        a = a.expand(*batch, *a.shape[-2:]).reshape(-1, *a.shape[-2:])
        b = b.expand(*batch, *b.shape[-2:]).reshape(-1, *b.shape[-2:])
        y = y.reshape(-1, *out.shape[-2:])
    added = None if bias is None else bias.detach().expand(out.shape).reshape(y.shape)
    return Product(a, b, added, y)


def _is_wider(dtype: torch.dtype, than: torch.dtype) -> bool:
    return dtype != than and torch.finfo(dtype).bits > torch.finfo(than).bits


def check_product(given: Product, signs: torch.Generator) -> Judged:
    """Check a product, all of it where it is small."""
    rows, mix = _chosen(given, signs)
    if not is_short(given.out.dtype) or not _is_float32_kept():
        return _checked(given, rows, mix)
    doubtful, mixed = _doubtful(given, rows, mix)
    whole = len(doubtful) == given.out.shape[-1]
    return _checked(given, rows, mix) if whole else _of_columns(given, doubtful, rows, mix if mixed else None)


def _chosen(given: Product, signs: torch.Generator) -> tuple[Tensor, Tensor | None]:
    """The rows that are computed anew, and the signs with which all are added up; none where the rows are all."""
    rows = given.out.shape[1]
    if given.left.numel() * given.right.shape[-1] <= _SMALL or rows <= 2 * _ROWS:
        return torch.arange(rows), None
    return chosen_rows(given.out, _ROWS, signs), _without_infinite(_mix(given.left, signs), given.left, given.out)


def _is_float32_kept() -> bool:
    """Whether products of float32 are made in float32 here: a process may have asked for a shorter format."""
    settings = getattr(torch.backends.mkldnn, "matmul", None)
    asked = torch.get_float32_matmul_precision() if settings is None else settings.fp32_precision
    return asked in ("none", "ieee", "highest")


def chosen_rows(out: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Some rows at random, and the two that hold the largest values: a clamp acts there."""
    peaks = _largest(out.detach(), (0, -1)).double().cpu().nan_to_num(nan=torch.inf)
    drawn = torch.randperm(out.shape[1], generator=generator)[: count - 2]
    chosen: Tensor = torch.cat([peaks.topk(2).indices, drawn]).unique()
    return chosen


def _largest(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The largest size along some dimensions, NaN above all."""
    if not is_short(x.dtype):
        return x.abs().amax(dims)
    # Short floats without their sign are in the order of their bits, and whole numbers are compared much faster.
    return x.view(torch.int16).bitwise_and(0x7FFF).amax(dims).view(x.dtype)


def _mix(left: Tensor, signs: torch.Generator) -> Tensor:
    """A random sign for every row: [batch, rows]."""
    return torch.randint(0, 2, left.shape[:2], generator=signs).double() * 2 - 1


def _doubtful(given: Product, rows: Tensor, mix: Tensor | None) -> tuple[Tensor, bool]:
    """The columns that do not hold without the error of the sums, and whether any of them fails where rows are mixed.

    These are all where values lean one way together, or where one is not finite.
    """
    left, mixed = given.wide(given.left, torch.float32), False
    some = left[:, rows] if mix is None else torch.cat([left[:, rows], _blocks(mix, left)], 1)
    found = []
    for columns, right in given.slabs(torch.float32):
        exact = some @ right
        over = _over_anew(given, (rows, columns), exact[:, : len(rows)])
        if over is not None and mix is not None:
            odd = _over_mixed(given, columns, mix, exact[:, len(rows) :])
            mixed, over = mixed or odd is None or bool(odd.any()), None if odd is None else over | odd
        if over is None:
            return torch.arange(given.out.shape[-1]), mix is not None
        found.append(over)
    return torch.cat(found).nonzero().flatten(), mixed


def _over_anew(given: Product, where: tuple[Tensor, slice], exact: Tensor) -> Tensor | None:
    """Columns in which a value is off by more than its last rounding; None where all have to be looked at."""
    rows, columns = where
    seen = given.out[:, rows.to(given.out.device)][..., columns].detach().cpu()
    before = exact
    bias = given.bias_of(columns, rows, torch.float32)
    exact = exact if bias is None else exact + bias
    room = half_spacing(exact, seen.dtype)
    # The sum may have been rounded before the bias came to it.
    room = room if bias is None else room.add_(half_spacing(before, seen.dtype))
    wide = seen.float()
    error = (wide - exact).abs_()
    if not math.isfinite(float(error.sum())):
        return None
    if leaning(wide, [exact], 0.0, room, by_rows=False):
        return None
    return _anywhere(error > room)


def _over_mixed(given: Product, columns: slice, mix: Tensor, exact: Tensor) -> Tensor | None:
    y = given.out[..., columns].detach().cpu()
    bias = given.bias_of(columns, dtype=torch.float32)
    error, room = _mixed(y.float(), bias, mix, (exact, 0.0), (y.dtype, given.left.shape[-1]))
    if not math.isfinite(float(error.sum()) + float(room.sum())):
        return None
    return _anywhere(error > room)


def _anywhere(over: Tensor) -> Tensor:
    """The columns in which anything holds; `any` over rows is several times slower."""
    return over.view(torch.uint8).amax((0, 1)) > 0


def _of_columns(given: Product, columns: Tensor, rows: Tensor, mix: Tensor | None) -> Judged:
    """What some columns show in float64; the others hold."""
    batch, _, width = given.out.shape
    others = Judged("product", 1.0, batch * len(rows) * (width - len(columns)), width=width)
    if not len(columns):
        return others
    # Together they lean nowhere: they were chosen among all for the size of their errors.
    found = _checked(given.only(columns), rows, mix, may_lean=False)
    channels = tuple(columns[list(found.channels)].tolist())
    return together("product", [replace(found, width=width, channels=channels), others])


def _checked(given: Product, rows: Tensor, mix: Tensor | None, *, may_lean: bool = True) -> Judged:
    left = given.wide(given.left)
    few = left[:, rows]
    some, squares, count = few, few.square(), few.shape[1]
    if mix is not None:
        some = torch.cat([few, _blocks(mix, left)], 1)
        squares = torch.cat([squares, _blocks(mix.abs(), left.square())], 1)
    exact_parts, mixed_parts, lean = [], [], 0.0
    for columns, right in given.slabs():
        exact, spread = some @ right, squares @ right.square()
        out = given.out[..., columns]
        anew = _anew(given, (rows, columns), exact[:, :count], spread[:, :count])
        exact_parts.append(excess_of(anew[0], anew[1], anew[2] + anew[3]))
        lean = max(lean, lean_of(*anew)) if may_lean else 0.0
        if mix is not None:
            sums = exact[:, count:], spread[:, count:]
            error, room = _mixed(host(out), given.bias_of(columns), mix, sums, (out.dtype, left.shape[-1]))
            mixed_parts.append((error / room).nan_to_num(nan=0.0, posinf=0.0))
    parts = [leans(joined("product", exact_parts), lean)]
    if mixed_parts:
        whole = torch.cat(mixed_parts, -1)
        parts.append(tallied("product", whole, whole.numel()))
    return together("product", parts)


def _anew(
    given: Product, where: tuple[Tensor, slice], exact: Tensor, squares: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | float]:
    """Rows of the output, their exact values, the error of their sums and that of a rounding before the bias."""
    rows, columns = where
    seen = given.out[:, rows.to(given.out.device)][..., columns]
    size = (given.left.shape[-1] * (squares + exact.square())).sqrt()
    # Partial sums beyond the range may end as infinity of either sign, or as no number.
    allowed = torch.where(size < _RANGE, _SIGMAS * sum_unit(seen.dtype) * size, torch.inf)
    bias = given.bias_of(columns, rows)
    if bias is None:
        return seen, exact, allowed, 0.0
    # The sum may have been rounded before the bias came to it.
    return seen, exact + bias, allowed + sum_unit(seen.dtype) * bias.abs(), half_spacing(exact, seen.dtype)


def _mixed(
    y: Tensor,
    bias: Tensor | None,
    mix: Tensor,
    given: tuple[Tensor, Tensor | float],
    of: tuple[torch.dtype, int],
) -> tuple[Tensor, Tensor]:
    """The errors of sums of rows, and what is allowed there, from the exact sums with the squares of their terms."""
    (exact, squares), (dtype, terms) = given, of
    sizes = _blocks(mix.abs(), y.square())
    # A rounding error is uniform over a spacing, which is at most 2 u |y|; with a bias there may be two.
    steps = unit(dtype) ** 2 * sizes / 3 * (1 if bias is None else 2) + torch.finfo(dtype).tiny ** 2
    sums = terms * sum_unit(dtype) ** 2 * (squares + sizes)
    if bias is not None:
        exact = exact + (_blocks(mix, bias) if bias.shape[1] > 1 else _blocks(mix, torch.ones_like(y[..., :1])) * bias)
    return (_blocks(mix, y) - exact).abs_(), (sums + steps).sqrt_().mul_(_MIXED_SIGMAS)


def _without_infinite(mix: Tensor, left: Tensor, out: Tensor) -> Tensor:
    """The signs, 0 for rows that hold what is not finite: one of them would hide all others of its block."""
    if math.isfinite(float(left.detach().sum(dtype=torch.float32))) and math.isfinite(
        float(out.detach().sum(dtype=torch.float32))
    ):
        return mix
    return mix * (left.isfinite().all(-1).cpu() & out.detach().isfinite().all(-1).cpu())


def _blocks(mix: Tensor, x: Tensor) -> Tensor:
    """Signed sums over blocks of neighbouring rows, the last of which may be shorter: [batch, blocks, columns]."""
    batch, rows, columns = x.shape
    mix = mix.to(x.dtype)
    if not bool(mix.all()):
        x = torch.where(mix[..., None] == 0, 0.0, x)
    whole = rows - rows % _BLOCK
    sums = mix[:, :whole].reshape(batch, -1, 1, _BLOCK) @ x[:, :whole].reshape(batch, -1, _BLOCK, columns)
    parts = [sums.squeeze(2)]
    if whole < rows:
        parts.append(mix[:, None, whole:] @ x[:, whole:])
    return torch.cat(parts, 1)
