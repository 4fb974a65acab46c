"""Makes a second system of a model to be compared with it on one machine: compiled, with int8 linears, or as ONNX.

Each keeps the module paths of the model, so that it is compared place by place. The model itself is not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

from torch import nn

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.model.failures import first_line
from noisescope.model.layout import layout_of
from noisescope.model.pretrained import quiet
from noisescope.runs.exported import Exported


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
    """Linear layers with int8 weights, one scale per output channel, and inputs quantized per token as they come."""
    if not any(isinstance(module, nn.Linear) for path, module in model.named_modules() if _in_a_layer(model, path)):
        raise BadInputError("no layer of this model holds an nn.Linear, which is what torchao quantizes to int8.")
    try:
        with quiet():
            from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
    except ImportError as problem:
        raise BadInputError(
            f"the system int8 needs torchao, which is not here ({first_line(problem)}): pip install 'noisescope[int8]'."
        ) from None
    other = copy.deepcopy(model)
    quantize_(other, Int8DynamicActivationInt8WeightConfig())
    return other


def _in_a_layer(model: nn.Module, path: str) -> bool:
    return layout_of(model).layer_of(path)[0] is not None


def _onnx(model: nn.Module) -> nn.Module:
    """The graph that torch's exporter makes of it, run by onnxruntime."""
    return Exported(model)


SYSTEMS: Mapping[str, Callable[[nn.Module], nn.Module]] = {
    "eager": _eager,
    "compiled": _compiled,
    "int8": _int8,
    "onnx": _onnx,
}
