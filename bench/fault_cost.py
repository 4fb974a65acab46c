"""What `noisescope.locate` costs on a healthy machine, in clean forwards, and how that grows with layers."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from fault_book import Book, Row
from fault_subjects import REAL, batch_of, model_of

import noisescope as ns
from noisescope.measure.power_law import fit_power_law

DTYPES = ("float32", "bfloat16", "float16")
TOKENS, MORE_TOKENS = 120, 512
LAYERS = (4, 8, 16, 32)
ROUNDS, CHECK_SEED = 5, 17


def run_costs(book: Book, models: list[str]) -> None:
    """Every cost that is not known yet. Nothing else should run beside."""
    chosen = [name for name in REAL if name in models]
    for name, dtype, tokens in itertools.product(chosen, DTYPES, (TOKENS, MORE_TOKENS)):
        case = {"group": "cost", "model": name, "dtype": dtype, "tokens": tokens}
        if book.lacks(case):
            model = model_of(name, dtype)
            book.add(case, cost_of(model, batch_of(model, 5, *_shape(tokens))))
    for dtype, layers in itertools.product(DTYPES[:2], LAYERS):
        case = {"group": "growth", "dtype": dtype, "layers": layers}
        if book.lacks(case):
            model = llama_of(layers, dtype)
            book.add(case, cost_of(model, batch_of(model, 5, *_shape(TOKENS))))


def _shape(tokens: int) -> tuple[int, int]:
    """Rows and their length: a few short prompts, or longer ones."""
    return (3, tokens // 3) if tokens < MORE_TOKENS else (4, tokens // 4)


def llama_of(layers: int, dtype: str) -> Any:
    """A model of so many layers whose embeddings and head are small beside them."""
    torch.manual_seed(1)
    shape = {"hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4, "vocab_size": 512}
    config = transformers.LlamaConfig(**shape, num_hidden_layers=layers, pad_token_id=0)
    return transformers.LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()


def cost_of(model: Any, inputs: dict[str, torch.Tensor]) -> Row:
    """CPU seconds of clean forwards and of localisations, in turns."""

    def forward() -> None:
        with torch.no_grad():
            model(**inputs)

    def locate() -> None:
        ns.locate(model, [inputs], seed=CHECK_SEED)

    forward()
    locate()
    rounds = [(_seconds(forward, 3), _seconds(locate, 1)) for _ in range(ROUNDS)]
    return {"forward": [clean for clean, _ in rounds], "locate": [whole for _, whole in rounds]}


def _seconds(call: Callable[[], None], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - began) / times


def cost_tables(rows: list[Row]) -> Iterator[str]:
    """The costs as Markdown: the median over the rounds with the range."""
    yield f"| cost in clean forwards: median of {ROUNDS} [range] | {TOKENS} tokens | {MORE_TOKENS} tokens |"
    yield "|---|---|---|"
    known = {(r["case"]["model"], r["case"]["dtype"], r["case"]["tokens"]): r for r in rows if "model" in r["case"]}
    for name, dtype in sorted({place[:2] for place in known}):
        cells = (_ratio(known.get((name, dtype, tokens))) for tokens in (TOKENS, MORE_TOKENS))
        yield f"| {name} {dtype} | {' | '.join(cells)} |"
    yield f"\n| layers | {' | '.join(f'{n}' for n in LAYERS)} | CPU time grows with layers to the power of |"
    yield "|---|" + "---|" * (len(LAYERS) + 1)
    for dtype in DTYPES[:2]:
        grown = {r["case"]["layers"]: r for r in rows if "layers" in r["case"] and r["case"]["dtype"] == dtype}
        yield f"| {dtype} | {' | '.join(_ratio(grown.get(n)) for n in LAYERS)} | {_exponent(grown)} |"


def _ratio(row: Row | None) -> str:
    if row is None:
        return "-"
    found = sorted(whole / clean for clean, whole in zip(row["forward"], row["locate"], strict=True))
    return f"{statistics.median(found):.1f} [{found[0]:.1f}, {found[-1]:.1f}]"


def _exponent(grown: dict[int, Row]) -> str:
    if len(grown) < len(LAYERS):
        return "-"
    seconds = [statistics.median(grown[n]["locate"]) for n in LAYERS]
    found = fit_power_law(LAYERS, seconds).exponent
    return f"{found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]"
