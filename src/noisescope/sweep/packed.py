"""A loaded model with its tasks as one picklable object whose weights are arrays apart, to be read in place by many.

It sends nothing anywhere. Weights in place cannot be written to, and a bench writes to none.
"""

from __future__ import annotations

import io
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noisescope.measure.batches import prepare
from noisescope.model.placement import is_spread
from noisescope.sweep.bench import ModelBench, Task

# Smaller tensors and buffers, which a model may write to, are copied by every reader.
_SMALL = 1 << 16


@dataclass(frozen=True, eq=False)
class PackedBench:
    """Makes a bench with the very weights that were packed."""

    skeleton: bytes
    arrays: tuple[np.ndarray[Any, Any], ...]
    tasks: tuple[Task, ...]

    @property
    def nbytes(self) -> int:
        """The size of the weights and of all else."""
        return len(self.skeleton) + sum(array.nbytes for array in self.arrays)

    def __call__(self) -> ModelBench:
        """The bench, on the device that the model was on; of several of a kind the first that is seen here."""
        model, tokenizer = _Reader(self.skeleton, self.arrays).load()
        return ModelBench(model, [prepare(t.workload, tokenizer, t.metric, t.settings) for t in self.tasks])


def packed(model: nn.Module, tokenizer: Any, tasks: tuple[Task, ...]) -> PackedBench | None:
    """The model packed; None for one that cannot be, because of a hook or class that is nowhere by name.

    Weights in the memory of the host are not copied. One whose parts lie on several devices is refused as well: where
    they lie elsewhere is for whoever loads it there.
    """
    if is_spread(model):
        return None
    skeleton = io.BytesIO()
    writer = _Writer(skeleton)
    try:
        writer.dump((model, tokenizer))
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return PackedBench(skeleton.getvalue(), tuple(writer.arrays), tasks)


@dataclass(frozen=True)
class _Place:
    """Where a tensor is to be found, and what it is like."""

    index: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str
    parameter: bool
    trained: bool


class _Writer(pickle.Pickler):
    """Pickles all but tensors, which become arrays of bytes; one that is met twice, such as a tied weight, once."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.arrays: list[np.ndarray[Any, Any]] = []
        # The tensor is kept with its place: the id of one that is gone may become another's.
        self._places: dict[int, tuple[Tensor, _Place]] = {}

    def persistent_id(self, met: Any) -> _Place | None:
        # A view of odd strides is left to torch: laid out anew it might be summed in another order.
        if type(met) not in (Tensor, nn.Parameter) or not met.is_contiguous() or met.layout != torch.strided:
            return None
        if id(met) not in self._places:
            is_parameter = isinstance(met, nn.Parameter)
            tensor = met.detach()
            place = _Place(
                len(self.arrays), met.dtype, tuple(met.shape), met.device.type, is_parameter, met.requires_grad
            )
            self.arrays.append(tensor.cpu().reshape(-1).view(torch.uint8).numpy())
            self._places[id(met)] = met, place
        return self._places[id(met)][1]


class _Reader(pickle.Unpickler):
    """The reverse. Weights on the CPU stay where the arrays are."""

    def __init__(self, skeleton: bytes, arrays: tuple[np.ndarray[Any, Any], ...]) -> None:
        super().__init__(io.BytesIO(skeleton))
        self._arrays = arrays
        self._read: dict[int, Tensor] = {}

    def persistent_load(self, place: _Place) -> Tensor:
        if place.index not in self._read:
            self._read[place.index] = _tensor(self._arrays[place.index], place)
        return self._read[place.index]


def _tensor(array: np.ndarray[Any, Any], place: _Place) -> Tensor:
    if not place.parameter or array.nbytes < _SMALL:
        array = array.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        flat = torch.from_numpy(array).view(place.dtype)
    tensor = flat.reshape(place.shape).to(place.device)
    return nn.Parameter(tensor, requires_grad=place.trained) if place.parameter else tensor
