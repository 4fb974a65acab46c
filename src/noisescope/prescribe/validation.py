"""The commands by which each step of a migration is validated: captures once on both sides, then a comparison each.

It runs none of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

SAMPLES = 8
REFERENCE = "reference.capture"
# Largest mean relative errors, and the dtype of the target, by priority.
LIMITS, DTYPES = {0: 0.05, 1: 0.05, 2: 0.10}, {0: "float16", 1: "float16", 2: "bfloat16", 3: "bfloat16"}
_OF_ITS_OWN = ("--layers", "--out")


@dataclass(frozen=True)
class Move:
    """What is moved and to where, in words of the command line. `loading` are options that the model needs.

    `compared` is the command that made the comparison, if there is one: repeating it is what shows a repair.
    """

    model: str
    data: str
    device: str = "cpu"
    loading: tuple[str, ...] = ()
    compared: str = ""

    def _on(self, verb: str, *more: str) -> str:
        return shlex.join(["noisescope", verb, self.model, *self.loading, "--data", self.data, *more])

    def captures(self, commands: Sequence[str]) -> tuple[str, ...]:
        """What these commands compare: made once on the reference machine, and once for each dtype on the target."""
        dtypes = [dtype for dtype in dict.fromkeys(DTYPES.values()) if any(_file(dtype) in one for one in commands)]
        if not dtypes:
            return ()
        samples = ("--samples", str(SAMPLES))
        target = ("--device", self.device, "--no-dither")
        return (
            # A reference in a short dtype has rounding of its own, which would count against the target.
            self._on("capture", *samples, "--dtype", "float32", "--out", REFERENCE),
            *(self._on("capture", *samples, *target, "--dtype", one, "--out", _file(one)) for one in dtypes),
        )

    def comparison(self, priority: int, layers: Sequence[int | None]) -> str:
        """Of the captures of both sides."""
        words = ["noisescope", "compare", REFERENCE, _file(DTYPES[priority])]
        return shlex.join([*words, *_chosen(layers), "--max-mape", f"{LIMITS[priority]:g}"])

    def again(self, layers: Sequence[int | None]) -> str:
        """The comparison that found it, on these layers."""
        if not self.compared:
            return self.comparison(0, layers)
        return shlex.join([*_without(shlex.split(self.compared)), *_chosen(layers)])

    def check_of_operators(self, priority: int) -> str:
        """Every operator call on the target against its own algebra."""
        return self._on("locate", "--device", self.device, "--dtype", DTYPES[priority])

    def score(self, metric: str) -> str:
        """What the workload gives on the target, without noise."""
        more = ("--metric", metric, "--noise-levels", "0", "--no-threshold")
        return self._on("robustness", *more, "--device", self.device, "--dtype", DTYPES[3])


def _file(dtype: str) -> str:
    return f"target-{dtype}.capture"


def _chosen(layers: Sequence[int | None]) -> list[str]:
    """A place outside the layers has no number, so then all are looked at."""
    numbers = [layer for layer in layers if layer is not None]
    return ["--layers", ",".join(map(str, numbers))] if numbers and len(numbers) == len(layers) else []


def _without(words: Sequence[str]) -> list[str]:
    """A command line without what the new one says itself."""
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word.partition("=")[0] not in _OF_ITS_OWN:
            kept.append(word)
        skip = word in _OF_ITS_OWN
    return kept
