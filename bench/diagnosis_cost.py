"""Measures what a diagnosis costs beside the naive protocol and the searches of two quantizers, in clean evaluations.

Usage: python bench/diagnosis_cost.py [--rounds N] [--out FILE]

The naive protocol is what a person writes: noise in each window of three layers, in each layer and in each operator,
the whole model on all samples each time. It is measured with one of its three seeds, on the demo model and eight of
the demo texts. The quantizers search a Qwen2 with 16 layers of width 128 and random weights, on 16 rows of 32 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from measuring import Variant, measure, present, table, tokens
from rivals import NotHereError, loudly, run
from torch import Tensor, nn

import noisescope as ns
from noisescope.measure.workload import demo_workload

LAYERS, WIDTH, VOCABULARY = 16, 128, 512
ROWS, COLUMNS = 8, 16
WINDOW, SEEDS, SCALE = 3, 3, 0.05
OPERATORS = ("linear", "matmul", "softmax", "silu", "rms_norm")
RIVALS = ("modelopt", "aimet")
CLEAN = "one clean evaluation"
Batches = list[dict[str, Tensor]]
OF_QUANTIZERS = (
    "The search of a quantizer answers another question, how many bits each layer gets, by the same kind of measuring.",
    "ModelOpt chooses by gradients, or by the KL of each layer in each format. AIMET runs half of its analysis: each",
    "layer alone in 8 bits, without each layer left out. Some of these are slow, so all get Qwen2 with 16 layers of",
    "width 128, random weights and 16 rows of 32 tokens. So small a model favours whoever does little besides running",
    "it.",
)


def batches() -> Batches:
    """16 random rows, eight to a batch."""
    return [{"input_ids": ids} for ids in tokens(16, 32, VOCABULARY).split(8)]


def texts(tokenizer: Callable[[str], Mapping[str, list[int]]]) -> Batches:
    """The beginnings of demo texts."""
    rows = [tokenizer(item.text)["input_ids"][:COLUMNS] for item in demo_workload("texts", limit=ROWS).items]
    return [{"input_ids": torch.tensor(rows)}]


def evaluate(model: nn.Module, given: Batches) -> list[Tensor]:
    """One clean evaluation: log-probabilities of every token."""
    with torch.no_grad():
        return [model(**batch).logits.log_softmax(-1) for batch in given]


def naive(model: nn.Module, given: Batches, seed: int = 0) -> list[float]:
    """KL to the clean run for every window, layer and operator."""
    clean, found = evaluate(model, given), []
    count = len(model.model.layers)
    spans = [range(start, start + size) for size in (WINDOW, 1) for start in range(count - size + 1)]
    for layers, operators in [*((span, None) for span in spans), *((None, one) for one in OPERATORS)]:
        with ns.inject(model, ns.noise(scale=SCALE), layers=layers, operators=operators, seed=seed):
            noisy = evaluate(model, given)
        harm = [(one.exp() * (one - other)).sum(-1).mean() for one, other in zip(clean, noisy, strict=True)]
        found.append(float(torch.stack(harm).mean()))
    return found


def variants_of(model: nn.Module, given: Batches) -> list[Variant]:
    """One clean evaluation, and what finds the fragile places."""
    options = {"scale": SCALE, "seeds": SEEDS, "metric": "kl_to_clean"}
    return [
        Variant(CLEAN, lambda: evaluate(model, given)),
        Variant("naive protocol, one of its 3 seeds", lambda: naive(model, given)),
        Variant(
            "noisescope, every window (`--exhaustive`)", lambda: ns.diagnose(model, given, exhaustive=True, **options)
        ),
        Variant("noisescope, the default", lambda: ns.diagnose(model, given, **options)),
        Variant("noisescope, screening alone", lambda: ns.screen(model, given, scale=SCALE)),
    ]


def beside(name: str, rounds: int) -> list[str]:
    """The search of a quantizer, in its own environment."""
    heading = f"### Beside {name}"
    try:
        return ["", heading, "", *table(run(name, "quantizer_cost.py", "--rounds", str(rounds)), CLEAN)]
    except NotHereError as problem:
        return ["", heading, "", loudly(name, problem)]


def lines_of(rounds: int) -> list[str]:
    """The tables."""
    loaded = ns.load("demo")
    given = texts(loaded.tokenizer)
    evaluate(loaded.model, given)
    # What is compiled and imported once is small beside the first round of a diagnosis.
    lines = table(measure(variants_of(loaded.model, given), rounds, warm=False), CLEAN)
    return [*lines, "", *OF_QUANTIZERS, *(line for name in RIVALS for line in beside(name, rounds))]


if __name__ == "__main__":
    present(__doc__, 5, lines_of)
