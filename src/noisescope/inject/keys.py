"""64-bit keys of random streams, the same in every process and on every device.

It draws nothing.
"""

from __future__ import annotations

import hashlib

WORD = 0xFFFFFFFFFFFFFFFF
GOLDEN = 0x9E3779B97F4A7C15


def site_key(*parts: object) -> int:
    """A 64-bit key from strings and integers, the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def mix(key: int, *counters: int) -> int:
    """A 64-bit key for a path of counters under a key: neighbours on any level have unrelated streams."""
    for counter in counters:
        key = _finalize((key ^ _finalize(counter + GOLDEN)) + GOLDEN)
    return key & WORD


def _finalize(z: int) -> int:
    z &= WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def signed(word: int) -> int:
    """The int32 that has the bits of a 32-bit word."""
    return word - (1 << 32) if word >> 31 else word
