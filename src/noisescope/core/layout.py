"""What the injector needs to know of a model: which modules are its layers and what some modules compute.

A record of module paths only; finding them is the model room's business.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Module paths by the part they play.

    `written_out` names modules that compute an operator by hand (path, operator); `linear` modules whose matrix
    product is a linear layer under another spelling; `passed_over` modules that only keep books, such as rotary
    position tables.
    """

    layers: tuple[str, ...] = ()
    written_out: tuple[tuple[str, str], ...] = ()
    linear: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()

    def layer_of(self, path: str) -> tuple[int | None, str]:
        """The layer that a module belongs to, and its path inside that layer."""
        parts = path.split(".")
        for end in range(len(parts), 0, -1):
            index = self._index.get(".".join(parts[:end]))
            if index is not None:
                return index, ".".join(parts[end:])
        return None, path

    @property
    def _index(self) -> dict[str, int]:
        return {path: i for i, path in enumerate(self.layers)}
