"""What every benchmark shares: variants measured in turns in one process, tables with spread, the name of the machine.

It measures nothing of its own.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

Seconds = dict[str, list[float]]


@dataclass(frozen=True)
class Variant:
    """One row of a table: what is switched on around a call."""

    name: str
    call: Callable[[], object]
    around: Callable[[], AbstractContextManager[object]] = nullcontext


def measure(variants: Sequence[Variant], rounds: int, *, warm: bool = True) -> Seconds:
    """CPU seconds of each variant in each round, in an order that rotates."""
    for variant in variants if warm else ():
        with variant.around():
            variant.call()
    seconds: Seconds = {variant.name: [] for variant in variants}
    for number in range(rounds):
        print(f"\r  round {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
        shift = number % len(variants)
        for variant in [*variants[shift:], *variants[:shift]]:
            with variant.around():
                start = time.process_time()
                variant.call()
                seconds[variant.name].append(time.process_time() - start)
    print(file=sys.stderr)
    return seconds


def ratios(seconds: Seconds) -> Seconds:
    """Of each round to the first variant in the same round."""
    base = next(iter(seconds.values()))
    return {name: [value / one for value, one in zip(values, base, strict=True)] for name, values in seconds.items()}


def table(seconds: Seconds, to: str = "clean") -> list[str]:
    """Markdown rows: the median of the per-round ratios to the first variant, with its quartiles and the rounds."""
    lines = [f"| variant | ratio to {to} | quartiles | CPU time | rounds |", "|---|---|---|---|---|"]
    for name, found in ratios(seconds).items():
        low, middle, high = statistics.quantiles(found, n=4)
        digits = 3 if middle < 10 else 1
        took = said(statistics.median(seconds[name]))
        lines.append(f"| {name} | {middle:.{digits}f} | {low:.{digits}f} - {high:.{digits}f} | {took} | {len(found)} |")
    return lines


def said(seconds: float) -> str:
    """A duration in the unit that fits."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def qwen(layers: int, width: int, vocabulary: int = 4096) -> nn.Module:
    """Qwen2 with random weights, always the same."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        use_cache=False,
    )
    model = transformers.Qwen2ForCausalLM(config).eval()
    model.set_attn_implementation("eager")
    return model


def tokens(rows: int, columns: int, vocabulary: int = 4096) -> Tensor:
    """Random tokens, always the same."""
    return torch.randint(0, vocabulary, (rows, columns), generator=torch.Generator().manual_seed(0))


def machine() -> str:
    """What it was measured with."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"torch {torch.__version__}, transformers {transformers.__version__}, {name}"


def present(doc: str | None, rounds: int, fill: Callable[[int], list[str]]) -> None:
    """Run a part of the page from the command line: print what it measures in so many rounds, and keep it if asked."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help="at least 5 (default: %(default)s)")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    text = "\n".join(fill(asked.rounds)) + "\n"
    print(text)
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text, encoding="utf-8")
