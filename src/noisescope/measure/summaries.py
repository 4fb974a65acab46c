"""Writes channel summaries as named arrays and reads them back to the last bit, so that a run folder can keep them.

It judges nothing; `noisescope.measure.outliers` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from noisescope.core.codec import decode, encode
from noisescope.core.errors import BadInputError
from noisescope.measure.outliers import ChannelSummary

Arrays = Mapping[str, npt.NDArray[np.generic]]
_HEADS = "heads"


@dataclasses.dataclass(frozen=True)
class _Head:
    """What of a summary is no tuple of numbers."""

    path: str
    side: str
    tokens: int
    unplaced: int
    sparsity: float


@dataclasses.dataclass(frozen=True)
class _Heads:
    of: tuple[_Head, ...]


_SINGLE = tuple(field.name for field in dataclasses.fields(_Head))
_MANY = tuple(field.name for field in dataclasses.fields(ChannelSummary) if field.name not in _SINGLE)


def to_arrays(summaries: Sequence[ChannelSummary]) -> dict[str, npt.NDArray[np.generic]]:
    """All summaries: one head in JSON, and an array for each field that is a tuple."""
    heads = _Heads(tuple(_Head(*(getattr(summary, name) for name in _SINGLE)) for summary in summaries))
    arrays: dict[str, npt.NDArray[np.generic]] = {_HEADS: np.frombuffer(encode(heads).encode(), dtype=np.uint8)}
    for number, summary in enumerate(summaries):
        arrays |= {f"{number}.{name}": np.array(getattr(summary, name)) for name in _MANY}
    return arrays


def from_arrays(arrays: Arrays) -> tuple[ChannelSummary, ...]:
    """The summaries that `to_arrays` wrote."""
    try:
        heads = decode(_Heads, arrays[_HEADS].tobytes().decode("utf-8", "replace")).of
        for number in range(len(heads)):
            _check({name: arrays[f"{number}.{name}"] for name in _MANY})
        return tuple(
            ChannelSummary(
                **{name: getattr(head, name) for name in _SINGLE},
                **{name: _tuples(arrays[f"{number}.{name}"].tolist()) for name in _MANY},
            )
            for number, head in enumerate(heads)
        )
    except KeyError as missing:
        raise BadInputError(f"array {missing} is missing: expected those of channel summaries.") from None


def _check(of: Arrays) -> None:
    """Refuse arrays that are not of the same channels."""
    channels = of["peaks"].shape
    for name, array in of.items():
        fits = {
            "place_peaks": array.shape == (3, *channels),
            "position_peaks": array.ndim == 1,
            "squared_gradients": array.shape in (channels, (0,)),
        }.get(name, array.shape == channels)
        if not fits or len(channels) != 1 or array.dtype.kind not in "fi":
            raise BadInputError(f"array {name} of {array.dtype} {array.shape}: not one of {channels} channels.")


def _tuples(plain: Any) -> Any:
    return tuple(map(_tuples, plain)) if isinstance(plain, list) else plain
