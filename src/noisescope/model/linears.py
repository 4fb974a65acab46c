"""Finds the linear layers of a model's stack, their weights as matrices, and which of them read the same input.

It runs the model once on a short sample, because only that shows what reads what. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.layout import Layout
from noisescope.core.precision import Group, Linear
from noisescope.model.layout import LINEAR_CLASSES, layout_of
from noisescope.model.sample import sample_batch


@dataclass(frozen=True)
class Linears:
    """The groups in the order of the layers, and what of the layers' weights is in none of them, and why."""

    groups: tuple[Group, ...]
    left_out: tuple[str, ...]


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer, under whatever spelling."""
    return isinstance(module, nn.Linear) or is_transposed(module)


def is_transposed(module: nn.Module) -> bool:
    """Whether a linear layer keeps its weight as input rows by output columns."""
    return any(kind.__name__ in LINEAR_CLASSES for kind in type(module).__mro__)


def matrix_of(module: nn.Module) -> Tensor:
    """The weight as output rows by input columns; a view of it."""
    weight: Tensor = module.get_parameter("weight").detach()
    return weight.T if is_transposed(module) else weight


@torch.no_grad()
def set_matrix(module: nn.Module, matrix: Tensor) -> None:
    """Write a weight that is given as output rows by input columns."""
    matrix_of(module).copy_(matrix)


def linear_groups(model: nn.Module, batch: Mapping[str, Tensor] | None = None, *, apart: bool = False) -> Linears:
    """The linear layers of the stack; those of one parent that read one tensor are a group, unless kept apart.

    Deployments fuse q, k and v, and gate and up, into one product, so they can only have one format.
    """
    layout = layout_of(model)
    inside = {
        path: module
        for path, module in model.named_modules()
        if is_linear(module) and layout.layer_of(path)[0] is not None
    }
    shared = _shared(model)
    own = {path: module for path, module in inside.items() if id(module.weight) not in shared}
    heard = inputs_of(model, own, batch)
    together: dict[tuple[object, ...], list[str]] = {}
    for path, number in heard.items():
        key = (path,) if apart else (path.rpartition(".")[0], number)
        together.setdefault(key, []).append(path)
    groups = [_group(layout, [(path, own[path]) for path in paths]) for paths in together.values()]
    groups.sort(key=lambda group: -1 if group.layer is None else group.layer)
    return Linears(tuple(groups), tuple(_left_out(model, layout, inside, heard)))


def inputs_of(
    model: nn.Module, modules: Mapping[str, nn.Module], batch: Mapping[str, Tensor] | None = None
) -> dict[str, int]:
    """For every module that runs, in order, a number for the tensor that it is given: equal if it is the same one."""
    seen: dict[int, int] = {}
    held: list[Tensor] = []
    numbers: dict[str, int] = {}

    def hear(path: str, given: tuple[Any, ...]) -> None:
        # Held, because the address of a tensor that is gone may be given to the next.
        held.append(given[0])
        numbers.setdefault(path, seen.setdefault(id(given[0]), len(seen)))

    handles = [
        module.register_forward_pre_hook(lambda _, given, path=path: hear(path, given))
        for path, module in modules.items()
    ]
    try:
        with torch.no_grad():
            model(**(sample_batch(model) if batch is None else batch))
    finally:
        for handle in handles:
            handle.remove()
    return numbers


def _group(layout: Layout, members: list[tuple[str, nn.Module]]) -> Group:
    linears = tuple(Linear(path, *matrix_of(module).shape) for path, module in members)
    paths = [linear.path for linear in linears]
    name = paths[0] + "".join(f"+{path.rpartition('.')[2]}" for path in paths[1:])
    return Group(name, layout.layer_of(paths[0])[0], linears)


def _shared(model: nn.Module) -> set[int]:
    """Weights that two modules or more use."""
    counts: dict[int, int] = {}
    for module in model.modules():
        for weight in module._parameters.values():
            if weight is not None:
                counts[id(weight)] = counts.get(id(weight), 0) + 1
    return {weight for weight, count in counts.items() if count > 1}


def _left_out(
    model: nn.Module, layout: Layout, inside: Mapping[str, nn.Module], heard: Mapping[str, int]
) -> Iterator[str]:
    shared = _shared(model)
    for path, module in inside.items():
        if id(module.weight) in shared:
            yield f"{path}: another module uses the same weight"
        elif path not in heard:
            yield f"{path}: did not run on the sample"
    for path, weight in model.named_parameters():
        owner = path.rpartition(".")[0]
        if weight.dim() > 1 and owner not in inside and layout.layer_of(owner)[0] is not None:
            yield f"{path}: {weight.numel():,} weights that are not those of a linear layer"
