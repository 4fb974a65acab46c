"""What injection costs on a GPU, beside the limit that randn_like sets: `python bench/gpu_cost.py` prints a table."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import noisescope as ns
from noisescope.inject import gpu

ROUNDS = 9
NOISE = ns.noise("relative_gaussian", scale=0.05)
SIZES = ((1, 128), (4, 512), (16, 1024))


def model_of(dtype: torch.dtype) -> nn.Module:
    """A Qwen2 of random weights, wide enough to fill a GPU."""
    config = transformers.Qwen2Config(
        num_hidden_layers=8, hidden_size=2048, intermediate_size=5632, num_attention_heads=16, num_key_value_heads=4,
        vocab_size=32000,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Qwen2ForCausalLM(config).to("cuda", dtype).eval()


@contextmanager
def rebound() -> Iterator[None]:
    """Noise by randn_like and one multiply-add on every linear: what cannot be undercut by torch operations."""
    linear = F.linear

    def noisy(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = linear(x, weight, bias)
        return torch.addcmul(y, torch.randn_like(y), y, value=0.05)

    F.linear = noisy
    try:
        yield
    finally:
        F.linear = linear


def milliseconds(forward: Callable[[], object]) -> float:
    """The time that the GPU takes from the first to the last operation, waits for the host included."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    forward()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def ratios(model: nn.Module, ids: Tensor) -> tuple[list[float], list[float], list[float]]:
    """Clean milliseconds, and per round the ratios of randn_like and of injection, all interleaved."""

    def forward() -> Tensor:
        with torch.no_grad():
            return model(input_ids=ids).logits

    clean, limit, injected = [], [], []
    for number in range(ROUNDS + 2):
        plain = milliseconds(forward)
        with rebound():
            by_hand = milliseconds(forward)
        with ns.inject(model, NOISE, operators=["linear"]):
            noisy = milliseconds(forward)
        if number > 1:
            clean.append(plain)
            limit.append(by_hand / plain)
            injected.append(noisy / plain)
    return clean, limit, injected


def spread(values: list[float]) -> str:
    """Median, least and largest."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    """Measure and print."""
    if not torch.cuda.is_available():
        sys.exit("no GPU here: this benchmark needs one.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, kernel: {gpu.why_not(0) or 'used'}\n")
    print("| dtype | batch | clean, ms | randn_like / clean | noisescope / clean |\n|---|---|---|---|---|")
    for dtype in (torch.bfloat16, torch.float32):
        model = model_of(dtype)
        for rows, width in SIZES:
            ids = torch.randint(0, 32000, (rows, width), device="cuda")
            clean, limit, injected = ratios(model, ids)
            name = str(dtype).removeprefix("torch.")
            print(f"| {name} | {rows} x {width} | {spread(clean)} | {spread(limit)} | {spread(injected)} |")


if __name__ == "__main__":
    main()
