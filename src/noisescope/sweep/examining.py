"""Examines calls as a run had them: chooses the check that fits an operator call or a module, and runs it.

It follows no model through its run; `observing` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from noisescope.core.vocabulary import PRODUCTS
from noisescope.inject.ops import OPERATOR_OF, product_of
from noisescope.inject.plain import is_plain
from noisescope.measure.judged import Judged, together
from noisescope.measure.judging import judge, leans
from noisescope.measure.oracles import check_activation, check_attention, check_lookup, check_softmax, sampled
from noisescope.measure.products import check_product, product_from
from noisescope.measure.replay import Call, aside, on_host, replay, tensors_of
from noisescope.measure.rounding import host, sum_unit

Kind = Literal["linear", "lookup", "leaf", "container"]
Function = Callable[..., Any]
_OF_CLASS = {
    nn.LayerNorm: "layer_norm",
    nn.RMSNorm: "rms_norm",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
    nn.Embedding: "embedding",
}
_SIGMAS = 4.0


class UncheckableError(Exception):
    """There is no check for this call; the message says why."""


@dataclass(frozen=True)
class Part:
    """A module and how it is checked. `operator` is what it is called in a verdict, if that is known beforehand."""

    kind: Kind
    operator: str | None = None


def part_of(module: nn.Module, written_out: str | None) -> Part | None:
    """How a module is checked as a whole; None for one whose operators are checked one by one."""
    forward = type(module).forward
    matrices = [w for w in module.parameters(recurse=False) if w.dim() > 1]
    if forward is nn.Linear.forward or (_is_conv1d(module) and matrices):
        return Part("linear", "linear")
    if isinstance(module, nn.Embedding):
        return Part("lookup" if forward is nn.Embedding.forward else "leaf", "embedding")
    if matrices or forward is nn.Module.forward:
        return None
    if any(True for _ in module.children()):
        return Part("container")
    return Part("leaf", written_out or _OF_CLASS.get(type(module)))


def _is_conv1d(module: nn.Module) -> bool:
    return any(c.__name__ == "Conv1D" for c in type(module).__mro__)


def check_linear(call: Call, signs: torch.Generator) -> Judged:
    """A linear layer, from its own weight."""
    module: Any = call.module
    weight = module.weight if _is_conv1d(module) else module.weight.mT
    return _product(_input(call), weight, module.bias, call.out, signs)


def check_embedding(call: Call) -> Judged:
    """A table of rows."""
    module: Any = call.module
    if module.max_norm is not None:
        raise UncheckableError("an embedding with max_norm changes its own table")
    return check_lookup(module.weight, _input(call), call.out)


def check_passed_on(inner: Tensor, out: Tensor) -> Judged:
    """A whole whose last part was checked by itself: it has to hand on every bit of that."""
    return judge("oracle", out, host(inner), 0.0)


def _input(call: Call) -> Tensor:
    given = [x for x in (*call.args, *call.kwargs.values()) if isinstance(x, Tensor)]
    if len(given) != 1 or not isinstance(call.out, Tensor):
        raise UncheckableError("it is called in an unusual way")
    return given[0]


def _product(left: Tensor, right: Tensor, bias: Tensor | None, out: Tensor, signs: torch.Generator) -> Judged:
    if not all(is_plain(x) for x in (left, right, out)):
        raise UncheckableError("its tensors are not plain memory")
    given = product_from(left, right, bias, out)
    if given is None:
        raise UncheckableError("a product of vectors")
    return check_product(given, signs)


def check_code(check: str, call: Call) -> Judged:
    """A module's own code: of one without children, such as a norm, or what lies between the children of another.

    How it answers to a dither is only asked where values are off by more than is allowed without.
    """
    found = _replayed(check, call, dithering=False)
    return found if found.holds else _replayed(check, call, dithering=True)


def _replayed(check: str, call: Call, *, dithering: bool) -> Judged:
    equal, rows = replay(call, OPERATOR_OF.get, dithering=dithering)
    same = Judged(check, 0.0, equal)
    parts = []
    for row in rows:
        judged = judge(check, row.seen, row.exact, row.allowed, roundings=2.0)
        judged = leans(judged, row.lean)
        note = f"at the input of {row.name}" if row.name else "at its own output"
        parts.append(judged if judged.holds or check != "glue" else judged.at(check, note))
    return together(check, [same, *parts])


def check_call(
    operator: str, function: Function, call: tuple[tuple[Any, ...], dict[str, Any]], out: Tensor, signs: torch.Generator
) -> Judged:
    """One call of a torch function."""
    args, kwargs = call
    if any(x.data_ptr() == out.data_ptr() for x in tensors_of([args, kwargs]) if x.numel()):
        raise UncheckableError(f"{operator} works in place, so its input is gone")
    if operator in PRODUCTS or (operator == "attention" and product_of("matmul", function, call) is not None):
        return _check_products(operator, function, call, out, signs)
    if operator == "attention":
        if kwargs.get("dropout_p"):
            raise UncheckableError("attention with dropout")
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        return check_attention(dict(zip(names, args, strict=False)) | kwargs, out)
    if operator == "softmax":
        x, last = _softmax(args, kwargs)
        return check_softmax(*sampled(x.movedim(last, -1), out.movedim(last, -1), signs))
    if operator in ("silu", "gelu"):
        x = args[0] if args else kwargs["input"]
        how = {"approximate": kwargs["approximate"]} if "approximate" in kwargs else {}
        return check_activation(operator, *sampled(x, out, signs), how)
    return _check_norm(function, call, out)


def _softmax(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, int]:
    x = args[0] if args else kwargs["input"]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    if not isinstance(dim, int):
        raise UncheckableError("softmax without a dimension")
    return x, dim


def _check_norm(function: Function, call: tuple[tuple[Any, ...], dict[str, Any]], out: Tensor) -> Judged:
    args, kwargs = on_host(call[0]), on_host(call[1])
    exact = function(*args, **kwargs)
    slack = 64 * sum_unit(out.dtype) * (exact.abs() + exact.abs().amax(-1, keepdim=True))
    return judge("oracle", out, exact, slack)


def _check_products(
    operator: str, function: Function, call: tuple[tuple[Any, ...], dict[str, Any]], out: Tensor, signs: torch.Generator
) -> Judged:
    if "grouped_mm" in getattr(function, "__name__", str(function)):
        return together("product", list(_groups(call, out, signs)))
    inner = "matmul" if operator == "attention" else operator
    product = product_of(inner, function, call)
    if product is not None and product.right.dim() > 1:
        return _product(product.left, product.right, product.bias, out, signs)
    exact, sizes = _contraction(function, call, lambda x: x), _contraction(function, call, Tensor.abs)
    a, b = tensors_of(list(call[0]))[-2:]
    terms = max(math.sqrt(a.numel() * b.numel() / max(out.numel(), 1)), 1.0)
    return judge("product", out, exact, _SIGMAS * sum_unit(out.dtype) * math.sqrt(terms) * sizes)


def _contraction(
    function: Function, call: tuple[tuple[Any, ...], dict[str, Any]], change: Callable[[Tensor], Tensor]
) -> Tensor:
    def wide(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(host(value)) if value.is_floating_point() else value
        return [wide(v) for v in value] if isinstance(value, list | tuple) else value

    found: Tensor = function(*(wide(a) for a in call[0]), **{n: wide(v) for n, v in call[1].items()})
    return found


def _groups(call: tuple[tuple[Any, ...], dict[str, Any]], out: Tensor, signs: torch.Generator) -> Iterator[Judged]:
    named = dict(zip(("input", "weight", "offs"), call[0], strict=False)) | call[1]
    x, weight, ends = named["input"], named["weight"], named.get("offs")
    if ends is None or weight.dim() != 3 or x.dim() != 2:
        raise UncheckableError("a grouped product of an unusual form")
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            yield _product(x[start:end], weight[group], None, out[start:end], signs)
        start = end


def quietly(check: Callable[[], Judged]) -> Judged:
    """A check that no mode of anybody sees."""
    with aside():
        return check()
