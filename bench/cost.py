"""Measures what injection costs: CPU-time ratios to the clean model, every variant interleaved in one run.

Usage: python bench/cost.py [--rounds N] [--out docs/benchmarks.md]

It measures one model on one CPU thread. Ratios depend on the width of a model: noise costs time per output value, a
product costs time per output value and per term of its sum.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import noisescope as ns
from noisescope.inject import native

PRODUCTS = ("linear", "matmul")
BOTH = ("forward", "backward")
SCALE = 0.05


class RandnLike(TorchFunctionMode):
    """The limit that ATen sets: draw with `randn_like`, add with one fused multiply-add, on every product."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func in (F.linear, torch.matmul, Tensor.matmul):
            out = torch.addcmul(out, torch.randn_like(out), out, value=SCALE)
        return out


@dataclass(frozen=True)
class Variant:
    """One row of a table: what is switched on around a call."""

    name: str
    call: Callable[[], object]
    around: Callable[[], AbstractContextManager[object]] = nullcontext


def build_model() -> nn.Module:
    """Qwen2 with 8 layers of width 256, random weights, 73 matrix products in a forward."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=4096,
        use_cache=False,
    )
    model = transformers.Qwen2ForCausalLM(config).eval()
    model.set_attn_implementation("eager")
    return model


def measure(variants: list[Variant], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each variant in each round, in an order that rotates."""
    for variant in variants:
        with variant.around():
            variant.call()
    seconds: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for number in range(rounds):
        print(f"\r  round {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
        shift = number % len(variants)
        for variant in variants[shift:] + variants[:shift]:
            with variant.around():
                start = time.process_time()
                variant.call()
                seconds[variant.name].append(time.process_time() - start)
    print(file=sys.stderr)
    return seconds


def table(seconds: dict[str, list[float]]) -> list[str]:
    """Markdown rows: the median of the per-round ratios to the first variant, with its quartiles."""
    base = next(iter(seconds.values()))
    lines = ["| variant | ratio to clean | quartiles | milliseconds |", "|---|---|---|---|"]
    for name, values in seconds.items():
        ratios = [value / clean for value, clean in zip(values, base, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        lines.append(f"| {name} | {middle:.3f} | {low:.3f} - {high:.3f} | {1000 * statistics.median(values):.1f} |")
    return lines


def forward_variants(model: nn.Module, ids: Tensor) -> list[Variant]:
    """A forward without gradients in eager mode."""
    run = lambda: model(ids)  # noqa: E731
    return [
        Variant("clean", run),
        Variant("clean again", run),
        Variant("randn_like and addcmul on 73 products", run, RandnLike),
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

    return [
        Variant("clean", step),
        Variant("clean again", step),
        Variant(
            "noisescope, 73 products, both phases",
            step,
            lambda: ns.inject(model, ns.noise(scale=SCALE), operators=PRODUCTS, phases=BOTH),
        ),
    ]


def page(rounds: int) -> str:
    """The whole page."""
    model = build_model()
    ids = torch.randint(0, 4096, (4, 128), generator=torch.Generator().manual_seed(0))
    parts = [_HEAD.format(rounds=rounds, torch=torch.__version__, machine=_machine(), native=native.available())]
    sections: tuple[tuple[str, Callable[[nn.Module, Tensor], list[Variant]], bool], ...] = (
        ("Forward, eager", forward_variants, False),
        ("Forward, compiled with fullgraph", compiled_variants, False),
        ("Training step, eager", training_variants, True),
    )
    for title, variants, gradients in sections:
        print(title, file=sys.stderr)
        with torch.set_grad_enabled(gradients):
            rows = table(measure(variants(model, ids), rounds))
        parts.append("\n".join([f"## {title}", "", *rows]))
    return "\n\n".join(parts) + "\n"


_HEAD = """# What injection costs

Written by `make bench`. CPU time of one thread, variants interleaved round by round in rotating order; the ratio is the
median over {rounds} rounds of a round's time over the clean time of the same round. Qwen2 with 8 layers, width 256,
vocabulary 4096, random weights, batch 4 x 128, float32, unfused attention, relative Gaussian noise of 5 %.

Measured with torch {torch} on {machine}; native noise kernel in use: {native}. "clean again" is the clean model
measured against itself: what differs from 1 there is the noise of the measurement."""


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    text = page(args.rounds)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
