"""Measures what a diagnosis costs beside the naive protocol and the searches of two quantizers, in clean evaluations.

Usage: python bench/diagnosis_cost.py [--rounds N] [--out FILE]

The naive protocol is what a person writes: noise in each window of three layers and in each operator, three seeds, the
whole model on all samples each time. Qwen2 with 16 layers of width 128, random weights, 16 rows of 32 tokens.
"""

from __future__ import annotations

from itertools import product

import torch
from measuring import Variant, measure, present, qwen, table, tokens
from rivals import NotHereError, loudly, run
from torch import Tensor, nn

import noisescope as ns

LAYERS, WIDTH, VOCABULARY = 16, 128, 512
WINDOW, SEEDS, SCALE = 3, 3, 0.05
OPERATORS = ("linear", "matmul", "softmax", "silu", "rms_norm")
RIVALS = ("modelopt", "aimet")
CLEAN = "one clean evaluation"
Batches = list[dict[str, Tensor]]


def batches() -> Batches:
    """16 rows, eight to a batch."""
    return [{"input_ids": ids} for ids in tokens(16, 32, VOCABULARY).split(8)]


def evaluate(model: nn.Module, given: Batches) -> list[Tensor]:
    """One clean evaluation: log-probabilities of every token."""
    with torch.no_grad():
        return [model(**batch).logits.log_softmax(-1) for batch in given]


def naive(model: nn.Module, given: Batches) -> list[float]:
    """KL to the clean run for every window, operator and seed."""
    clean, found = evaluate(model, given), []
    places = [(range(start, start + WINDOW), None) for start in range(LAYERS - WINDOW + 1)]
    for (layers, operators), seed in product([*places, *((None, one) for one in OPERATORS)], range(SEEDS)):
        with ns.inject(model, ns.noise(scale=SCALE), layers=layers, operators=operators, seed=seed):
            noisy = evaluate(model, given)
        harm = [(one.exp() * (one - other)).sum(-1).mean() for one, other in zip(clean, noisy, strict=True)]
        found.append(float(torch.stack(harm).mean()))
    return found


def variants_of(model: nn.Module, given: Batches) -> list[Variant]:
    """One clean evaluation, and what finds the fragile places."""
    options = {"scale": SCALE, "seeds": SEEDS, "metric": "kl_to_clean"}
    return [
        Variant("one clean evaluation", lambda: evaluate(model, given)),
        Variant("naive protocol: 14 windows and 5 operators, 3 seeds", lambda: naive(model, given)),
        Variant(
            "noisescope, every window (`--exhaustive`)", lambda: ns.diagnose(model, given, exhaustive=True, **options)
        ),
        Variant("noisescope, the default", lambda: ns.diagnose(model, given, **options)),
        Variant("noisescope, screening alone", lambda: ns.screen(model, given, scale=SCALE)),
    ]


def beside(name: str, rounds: int) -> list[str]:
    """The search of a quantizer, in its own environment."""
    heading = f"### Beside {name}, on the same model and inputs"
    try:
        return ["", heading, "", *table(run(name, "quantizer_cost.py", "--rounds", str(rounds)), CLEAN)]
    except NotHereError as problem:
        return ["", heading, "", loudly(name, problem)]


def lines_of(rounds: int) -> list[str]:
    """The tables."""
    lines = table(measure(variants_of(qwen(LAYERS, WIDTH, VOCABULARY), batches()), rounds), CLEAN)
    return lines + [line for name in RIVALS for line in beside(name, rounds)]


if __name__ == "__main__":
    present(__doc__, 5, lines_of)
