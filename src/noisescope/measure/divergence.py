"""How far two runs of the same computation are apart: streamed, per tensor, per channel and per block of channels.

It compares tensors that it is given in pairs; matching the sites of two runs is the caller's business. Nothing but
sums per channel is kept, in float64.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.measure.indices import divergence_verdict
from noisescope.measure.quantiles import QuantileSketch

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# A deviation below this share of the mean is rounding of the mean: the values are constant.
_CONSTANT = 1e-14
_PIECE = 1 << 18
_SMALL_IS_BAD = ("pearson", "cosine", "sqnr_db")


@dataclass(frozen=True)
class Divergence:
    """The figures of one pair of tensors, over the pairs of values that are finite on both sides.

    NaN is undefined, such as the correlation of a constant; sqnr_db is infinite where nothing differs. Distances in
    ulps are in `ulp_dtype`, the coarser of the two dtypes; exact up to 31, within 3 % above that, the largest exact.
    `mismatches` counts the pairs that differ in being finite or in which NaN or infinity they are.
    """

    count: int
    mae: float
    mape: float
    pearson: float
    max_error: float
    cosine: float
    sqnr_db: float
    ulp_median: float
    ulp_99: float
    ulp_max: float
    ulp_dtype: str
    non_finite_reference: int
    non_finite_other: int
    mismatches: int

    @property
    def verdict(self) -> str:
        """excellent, good, fair or poor: the worst by MAE, MAPE and Pearson."""
        return divergence_verdict(self.mae, self.mape, self.pearson, self.mismatches)


@dataclass(frozen=True)
class DivergenceColumns:
    """The same figures, one value per channel or per block. Of the distances in ulps the largest alone."""

    count: Tensor
    mae: Tensor
    mape: Tensor
    pearson: Tensor
    max_error: Tensor
    cosine: Tensor
    sqnr_db: Tensor
    ulp_max: Tensor
    non_finite_reference: Tensor
    non_finite_other: Tensor
    mismatches: Tensor

    def verdicts(self) -> list[str]:
        """The verdict on each channel or block."""
        columns = (self.mae, self.mape, self.pearson, self.mismatches)
        return [divergence_verdict(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]

    def worst(self, figure: str = "mape", most: int = 1) -> list[int]:
        """Indices of the channels or blocks that are furthest apart by one figure, worst first."""
        names = [field.name for field in dataclasses.fields(self)]
        if figure not in names:
            raise unknown_name("figure", figure, names)
        column: Tensor = getattr(self, figure)
        badness = (-column if figure in _SMALL_IS_BAD else column).nan_to_num(-torch.inf, torch.inf, -torch.inf)
        order = badness.sort(descending=True, stable=True)
        return [int(i) for i, bad in zip(order.indices[:most], order.values, strict=False) if bad > -torch.inf]


class _Sums(NamedTuple):
    """What is kept of each group of pairs; from `error` on these add up, but for the last two, which are maxima."""

    pairs: Tensor
    mean_a: Tensor
    mean_b: Tensor
    # Sums of products of deviations from the means.
    aa: Tensor
    bb: Tensor
    ab: Tensor
    error: Tensor
    squares: Tensor
    relative: Tensor
    lost_a: Tensor
    lost_b: Tensor
    mismatches: Tensor
    largest: Tensor
    ulps: Tensor


class DivergenceMeter:
    """Compares two tensors that come in chunks; the last dimension holds the channels and is never cut.

    A relative error is taken against |reference|, but against no less than `floor` times the mean |reference| of the
    same row (one token's channels): values that are small beside their neighbours matter as little as those, and would
    otherwise decide the mean alone. A row is never cut, so the floor does not depend on the chunks. In a row of zeros,
    where no scale is known, any difference counts as 100 %.
    """

    def __init__(self, floor: float = 0.01) -> None:
        self._floor = floor
        self._sums: _Sums | None = None
        self._ulps = QuantileSketch(1, octaves=65)
        self._dtype: torch.dtype | None = None

    def update(self, reference: Tensor, other: Tensor) -> None:
        """Add a chunk of each."""
        _check_pair(reference, other)
        self._count_in(coarser(reference.dtype, other.dtype))
        width = reference.shape[-1] if reference.dim() else 1
        if not reference.numel():
            return
        a, b = reference.detach().reshape(-1, width), other.detach().to(reference.device).reshape(-1, width)
        rows = max(1, _PIECE // width)
        for piece in zip(a.split(rows), b.split(rows), strict=True):
            self._add(*piece)

    def _count_in(self, dtype: torch.dtype) -> None:
        """Distances in ulps are of one dtype."""
        if self._dtype not in (None, dtype):
            raise BadInputError(f"a chunk in {dtype} after chunks in {self._dtype}; keep the dtypes of both sides.")
        self._dtype = dtype

    def _add(self, a: Tensor, b: Tensor) -> None:
        wide_a, wide_b = a.double(), b.double()
        lost = ~(wide_a.isfinite() & wide_b.isfinite())
        ulps = ulp_distance(a, b)
        self._ulps.update(ulps[~lost].float().cpu()[:, None])
        self._take(_sums(wide_a, wide_b, ulps.masked_fill(lost, 0.0), self._floor))

    def _take(self, sums: _Sums) -> None:
        if self._sums is None:
            self._sums = sums
        elif sums.pairs.shape != self._sums.pairs.shape:
            raise BadInputError(
                f"a chunk of {len(sums.pairs)} channels after chunks of {len(self._sums.pairs)}; "
                "use one meter per site."
            )
        else:
            here = self._sums.pairs.device
            self._sums = _pooled(_Sums(*(torch.stack((x, y.to(here))) for x, y in zip(self._sums, sums, strict=True))))

    def merge(self, other: Self) -> None:
        """Add what another meter of the same site has met."""
        if other._sums is not None and other._dtype is not None:
            self._count_in(other._dtype)
            self._take(other._sums)
            self._ulps.merge(other._ulps)

    def result(self) -> Divergence:
        """The figures over all values."""
        columns = _columns(_pooled(_Sums(*(x[:, None] for x in self._met()))))
        one = {field.name: getattr(columns, field.name).item() for field in dataclasses.fields(columns)}
        for name in ("count", "non_finite_reference", "non_finite_other", "mismatches"):
            one[name] = int(one[name])
        # A bin below 32 holds one whole number; its value is that number and a fraction.
        median, most = (float(self._ulps.quantile(share).floor()) for share in (0.5, 0.99))
        largest = one["ulp_max"]
        dtype = str(self._dtype).removeprefix("torch.")
        return Divergence(**one, ulp_median=min(median, largest), ulp_99=min(most, largest), ulp_dtype=dtype)

    def channels(self) -> DivergenceColumns:
        """The figures per channel."""
        return _columns(self._met())

    def blocks(self, size: int = 32) -> DivergenceColumns:
        """The figures per block of neighbouring channels; the last block may be shorter."""
        met = self._met()
        short = -len(met.pairs) % size
        return _columns(_pooled(_Sums(*(pad(x, (0, short)).view(-1, size).T for x in met))))

    def _met(self) -> _Sums:
        if self._sums is None:
            raise BadInputError("nothing has been compared yet; call update(reference, other) first.")
        return self._sums


def coarser(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The dtype of the two with the larger steps."""
    return a if torch.finfo(a).eps >= torch.finfo(b).eps else b


def ulp_distance(a: Tensor, b: Tensor) -> Tensor:
    """How many representable values apart two tensors are, in the coarser of their dtypes; 0 between 0 and -0.

    Meaningless where one of a pair is not finite. A value that the coarser dtype cannot hold is one step above its
    largest.
    """
    dtype = coarser(a.dtype, b.dtype)
    (sign_a, steps_a), (sign_b, steps_b) = (_steps(x.to(dtype)) for x in (a, b))
    # Across zero the sum may leave int64, so it is taken in float64, exact up to 2**53.
    return torch.where(sign_a == sign_b, (steps_a - steps_b).abs().double(), steps_a.double() + steps_b.double())


def _steps(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sign, and the number of representable values between 0 and |x|, which is what the bits below the sign count."""
    whole = _WHOLE[x.element_size()]
    bits = x.contiguous().view(whole).long()
    return bits < 0, bits & torch.iinfo(whole).max


def _check_pair(reference: Tensor, other: Tensor) -> None:
    if reference.shape != other.shape:
        raise BadInputError(
            f"shapes {tuple(reference.shape)} and {tuple(other.shape)} cannot be compared; give the same chunk of both."
        )
    for tensor in (reference, other):
        if not tensor.is_floating_point():
            raise BadInputError(f"a tensor of {tensor.dtype} has no rounding to compare; expected a floating dtype.")


def _sums(a: Tensor, b: Tensor, ulps: Tensor, floor: float) -> _Sums:
    """The sums of rows of pairs in float64, per channel."""
    lost_a, lost_b = ~a.isfinite(), ~b.isfinite()
    lost = lost_a | lost_b
    same = (a == b) | (a.isnan() & b.isnan())
    x, y = a.masked_fill(lost, 0.0), b.masked_fill(lost, 0.0)
    pairs = (~lost).sum(0).double()
    mean_a, mean_b = (side.sum(0) / pairs.clamp(min=1) for side in (x, y))
    off_a, off_b = (x - mean_a).masked_fill(lost, 0.0), (y - mean_b).masked_fill(lost, 0.0)
    error, relative = _errors(x, y, (~lost).sum(1), floor)
    return _Sums(
        pairs=pairs,
        mean_a=mean_a,
        mean_b=mean_b,
        aa=off_a.square().sum(0),
        bb=off_b.square().sum(0),
        ab=(off_a * off_b).sum(0),
        error=error.sum(0),
        squares=error.square().sum(0),
        relative=relative.sum(0),
        lost_a=lost_a.sum(0).double(),
        lost_b=lost_b.sum(0).double(),
        mismatches=(lost & ~same).sum(0).double(),
        largest=error.amax(0),
        ulps=ulps.amax(0),
    )


def _errors(x: Tensor, y: Tensor, kept: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    error, size = (x - y).abs(), x.abs()
    least = floor * size.sum(1, keepdim=True) / kept[:, None].clamp(min=1)
    against = torch.maximum(size, least)
    relative = torch.where(against > 0, error / against, (error > 0).double())
    return error, relative


def _pooled(parts: _Sums) -> _Sums:
    """One group made of those along the first dimension (Chan, Golub, LeVeque 1979)."""
    pairs = parts.pairs.sum(0)
    share = parts.pairs / pairs.clamp(min=1)
    mean_a, mean_b = (share * parts.mean_a).sum(0), (share * parts.mean_b).sum(0)
    off_a, off_b = parts.mean_a - mean_a, parts.mean_b - mean_b
    return _Sums(
        pairs=pairs,
        mean_a=mean_a,
        mean_b=mean_b,
        aa=(parts.aa + parts.pairs * off_a.square()).sum(0),
        bb=(parts.bb + parts.pairs * off_b.square()).sum(0),
        ab=(parts.ab + parts.pairs * off_a * off_b).sum(0),
        error=parts.error.sum(0),
        squares=parts.squares.sum(0),
        relative=parts.relative.sum(0),
        lost_a=parts.lost_a.sum(0),
        lost_b=parts.lost_b.sum(0),
        mismatches=parts.mismatches.sum(0),
        largest=parts.largest.amax(0),
        ulps=parts.ulps.amax(0),
    )


def _columns(s: _Sums) -> DivergenceColumns:
    some = s.pairs > 0
    n = torch.where(some, s.pairs, torch.nan)
    raw_a, raw_b = s.aa + s.pairs * s.mean_a.square(), s.bb + s.pairs * s.mean_b.square()
    varies = (s.aa > n * (_CONSTANT * s.mean_a).square()) & (s.bb > n * (_CONSTANT * s.mean_b).square())
    pearson = torch.where(varies, _alignment(s.ab, s.aa, s.bb), torch.nan)
    return DivergenceColumns(
        count=s.pairs,
        mae=s.error / n,
        mape=s.relative / n,
        pearson=pearson,
        max_error=torch.where(some, s.largest, torch.nan),
        cosine=_alignment(s.ab + s.pairs * s.mean_a * s.mean_b, raw_a, raw_b),
        # 0 / 0, no signal and no noise, is NaN; no noise is infinite.
        sqnr_db=10 * torch.log10(raw_a / s.squares),
        ulp_max=torch.where(some, s.ulps, torch.nan),
        non_finite_reference=s.lost_a,
        non_finite_other=s.lost_b,
        mismatches=s.mismatches,
    )


def _alignment(ab: Tensor, aa: Tensor, bb: Tensor) -> Tensor:
    """ab / sqrt(aa bb), exactly 1 for equal sides; NaN where one of them is 0."""
    return (ab.sign() * ((ab / aa).abs() * (ab / bb).abs()).sqrt()).clamp(-1.0, 1.0)
