"""Random numbers that depend on a key and a position alone, so that a draw is the same whenever it is repeated.

Holds no state, touches no global generator, and does not decide which key belongs to which site or call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from noisescope.inject import gpu, native
from noisescope.inject.keys import mix, signed
from noisescope.inject.plain import is_plain

CHUNK = 1 << 24
LANES = 16


@dataclass(frozen=True)
class Draw:
    """A stream of random numbers. The same question to the same draw has the same answer on every device."""

    key: int

    def child(self, number: int) -> Draw:
        """A stream of its own."""
        return Draw(mix(self.key, number))

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal float32, in the shape and on the device of `like`."""
        out = torch.empty(like.shape, dtype=torch.float32, device=like.device)
        if takes_kernel(out):
            kernel_of(out).normal_(out, self.key)
            return out
        return portable_normal(out.numel(), self.key, out.device).view(out.shape)

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform float32 in [0, 1) with 24 bits, in the shape and on the device of `like`."""
        out = torch.empty(like.shape, dtype=torch.float32, device=like.device)
        if takes_kernel(out):
            kernel_of(out).uniform_(out, self.key)
            return out
        return portable_uniform(out.numel(), self.key, out.device).view(out.shape)


def takes_kernel(out: Tensor) -> bool:
    """Whether a kernel can write to a tensor: it does so behind the back of who traces, fakes or records operations."""
    if torch.compiler.is_compiling() or torch._C._is_tracing() or is_in_torch_dispatch_mode() or not is_plain(out):
        return False
    return native.available() if out.is_cpu else gpu.available(out.device)


def kernel_of(out: Tensor) -> ModuleType:
    """The module that fills tensors of this device by a kernel."""
    return native if out.is_cpu else gpu


def portable_uniform(count: int, key: int, device: torch.device) -> Tensor:
    """Elements 0 to count of the uniform stream, in torch operations alone."""
    return _by_chunk(_uniform_chunk, count, key, device)


def portable_normal(count: int, key: int, device: torch.device) -> Tensor:
    """Elements 0 to count of the normal stream, in torch operations alone."""
    return _by_chunk(_normal_chunk, count, key, device)


def _by_chunk(chunk: Callable[[int, int, torch.device], Tensor], count: int, key: int, device: torch.device) -> Tensor:
    """Every chunk has hash keys of its own, so that a position fits 32 bits and no stream repeats."""
    starts = range(0, max(count, 1), CHUNK)
    parts = [chunk(min(CHUNK, count - start), mix(key, start // CHUNK), device) for start in starts]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _uniform_chunk(count: int, words: int, device: torch.device) -> Tensor:
    return _right(_hashes(count, words, device), 8).to(torch.float32).mul_(2.0**-24)


def _normal_chunk(count: int, words: int, device: torch.device) -> Tensor:
    """Box-Muller over blocks of 32: element j and j + 16 are one pair. The last block is computed whole."""
    blocks = -(-count // (2 * LANES))
    hashes = _hashes(blocks * 2 * LANES, words, device).view(blocks, 2, LANES)
    first, second = hashes[:, 0], hashes[:, 1]
    radius = _right(first, 1).to(torch.float32).mul_(2.0**-31).add_(2.0**-32).log_().mul_(-2.0).sqrt_()
    # A half circle; bit 7 of the hash, below what a float32 angle can hold, reflects it to the other half.
    angle = second.to(torch.float32).mul_(math.pi * 2.0**-32)
    cosine = angle.cos().mul_(1 - (second & 128) / 64)
    return torch.stack((angle.sin_().mul_(radius), cosine.mul_(radius)), dim=1).view(-1)[:count]


def _hashes(count: int, words: int, device: torch.device) -> Tensor:
    """One 32-bit hash per position. The key enters twice: added to the counter alone it would make shifted copies."""
    h = torch.arange(count, dtype=torch.int32, device=device)
    h = h.mul_(signed(0x9E3779B9)).add_(signed(words & 0xFFFFFFFF))
    h = h.bitwise_xor_(_right(h, 16)).mul_(0x21F0AAAD).add_(signed(words >> 32))
    return h.bitwise_xor_(_right(h, 15)).mul_(signed(0xD35A2D97))


def _right(h: Tensor, bits: int) -> Tensor:
    """A shift that brings in zeros: torch shifts int32 with its sign."""
    return (h >> bits).bitwise_and_((1 << (32 - bits)) - 1)
