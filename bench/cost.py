"""Measures what injection costs: CPU-time ratios to the clean model, every variant in turns in one run.

Usage: python bench/cost.py [--rounds N] [--out FILE]

It measures one model on one CPU thread. Ratios depend on the width of a model: noise costs time per output value, a
product costs time per output value and per term of its sum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from measuring import Variant, measure, present, qwen, table, tokens
from rivals import NotHereError, loudly, run
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import noisescope as ns
from noisescope.inject import native

PRODUCTS = ("linear", "matmul")
BOTH = ("forward", "backward")
RIVALS = ("pytorchfi", "mrfi")
SCALE = 0.05


class RandnLike(TorchFunctionMode):
    """The limit that ATen sets: draw with `randn_like`, add with one fused multiply-add, on every product."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func in (F.linear, torch.matmul, Tensor.matmul):
            out = torch.addcmul(out, torch.randn_like(out), out, value=SCALE)
        return out


class Rebound(torch.autograd.Function):
    """A product with relative noise on its output, and on its gradient where there is one."""

    @staticmethod
    def forward(ctx, out: Tensor) -> Tensor:
        return out + torch.randn_like(out) * out.abs() * SCALE

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient + torch.randn_like(gradient) * gradient.abs() * SCALE


@contextmanager
def rebinding() -> Iterator[None]:
    """torch's own functions replaced, for everybody in the process, as the verl fork does it."""
    linear, matmul = F.linear, torch.matmul
    method = Tensor.matmul
    try:
        F.linear = lambda *args, **more: Rebound.apply(linear(*args, **more))
        torch.matmul = lambda *args, **more: Rebound.apply(matmul(*args, **more))
        Tensor.matmul = lambda *args, **more: Rebound.apply(method(*args, **more))
        yield
    finally:
        F.linear, torch.matmul, Tensor.matmul = linear, matmul, method


def forward_variants(model: nn.Module, ids: Tensor) -> list[Variant]:
    """A forward without gradients in eager mode."""
    run = lambda: model(ids)  # noqa: E731
    return [
        Variant("clean", run),
        Variant("clean again", run),
        Variant("randn_like and addcmul on 73 products", run, RandnLike),
        Variant("rebinding as in the verl fork, 73 products", run, rebinding),
        Variant("noisescope, 73 products", run, lambda: ns.inject(model, ns.noise(scale=SCALE), operators=PRODUCTS)),
        Variant("noisescope, all 106 operators", run, lambda: ns.inject(model, ns.noise(scale=SCALE))),
        Variant("noisescope, scale 0", run, lambda: ns.inject(model, ns.noise(scale=0.0), operators=PRODUCTS)),
    ]


def compiled_variants(model: nn.Module, ids: Tensor) -> list[Variant]:
    """A forward without gradients of the compiled model."""
    compiled = torch.compile(model, fullgraph=True)
    run = lambda: compiled(ids)  # noqa: E731
    return [
        Variant("clean", run),
        Variant("clean again", run),
        Variant("noisescope, 73 products", run, lambda: ns.inject(model, ns.noise(scale=SCALE), operators=PRODUCTS)),
    ]


def training_variants(model: nn.Module, ids: Tensor) -> list[Variant]:
    """Forward and backward in eager mode."""

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        model.zero_grad()

    noise = ns.noise(scale=SCALE)
    return [
        Variant("clean", step),
        Variant("clean again", step),
        Variant("rebinding as in the verl fork, 73 products, both phases", step, rebinding),
        Variant(
            "noisescope, 73 products, both phases",
            step,
            lambda: ns.inject(model, noise, operators=PRODUCTS, phases=BOTH),
        ),
    ]


SECTIONS: tuple[tuple[str, Callable[[nn.Module, Tensor], list[Variant]], bool], ...] = (
    ("Forward, eager", forward_variants, False),
    ("Forward, compiled with fullgraph", compiled_variants, False),
    ("Training step, eager", training_variants, True),
)


def beside(name: str, rounds: int) -> list[str]:
    """Another injector on the 57 linear layers, in its own environment."""
    heading = f"### Beside {name}, the outputs of 57 linear layers"
    try:
        return [heading, "", *table(run(name, "injection_rivals.py", "--rounds", str(rounds))), ""]
    except NotHereError as problem:
        return [heading, "", loudly(name, problem), ""]


def lines_of(rounds: int) -> list[str]:
    """The tables."""
    model, ids = qwen(8, 256), tokens(4, 128)
    lines = [f"Native noise kernel in use: {native.available()}.", ""]
    for title, variants, gradients in SECTIONS:
        print(title, file=sys.stderr)
        with torch.set_grad_enabled(gradients):
            lines += [f"### {title}", "", *table(measure(variants(model, ids), rounds)), ""]
    return lines + [line for name in RIVALS for line in beside(name, rounds)]


if __name__ == "__main__":
    present(__doc__, 21, lines_of)
