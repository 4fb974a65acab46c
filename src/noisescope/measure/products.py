"""Checks matrix products on the host, at a fraction of their cost, against what rounding allows.

Rows are checked in two ways. A few are computed anew, and each of their values has to lie within the rounding of the
output plus the error of a sum of K terms in any order. All rows are added up in blocks with random signs u, and
(u X) W has to be u Y: an error anywhere in a column of a block shows there unless it cancels, which needs the signs.

The error of a sum: with partial sums s_j and independent roundings, its variance is sum_j s_j^2 u^2 / 3. Partial sums
of terms t_k stay near sqrt(sum t^2) where signs are mixed and below |y| where they agree, in whatever order they are
added, so that u sqrt(K (sum t^2 + y^2)) is more than twice the standard deviation.

It does not run the operator: the output is the one that the run had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from noisescope.measure.judged import Judged, together
from noisescope.measure.judging import excess_of, joined, lean_of, leans, tallied
from noisescope.measure.rounding import half_spacing, host, rounded, sum_unit, unit

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

    def wide(self, x: Tensor) -> Tensor:
        """An operand in float64 on the host."""
        return rounded(host(x), self.out.dtype) if _is_wider(x.dtype, self.out.dtype) else host(x)

    def slabs(self) -> Iterator[tuple[slice, Tensor]]:
        """The right side in float64, some columns at a time."""
        batch, terms, columns = self.right.shape
        step = max(_AT_ONCE // max(batch * terms, 1), 1)
        for start in range(0, columns, step):
            chosen = slice(start, start + step)
            yield chosen, self.wide(self.right[..., chosen])

    def bias_of(self, columns: slice, rows: Tensor | None = None) -> Tensor | None:
        """The bias of some columns and rows in float64."""
        if self.bias is None:
            return None
        bias = self.bias[..., columns]
        return self.wide(bias if rows is None else bias[:, rows.to(bias.device)])


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
    rows = given.out.shape[1]
    if given.left.numel() * given.right.shape[-1] <= _SMALL or rows <= 2 * _ROWS:
        return _checked(given, torch.arange(rows), None)
    return _checked(given, chosen_rows(given.out, _ROWS, signs), _mix(given.left, signs))


def chosen_rows(out: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Some rows at random, and the two that hold the largest values: a clamp acts there."""
    peaks = out.detach().abs().amax((0, -1)).double().cpu().nan_to_num(nan=torch.inf)
    drawn = torch.randperm(out.shape[1], generator=generator)[: count - 2]
    chosen: Tensor = torch.cat([peaks.topk(2).indices, drawn]).unique()
    return chosen


def _mix(left: Tensor, signs: torch.Generator) -> Tensor:
    """A random sign for every row, in blocks: [batch, blocks, 1, rows of a block]; 0 for rows that do not exist."""
    batch, rows, _ = left.shape
    drawn = torch.randint(0, 2, (batch, rows), generator=signs).double() * 2 - 1
    padded: Tensor = torch.nn.functional.pad(drawn, (0, -rows % _BLOCK))
    return padded.reshape(batch, -1, 1, _BLOCK)


def _checked(given: Product, rows: Tensor, mix: Tensor | None) -> Judged:
    left = given.wide(given.left)
    few = left[:, rows]
    some, squares, count = few, few.square(), few.shape[1]
    if mix is not None:
        mix = _without_infinite(mix, left, given.out)
        some = torch.cat([few, _blocks(mix, left)], 1)
        squares = torch.cat([squares, _blocks(mix.abs(), left.square())], 1)
    exact_parts, mixed_parts, lean = [], [], 0.0
    for columns, right in given.slabs():
        exact, spread = some @ right, squares @ right.square()
        out = given.out[..., columns]
        anew = _anew(given, (rows, columns), exact[:, :count], spread[:, :count])
        exact_parts.append(excess_of(anew[0], anew[1], anew[2] + anew[3]))
        lean = max(lean, lean_of(*anew))
        if mix is not None:
            bias = given.bias_of(columns)
            mixed_parts.append(_mixed(host(out), bias, mix, (exact[:, count:], spread[:, count:]), out.dtype, left))
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
    y: Tensor, bias: Tensor | None, mix: Tensor, given: tuple[Tensor, Tensor], dtype: torch.dtype, left: Tensor
) -> Tensor:
    exact, squares = given
    sizes = _blocks(mix.abs(), y.square())
    # A rounding error is uniform over a spacing, which is at most 2 u |y|; with a bias there may be two.
    steps = unit(dtype) ** 2 * sizes / 3 * (1 if bias is None else 2) + torch.finfo(dtype).tiny ** 2
    sums = left.shape[-1] * sum_unit(dtype) ** 2 * (squares + sizes)
    if bias is not None:
        exact = exact + _blocks(mix, bias)
    error = (_blocks(mix, y) - exact).abs()
    return (error / (_MIXED_SIGMAS * (sums + steps).sqrt())).nan_to_num(nan=0.0, posinf=0.0)


def _without_infinite(mix: Tensor, left: Tensor, out: Tensor) -> Tensor:
    """The signs, 0 for rows that hold what is not finite: one of them would hide all others of its block."""
    sound = left.sum(-1).isfinite() & out.detach().float().sum(-1).isfinite().cpu()
    if bool(sound.all()):
        return mix
    sound = left.isfinite().all(-1) & out.detach().isfinite().all(-1).cpu()
    padded = torch.nn.functional.pad(sound.double(), (0, -left.shape[1] % _BLOCK))
    return mix * padded.reshape(mix.shape)


def _blocks(mix: Tensor, x: Tensor) -> Tensor:
    """Signed sums over blocks of neighbouring rows: [batch, blocks, columns]."""
    batch, rows, columns = x.shape
    if rows % _BLOCK:
        x = torch.nn.functional.pad(x, (0, 0, 0, -rows % _BLOCK))
    if not bool(mix.all()):
        x = torch.where(mix.reshape(batch, -1, 1) == 0, 0.0, x)
    return (mix @ x.reshape(batch, -1, _BLOCK, columns)).squeeze(2)
