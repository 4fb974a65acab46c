"""Keyed noise by a Triton kernel for GPUs: one pass over the tensor, the numbers of the CPU's kernel, no wait.

Does not fall back by itself: `available` says whether there is a kernel for a device, `noisescope.inject.keyed` does
without. Nothing is imported or compiled before it is asked for.
"""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from noisescope.inject.keys import mix, signed
from noisescope.inject.native import FLOAT_LARGEST, KNOWN_UNIFORM, Shape

# Rows of 32 elements that one part of the kernel works on; wider parts leave too few registers.
ROWS, WARPS = 64, 4
CHUNK_BITS = 24
# The first element of each half of the first pairs in the normal stream of key 0.
KNOWN_NORMAL = (0.4743606746196747, 0.7616618871688843)
# One part in so many is tallied, by lot; rounding to whole ulps makes few and large errors and needs more.
SPARSE, DENSE = 32, 4
WHOLE_PARTS = 16
_WORD = 0xFFFFFFFF
# Mantissa bits, least exponent field as float32 has it, and largest value.
_GRIDS = {
    torch.float32: (23, 1, FLOAT_LARGEST),
    torch.bfloat16: (7, 1, torch.finfo(torch.bfloat16).max),
    torch.float16: (10, 113, 65504.0),
}


def available(device: torch.device) -> bool:
    """Whether tensors of this device can be perturbed by the kernel; the first call for a device compiles it."""
    return device.type == "cuda" and why_not(device.index or 0) is None


@functools.cache
def why_not(index: int) -> str | None:
    """Why there is no kernel for a GPU, or None when there is one."""
    if os.environ.get("NOISESCOPE_NATIVE") == "0":
        return "NOISESCOPE_NATIVE is 0"
    try:
        return _differences(torch.device("cuda", index))
    except Exception as problem:  # noqa: BLE001 - whatever keeps Triton from working, torch operations do without
        return f"{type(problem).__name__}: {problem}"


def _differences(device: torch.device) -> str | None:
    """What the kernel draws otherwise than it should."""
    normal, uniform = torch.empty(32, device=device), torch.empty(32, device=device)
    normal_(normal, 0)
    uniform_(uniform, 0)
    known = torch.tensor(KNOWN_UNIFORM) * 2.0**-24
    far = (normal[:: len(normal) // 2].cpu() - torch.tensor(KNOWN_NORMAL)).abs().max()
    if not torch.equal(uniform[: len(known)].cpu(), known) or not far < 1e-5:
        return "the kernel gives other numbers than the reference; report this with the versions of torch and triton"
    for dtype, plain in ((torch.float32, True), (torch.bfloat16, False)):
        values = torch.ones(4096, dtype=dtype, device=device)
        sums = torch.zeros(4, dtype=torch.float64, device=device)
        perturb_(values, 0, 0.1, Manner("gaussian", True, plain), sums)
        measured, changed, _, _ = sums.tolist()
        if measured != len(values) or changed != float((values != 1).sum()):
            return "the kernel counts wrongly; report this with the versions of torch and triton"
    return None


def normal_(out: Tensor, key: int) -> None:
    """Fill a contiguous float32 tensor with the standard normal stream of a key."""
    _fill(out, key, uniform=False)


def uniform_(out: Tensor, key: int) -> None:
    """Fill a contiguous float32 tensor with the uniform stream of a key, in [0, 1)."""
    _fill(out, key, uniform=True)


def takes(tensor: Tensor) -> bool:
    """Whether `perturb_` can be used on a tensor of a device that has the kernel."""
    return tensor.dtype in _GRIDS


class Manner(NamedTuple):
    """How noise lands: its shape, whether it goes by the size of each value, and how it is rounded.

    `plain` rounds to nearest, which keeps the strength of noise far above the last bit of float32; otherwise errors
    are whole ulps that keep it at any strength.
    """

    shape: Shape
    relative: bool
    plain: bool


def perturb_(y: Tensor, key: int, scale: float, manner: Manner, sums: Tensor) -> None:
    """Add noise of standard deviation `scale`, or `scale` times |y|, in place, as `native.perturb_` does.

    Adds to `sums`, four float64 on the device: values compared, changed, squared change, squared value. Nothing waits.
    """
    from noisescope.inject import gpu_kernel

    flat = y.detach() if y.is_contiguous() else y.detach().contiguous()
    digits, least, largest = _GRIDS[y.dtype]
    is_uniform = manner.shape == "uniform"
    # In float32, as the CPU's kernel has it.
    gain = float(np.float32(min(scale, FLOAT_LARGEST)) * np.float32(3.46410162 if is_uniform else 1.0))
    every = 1 if _parts(flat.numel()) <= WHOLE_PARTS else SPARSE if manner.plain else DENSE
    with torch.cuda.device(y.device):
        for number, start, size in _chunks(flat.numel()):
            words, rounding = mix(key, number), 0 if manner.plain else mix(key, 1, number)
            gpu_kernel.perturb[(_parts(size),)](
                flat, size, start, *_halves(words), *_halves(rounding), gain, largest, sums, every,
                UNIFORM=is_uniform, RELATIVE=manner.relative, LAND=not manner.plain, DIGITS=digits, LEAST=least,
                ROWS=ROWS, num_warps=WARPS, enable_fp_fusion=False,
            )  # fmt: skip
    if flat.data_ptr() != y.data_ptr():
        y.detach().copy_(flat)


def _fill(out: Tensor, key: int, *, uniform: bool) -> None:
    from noisescope.inject import gpu_kernel

    with torch.cuda.device(out.device):
        for number, start, size in _chunks(out.numel()):
            low, high = _halves(mix(key, number))
            gpu_kernel.fill[(_parts(size),)](
                out, size, start, low, high, UNIFORM=uniform, ROWS=ROWS, num_warps=WARPS, enable_fp_fusion=False
            )


def _halves(words: int) -> tuple[int, int]:
    """The lower and the upper half as the int32 with the same bits, the one type that every value of them has."""
    return signed(words & _WORD), signed(words >> 32)


def _chunks(count: int) -> list[tuple[int, int, int]]:
    """Number, start and size of each stretch that shares a pair of hash keys."""
    size = 1 << CHUNK_BITS
    return [(start // size, start, min(size, count - start)) for start in range(0, count, size)]


def _parts(count: int) -> int:
    return -(-count // (32 * ROWS))
