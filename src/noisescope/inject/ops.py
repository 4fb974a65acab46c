"""Which torch functions compute which operator, and which of their operands carry a gradient out of it.

One row per spelling. What is not in the table is not an operator; a norm or activation that a model writes out by
hand has no function here and is recognised by its module instead (`Layout.written_out`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from noisescope.core.vocabulary import PRODUCTS
from noisescope.inject.kinds import Product

Function = Callable[..., Any]

_SPELLINGS: dict[str, tuple[Any, ...]] = {
    "linear": (F.linear, getattr(torch, "_grouped_mm", None), getattr(F, "grouped_mm", None)),
    "matmul": (
        torch.matmul,
        Tensor.matmul,
        Tensor.__matmul__,
        Tensor.__rmatmul__,
        torch.linalg.matmul,
        torch.mm,
        torch.spmm,
        Tensor.mm,
        torch.mv,
        Tensor.mv,
        torch.addmm,
        Tensor.addmm,
        Tensor.addmm_,
        torch.addmv,
        Tensor.addmv,
        torch.einsum,
        torch.tensordot,
        torch.inner,
        Tensor.inner,
        torch.dot,
        Tensor.dot,
    ),
    "bmm": (torch.bmm, Tensor.bmm, torch.baddbmm, Tensor.baddbmm, Tensor.baddbmm_, torch.addbmm, Tensor.addbmm),
    "attention": (F.scaled_dot_product_attention,),
    "softmax": (torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax),
    "silu": (F.silu,),
    "gelu": (F.gelu,),
    "layer_norm": (F.layer_norm, torch.layer_norm),
    "rms_norm": (F.rms_norm, torch.rms_norm),
}

OPERATOR_OF: dict[Function, str] = {
    function: operator for operator, functions in _SPELLINGS.items() for function in functions if function is not None
}


# Operators that a library registers with torch under a name of its own, when it is imported.
_REGISTERED = {("transformers", "grouped_mm_fallback"): "linear"}


def learn_registered() -> None:
    """Add the operators of the libraries that are loaded by now."""
    for (library, name), operator in _REGISTERED.items():
        function = getattr(getattr(torch.ops, library), name, None)
        if function is not None:
            OPERATOR_OF[function] = operator


def _open(function: Any) -> Function:
    """A copy of a torch function that does not offer itself to modes, so that only the operators inside it do."""
    names = {**function.__globals__, "has_torch_function": lambda *_: False}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


# Functions that hide several operators, and what to run instead so that the operators are seen.
COMPOSITES: dict[Function, Function] = {F.multi_head_attention_forward: _open(F.multi_head_attention_forward)}

# Their backward reads their own output, so the output must not be changed under autograd's feet.
KEEPS_OUTPUT = frozenset({"softmax", "attention"})

# The functions whose result is left @ right, plus an addend in front for some.
_SIMPLE_PRODUCTS: frozenset[Any] = frozenset(
    {torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.linalg.matmul}
    | {torch.mm, torch.spmm, Tensor.mm, torch.mv, Tensor.mv, torch.bmm, Tensor.bmm}
    | {torch.addmm, Tensor.addmm, torch.addmv, Tensor.addmv, torch.baddbmm, Tensor.baddbmm}
)

# Positions of the operands whose gradients leave the operator: the input and the weight, not the bias.
_OPERANDS: dict[str, tuple[int, ...]] = {
    "linear": (0, 1),
    "matmul": (0, 1),
    "bmm": (0, 1),
    "attention": (0, 1, 2),
    "softmax": (0,),
    "silu": (0,),
    "gelu": (0,),
    "layer_norm": (0, 2),
    "rms_norm": (0, 2),
}
_WITH_ADDEND = frozenset(
    {torch.addmm, Tensor.addmm, Tensor.addmm_, torch.addmv, Tensor.addmv, torch.baddbmm, Tensor.baddbmm}
    | {Tensor.baddbmm_, torch.addbmm, Tensor.addbmm}
)
_BY_NAME: dict[str, tuple[str, ...]] = {
    "linear": ("input", "weight"),
    "matmul": ("input", "other", "mat1", "mat2", "mat", "vec"),
    "bmm": ("input", "mat2", "batch1", "batch2"),
    "attention": ("query", "key", "value"),
    "softmax": ("input",),
    "silu": ("input",),
    "gelu": ("input",),
    "layer_norm": ("input", "weight"),
    "rms_norm": ("input", "weight"),
}


def is_product(function: Function, args: tuple[Any, ...]) -> bool:
    """False for an einsum over a single operand, which multiplies nothing."""
    return function is not torch.einsum or len(args) > 2 or (len(args) == 2 and isinstance(args[1], list | tuple))


def map_operands(
    operator: str, function: Function, call: tuple[tuple[Any, ...], dict[str, Any]], change: Callable[[Tensor], Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with `change` applied to every operand whose gradient leaves the operator, in a fixed order.

    The order is that of the operator's signature, so that an operand has one number however it is passed.
    """
    args, kwargs = call
    if function is torch.einsum:
        return tuple(_change_tensors(a, change) for a in args), kwargs
    chosen = (1, 2) if function in _WITH_ADDEND else _OPERANDS[operator]
    args = tuple([change(a) if i in chosen and isinstance(a, Tensor) else a for i, a in enumerate(args)])
    named = [name for name in _BY_NAME[operator] if isinstance(kwargs.get(name), Tensor)]
    return args, {**kwargs, **{name: change(kwargs[name]) for name in named}}


def _change_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_change_tensors(v, change) for v in value)
    return value


def product_of(operator: str, function: Function, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Product | None:
    """The product behind a call, for kinds that compute it anew; None where it cannot be taken apart."""
    args, kwargs = call
    if function is F.linear:
        named = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
        return Product.of_linear(named["input"], named["weight"], named.get("bias"))
    if operator not in PRODUCTS or function not in _SIMPLE_PRODUCTS or kwargs:
        return None
    if function in _WITH_ADDEND:
        return Product.of_linear(args[1], args[2].transpose(-2, -1), args[0])
    if len(args) != 2:
        return None
    reverse = function is Tensor.__rmatmul__
    return Product.of_matmul(args[1], args[0]) if reverse else Product.of_matmul(args[0], args[1])
