"""Runs a model on a short sample with some outputs multiplied, and tells what its linear layers are given then.

Before a linear layer computes, what it is given is put right again, so that all layers are tried in one run. This
module changes no weight and concludes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from noisescope.model.linears import matrix_of
from noisescope.model.sample import sample_batch

# Long enough that hardly a channel is 0 at every token, short enough for every model's positions.
_LENGTH = 32
_PARAMETERS = ({"weight"}, {"weight", "bias"})


class Answer(NamedTuple):
    """For each input channel of a linear layer: whether it doubled, and whether it stayed. Both are so of zeros."""

    doubled: Tensor
    same: Tensor


class Probe:
    """A model in eval mode: what these linear layers read of a sample, and what its norms made of what.

    `made` has every module with a weight per channel, a norm or not. Modules that run twice are in neither.
    """

    def __init__(self, model: nn.Module, linears: Sequence[str], batch: Mapping[str, Tensor] | None = None) -> None:
        self.model = model
        self._batch = sample_batch(model, _LENGTH) if batch is None else batch
        self._linears = {path: model.get_submodule(path) for path in linears}
        self.given: dict[str, Tensor] = {}
        self.made: dict[str, tuple[Tensor, Tensor]] = {}
        self._clean = self._listen()

    def _listen(self) -> Tensor:
        calls: Counter[str] = Counter()

        def hear(path: str, given: Any, made: Any) -> None:
            calls[path] += 1
            if path in self._linears:
                self.given[path] = given[0]
            else:
                self.made[path] = (given[0], made)

        scalers = {path: module for path, module in self.model.named_modules() if _is_scaler(module)}
        with _hooked() as handles:
            for path, module in (self._linears | scalers).items():
                handles.append(module.register_forward_hook(lambda _, x, y, path=path: hear(path, x, y)))
            clean = self._run()
        for path in (path for path, count in calls.items() if count > 1):
            self.given.pop(path, None)
            self.made.pop(path, None)
        return clean

    def doubling(self, marked: Mapping[str, Sequence[int]]) -> dict[str, Answer]:
        """What every linear layer is given when these output channels of these linear layers are twice as large."""
        found: dict[str, Answer] = {}

        def put_right(path: str, given: Any) -> Any:
            clean, seen = self.given[path], given[0]
            others = tuple(range(clean.dim() - 1))
            found[path] = Answer((seen == 2 * clean).all(others).cpu(), (seen == clean).all(others).cpu())
            return clean, *given[1:]

        with _hooked() as handles:
            for path, rows in marked.items():
                factors = torch.ones(self.rows(path), dtype=torch.float64)
                factors[list(rows)] = 2.0
                handles.append(_multiply_output(self._linears[path], factors))
            for path in self.given:
                module = self._linears[path]
                handles.append(module.register_forward_pre_hook(lambda _, x, path=path: put_right(path, x)))
            self._run()
        return found

    def stays(self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> bool:
        """Whether the answer stays, to the bit, when what modules give and what linear layers read is multiplied so."""
        with _hooked() as handles:
            for path, factors in outputs.items():
                handles.append(_multiply_output(self.model.get_submodule(path), factors))
            for path, factors in inputs.items():
                handles.append(_multiply_input(self._linears[path], factors))
            return torch.equal(self._run(), self._clean)

    def rows(self, path: str) -> int:
        """How many values a linear layer gives."""
        return int(matrix_of(self._linears[path]).shape[0])

    def columns(self, path: str) -> int:
        """How many values a linear layer reads."""
        return int(matrix_of(self._linears[path]).shape[1])

    def _run(self) -> Tensor:
        with torch.no_grad():
            return _first(self.model(**self._batch))


def _is_scaler(module: nn.Module) -> bool:
    """Whether a module has one weight per channel, at most a bias besides, and no parts."""
    own = {name: weight for name, weight in module._parameters.items() if weight is not None}
    return set(own) in _PARAMETERS and own["weight"].dim() == 1 and not any(True for _ in module.children())


def _multiply_output(module: nn.Module, factors: Tensor) -> RemovableHandle:
    return module.register_forward_hook(lambda _, given, made: made * factors.to(made.device, made.dtype))


def _multiply_input(module: nn.Module, factors: Tensor) -> RemovableHandle:
    return module.register_forward_pre_hook(
        lambda _, given: (given[0] * factors.to(given[0].device, given[0].dtype), *given[1:])
    )


def _first(out: Any) -> Tensor:
    """The first tensor of what a model returns."""
    if isinstance(out, Tensor):
        return out
    values = out.values() if isinstance(out, dict) else out
    return next(value for value in values if isinstance(value, Tensor))


@contextmanager
def _hooked() -> Iterator[list[RemovableHandle]]:
    """A list of hooks that are gone at the end of the block."""
    handles: list[RemovableHandle] = []
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()
