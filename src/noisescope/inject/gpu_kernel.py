"""The Triton kernel behind `noisescope.inject.gpu`: noise landed in place, with a tally of what it changed.

It chooses no keys and checks nothing. The arithmetic is that of native.c, multiply-add by multiply-add, so that a GPU
and a CPU draw the same numbers to the bit. This module can be imported only where Triton is.
"""

from __future__ import annotations

import triton
import triton.language as tl

LANES = tl.constexpr(16)
PHI = tl.constexpr(0x9E3779B9)
FLOAT_LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def _hash(h, high):
    h ^= h >> 16
    h = h * 0x21F0AAAD + high
    h ^= h >> 15
    return h * 0xD35A2D97


@triton.jit
def _radius(h):
    u = tl.fma((h >> 1).to(tl.int32).to(tl.float32), 4.656612873077393e-10, 2.3283064365386963e-10)
    b = (u.to(tl.uint32, bitcast=True) - 0x3F3504F3).to(tl.uint32)
    e = (b.to(tl.int32, bitcast=True) >> 23).to(tl.float32)
    f = ((b & 0x7FFFFF) + 0x3F3504F3).to(tl.uint32).to(tl.float32, bitcast=True) - 1.0
    p = tl.fma(f, 0.202137815, -0.324451573)
    p = tl.fma(p, f, 0.345016609)
    p = tl.fma(p, f, -0.398003315)
    p = tl.fma(p, f, 0.499398181)
    p = tl.fma(p, f, -0.666701179)
    p = tl.fma(p, f, 1.0000073)
    p = tl.fma(p, f, -1.99999989)
    return tl.sqrt_rn(tl.fma(p, f, e * -1.38629436))


@triton.jit
def _gaussian_pair(counter, high, gain):
    h = _hash(counter + (LANES * PHI & 0xFFFFFFFF), high)
    r = _radius(_hash(counter, high)) * gain
    x = h.to(tl.int32, bitcast=True).to(tl.float32) * 4.656612873077393e-10
    z = x * x
    s = tl.fma(z, 0.00015167853163, -0.0046741574957)
    s = tl.fma(s, z, 0.079689926866)
    s = tl.fma(s, z, -0.64596376129)
    s = tl.fma(s, z, 1.5707963201) * x
    c = tl.fma(z, 0.00085819061926, -0.020810627519)
    c = tl.fma(c, z, 0.25365074464)
    c = tl.fma(c, z, -1.2336982147)
    c = tl.fma(c, z, 0.99999995347)
    flip = (h << 24) & 0x80000000
    return r * s, r * (c.to(tl.uint32, bitcast=True) ^ flip).to(tl.float32, bitcast=True)


@triton.jit
def _unit(counter, high):
    return (_hash(counter, high) >> 8).to(tl.int32).to(tl.float32) * 5.960464477539063e-08


@triton.jit
def _draw(offset, low, high, gain, UNIFORM: tl.constexpr, UNIT: tl.constexpr):
    """Two draws per lane, for `offset` and `offset + 16`."""
    high = high.to(tl.uint32, bitcast=True)
    counter = low.to(tl.uint32, bitcast=True) + offset.to(tl.uint32) * PHI
    if not UNIFORM:
        return _gaussian_pair(counter, high, gain)
    shift: tl.constexpr = 0.0 if UNIT else 0.5
    other = counter + (LANES * PHI & 0xFFFFFFFF)
    return (_unit(counter, high) - shift) * gain, (_unit(other, high) - shift) * gain


@triton.jit
def _within(x, largest):
    # NaN, from infinity times 0, becomes the largest.
    x = tl.where(x < largest, x, largest)
    return tl.where(x > -largest, x, -largest)


@triton.jit
def _whole_ulps(before, error, uniform, DIGITS: tl.constexpr, LEAST: tl.constexpr):
    """The error in whole ulps of the value with its second moment kept; see `landing.land`."""
    exponent = (before.to(tl.uint32, bitcast=True) >> 23) & 0xFF
    exponent = tl.where(exponent > LEAST, exponent, LEAST).to(tl.uint32)
    ulps: tl.constexpr = 2.0**DIGITS
    part: tl.constexpr = 2.0**-DIGITS
    t = tl.abs(error) * ulps * ((254 - exponent) << 23).to(tl.uint32).to(tl.float32, bitcast=True)
    f = tl.floor(t)
    k = tl.where(uniform * (2.0 * f + 1.0) < (t - f) * (t + f), f + 1.0, f)
    size = k * part * (exponent << 23).to(tl.uint32).to(tl.float32, bitcast=True)
    return tl.where(t < 1048576.0, tl.where(error < 0.0, -size, size), error)


