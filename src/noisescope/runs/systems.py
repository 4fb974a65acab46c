"""Makes a second system of a model that can be compared with it on one machine: compiled layers, or int8 linears.

Each keeps the module paths of the model, so that it is compared place by place. The model itself is not changed.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import nn

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.model.layout import layout_of


def as_system(model: nn.Module, name: str) -> nn.Module:
    """The model run in another way: one of SYSTEMS. "eager" is the model as it is."""
    if name not in SYSTEMS:
        raise unknown_name("system", name, SYSTEMS)
    return SYSTEMS[name](model)


def _eager(model: nn.Module) -> nn.Module:
    return model


def _compiled(model: nn.Module) -> nn.Module:
    """Every layer compiled by itself: what is between the borders of layers runs in fused kernels."""
    other = copy.deepcopy(model)
    paths = layout_of(other).layers
    if not paths:
        raise BadInputError("no stack of layers was found, so there is nothing to compile layer by layer.")
    for path in paths:
        other.get_submodule(path).compile()
    return other


def _int8(model: nn.Module) -> nn.Module:
    """Linear layers with int8 weights, and inputs that are quantized as they come."""
    if any(weight.device.type != "cpu" or weight.dtype is not torch.float32 for weight in model.parameters()):
        raise BadInputError("int8 dynamic quantization needs a float32 model on the CPU; use --dtype float32.")
    with warnings.catch_warnings():
        # torch announces that this moves to torchao; the modules and what they compute are the same.
        warnings.simplefilter("ignore")
        found: nn.Module = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    return found


SYSTEMS: Mapping[str, Callable[[nn.Module], nn.Module]] = {"eager": _eager, "compiled": _compiled, "int8": _int8}
