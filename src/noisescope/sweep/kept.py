"""Keeps what layers gave, by the inputs of the model and the number of layers run, within a number of bytes.

It runs no model and does not know whether what it is given to keep is clean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

# Further apart than this, too many layers would run again behind each boundary.
_WIDEST = 8
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, eq=False)
class Packed:
    """What a layer gave: the same structure with copies of its tensors on the CPU."""

    leaves: tuple[Any, ...]
    devices: tuple[torch.device | None, ...]
    spec: TreeSpec

    @property
    def nbytes(self) -> int:
        """The memory that its tensors take."""
        return sum(leaf.nbytes for leaf in self.leaves if isinstance(leaf, Tensor))

    def unpacked(self) -> Any:
        """The structure again. Its tensors are copies, because whoever gets them may write into them."""
        pairs = zip(self.leaves, self.devices, strict=True)
        leaves = [leaf.to(device, copy=True) if isinstance(leaf, Tensor) else leaf for leaf, device in pairs]
        return tree_unflatten(leaves, self.spec)


def pack(given: Any) -> Packed | None:
    """What a layer gave, to be kept; None if there is more in it than tensors and plain values."""
    leaves, spec = tree_flatten(given)
    if not all(isinstance(leaf, (Tensor, *_PLAIN)) for leaf in leaves):
        return None
    devices = tuple(leaf.device if isinstance(leaf, Tensor) else None for leaf in leaves)
    copies = tuple(leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return Packed(copies, devices, spec)


def content_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
    """A hash of all that a model is called with; None if there is more in it than tensors and plain values."""
    leaves, spec = tree_flatten((args, dict(sorted(kwargs.items()))))
    seen = hashlib.blake2b(repr(spec).encode(), digest_size=16)
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            seen.update(f"{leaf.dtype}{tuple(leaf.shape)}{leaf.device}".encode())
            seen.update(leaf.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
        elif isinstance(leaf, _PLAIN):
            seen.update(repr(leaf).encode())
        else:
            return None
    return seen.digest()


class Kept:
    """Layer outputs by content of the inputs and boundary; boundary n lies behind the first n layers.

    While there is room every boundary is kept. When it runs out every second one is let go, of all inputs alike: to run
    a few layers again on every batch costs less than to run all of them on some. Beyond that, new inputs are not kept.
    """

    def __init__(self, memory: float) -> None:
        self.room = memory
        self.step = 1
        self._of: dict[bytes, dict[int, Packed]] = {}

    def nearest(self, content: bytes, boundaries: Collection[int]) -> int:
        """The last of these boundaries at which something is kept for these inputs; 0 for none."""
        return max((b for b in self._of.get(content, ()) if b in boundaries), default=0)

    def get(self, content: bytes, boundary: int) -> Packed:
        """What is kept there."""
        return self._of[content][boundary]

    def keep(self, content: bytes, boundary: int, given: Any) -> None:
        """Keep what the layer in front of a boundary gave, if there is room."""
        if boundary % self.step or boundary in self._of.get(content, ()):
            return
        packed = pack(given)
        if packed is None:
            return
        while packed.nbytes > self.room and self.step < _WIDEST:
            self._thin_out()
        if packed.nbytes <= self.room and not boundary % self.step:
            self._of.setdefault(content, {})[boundary] = packed
            self.room -= packed.nbytes

    def clear(self) -> None:
        """Let go of everything."""
        for boundaries in self._of.values():
            self.room += sum(packed.nbytes for packed in boundaries.values())
        self._of.clear()

    def _thin_out(self) -> None:
        self.step *= 2
        for boundaries in self._of.values():
            for boundary in [b for b in boundaries if b % self.step]:
                self.room += boundaries.pop(boundary).nbytes