@triton.jit
def _landed(
    before, n, uniform, largest, RELATIVE: tl.constexpr, LAND: tl.constexpr, DIGITS: tl.constexpr, LEAST: tl.constexpr
):
    n = _within(n, FLOAT_LARGEST)
    if LAND:
        error = before * n if RELATIVE else n
        moved = before + _whole_ulps(before, error, uniform, DIGITS, LEAST)
    else:
        moved = tl.fma(before, n, before) if RELATIVE else before + n
    return _within(moved, largest)


# Keys and sizes differ from call to call: specialised on their values, the kernel would be compiled again and again.
@triton.jit(do_not_specialize=["count", "start", "low", "high", "round_low", "round_high", "every"])
def perturb(
    data, count, start, low, high, round_low, round_high, gain, largest, tally, every,
    UNIFORM: tl.constexpr, RELATIVE: tl.constexpr, LAND: tl.constexpr, DIGITS: tl.constexpr, LEAST: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Perturb elements start to start + count of a contiguous tensor, all of one pair of hash keys."""
    part = tl.program_id(0)
    row = part * ROWS + tl.arange(0, ROWS)[:, None]
    first = row * (2 * LANES) + tl.arange(0, LANES)[None, :]
    second = first + LANES
    here, there = first < count, second < count
    place = data + start
    raw_a, raw_b = tl.load(place + first, mask=here), tl.load(place + second, mask=there)
    a, b = raw_a.to(tl.float32), raw_b.to(tl.float32)
    n_a, n_b = _draw(first, low, high, gain, UNIFORM, False)
    u_a, u_b = n_a, n_b
    if LAND:
        u_a, u_b = _draw(first, round_low, round_high, 1.0, True, True)
    new_a = _landed(a, n_a, u_a, largest, RELATIVE, LAND, DIGITS, LEAST).to(raw_a.dtype)
    new_b = _landed(b, n_b, u_b, largest, RELATIVE, LAND, DIGITS, LEAST).to(raw_b.dtype)
    able_a = here & (tl.abs(a) <= FLOAT_LARGEST)
    able_b = there & (tl.abs(b) <= FLOAT_LARGEST)
    after_a, after_b = new_a.to(tl.float32), new_b.to(tl.float32)
    tl.store(place + first, new_a, mask=able_a & (after_a != a))
    tl.store(place + second, new_b, mask=able_b & (after_b != b))
    # Of every group one part by lot: a fixed stride would meet the same columns of every row.
    group = part // every
    lot = _hash((low + group).to(tl.uint32), high.to(tl.uint32, bitcast=True)) >> 8
    if part % every == tl.where(group == 0, 0, lot.to(tl.int32) % every):
        old_a, old_b = tl.where(able_a, a, 0.0).to(tl.float64), tl.where(able_b, b, 0.0).to(tl.float64)
        d_a = tl.where(able_a, after_a, 0.0).to(tl.float64) - old_a
        d_b = tl.where(able_b, after_b, 0.0).to(tl.float64) - old_b
        tl.atomic_add(tally, tl.sum(able_a.to(tl.float64)) + tl.sum(able_b.to(tl.float64)))
        tl.atomic_add(tally + 1, tl.sum((d_a != 0.0).to(tl.float64)) + tl.sum((d_b != 0.0).to(tl.float64)))
        tl.atomic_add(tally + 2, tl.sum(d_a * d_a) + tl.sum(d_b * d_b))
        tl.atomic_add(tally + 3, tl.sum(old_a * old_a) + tl.sum(old_b * old_b))


@triton.jit(do_not_specialize=["count", "start", "low", "high"])
def fill(data, count, start, low, high, UNIFORM: tl.constexpr, ROWS: tl.constexpr):
    """Fill elements start to start + count of a contiguous float32 tensor with a stream, all of one pair of keys."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    first = row * (2 * LANES) + tl.arange(0, LANES)[None, :]
    n_a, n_b = _draw(first, low, high, 1.0, UNIFORM, True)
    place = data + start
    tl.store(place + first, n_a, mask=first < count)
    tl.store(place + first + LANES, n_b, mask=first + LANES < count)
