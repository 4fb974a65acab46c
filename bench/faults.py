"""How often `noisescope.locate` names the right place, and how often it accuses a healthy machine.

    python bench/faults.py --share 0.02 --out faults.jsonl

Plants every fault kind at every layer and operator, in whole tensors, a tenth and a hundredth of their values, at two
magnitudes, and faults that the engine does not know; runs healthy models, the odd ones among them. A case that changed
no value is a no-op and counted apart. Seeds of faults and of checks are disjoint. `--share` takes a part of the cases
at random; with `--out` a second call goes on where the first one ended.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from strange_faults import STRANGE, Spoiled

import noisescope as ns
from noisescope.core.errors import BadInputError
from noisescope.core.vocabulary import FAULT_KINDS, KINDS
from noisescope.measure.statistics import proportion

MAGNITUDES = (0.3, 0.05)
SPARSITY = (1.0, 0.1, 0.01)
DTYPES = ("float32", "bfloat16")
FAULT_SEED, CHECK_SEED = 1_000_003, 17
WIDTH = {"vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
PLAIN = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, **WIDTH}
# Of the cases of a large model only a part can be run in the time of a small one's.
WEIGHT = {"smollm2": 0.05, "minilm": 0.3}


def model_of(name: str, dtype: str, attention: str = "sdpa") -> Any:
    """A model by name, without dropout."""
    if name in ("smollm2", "minilm"):
        source = {"smollm2": "demo", "minilm": "demo-encoder"}[name]
        return ns.load(source, dtype=dtype).model
    torch.manual_seed(1)
    made = SMALL[name]()
    made.set_attn_implementation(attention)
    return made.to(getattr(torch, dtype)).eval()


def _llama(**shape: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**PLAIN, **shape}))


def _gpt2() -> Any:
    shape = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 128, **WIDTH}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape))


def _mixtral() -> Any:
    shape = {**PLAIN, "num_key_value_heads": 2, "num_local_experts": 4}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**shape))


def _gemma() -> Any:
    return transformers.GemmaForCausalLM(transformers.GemmaConfig(**PLAIN, num_key_value_heads=2, head_dim=16))


def _with_outliers() -> Any:
    """Channels that are a thousand and a hundred times larger than the others."""
    made = _llama()
    with torch.no_grad():
        for layer in made.model.layers:
            layer.mlp.down_proj.weight[3] *= 1000
            layer.post_attention_layernorm.weight[5] *= 100
    return made


SMALL: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "gpt2": _gpt2,
    "gemma": _gemma,
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**PLAIN)),
    "mixtral": _mixtral,
    "tied": lambda: _llama(tie_word_embeddings=True),
    "tiny": lambda: _llama(hidden_size=8, intermediate_size=4),
    "outliers": _with_outliers,
}


def batch_of(model: Any, seed: int, rows: int = 2, length: int = 24) -> dict[str, torch.Tensor]:
    """Token ids by chance."""
    generator = torch.Generator().manual_seed(seed)
    return {"input_ids": torch.randint(3, model.config.vocab_size, (rows, length), generator=generator)}


def chance(*parts: object) -> float:
    """A number in [0, 1) that belongs to a case."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:12], 16) / 16**12


Case = dict[str, Any]


def planted(name: str, dtype: str, model: Any) -> Iterator[Case]:
    """Every fault of the engine at every site."""
    places = dict.fromkeys((s.layer, s.operator) for s in ns.sites(model))
    for (layer, operator), kind, share, size in itertools.product(places, FAULT_KINDS, SPARSITY, MAGNITUDES):
        if operator in KINDS[kind].operators:
            yield {
                "kind": kind, "magnitude": size, "fraction": share,
                "layer": layer, "operator": operator, "model": name, "dtype": dtype,
            }  # fmt: skip


def in_channels(name: str, dtype: str, model: Any) -> Iterator[Case]:
    """Faults of single channels, which have to be named."""
    for layer, kind in itertools.product(range(model.config.num_hidden_layers), FAULT_KINDS):
        for operator in ("linear", "rms_norm", "layer_norm", "silu", "gelu"):
            if operator in KINDS[kind].operators and any(s.operator == operator for s in ns.sites(model)):
                channel = int(chance(name, layer, kind, operator) * 32)
                yield {
                    "kind": kind, "magnitude": 0.3, "fraction": 1.0, "channel": channel,
                    "layer": layer, "operator": operator, "model": name, "dtype": dtype,
                }  # fmt: skip


def strange(name: str, dtype: str, model: Any) -> Iterator[Case]:
    """Faults that the engine does not know, on modules of every layer and outside."""
    layers = {path for path, m in model.named_modules() if any(path == s.path for s in ns.sites(model))}
    stack = ns.sites(model)
    parents = {s.path.rpartition(".")[0] for s in stack if s.layer is not None}
    for path, kind in itertools.product(sorted(layers | parents), STRANGE):
        yield {"kind": kind, "path": path, "model": name, "dtype": dtype}


def run_case(case: Case, model: Any) -> dict[str, Any]:
    """What became of one case."""
    inputs = batch_of(model, FAULT_SEED)
    began = time.process_time()
    if "path" in case:
        with Spoiled(model.get_submodule(case["path"]), STRANGE[case["kind"]]) as spoiled:
            result = ns.locate(model, [inputs], seed=CHECK_SEED)
        changed = spoiled.changed
    else:
        with injected(case, model) as handle:
            result = ns.locate(model, [inputs], seed=CHECK_SEED)
        changed = any(r.changed for r in handle.stats.by_site().values())
    top = result.suspects[0] if result.suspects else None
    said = None if top is None else [top.layer, top.operator, top.path, list(top.channels)]
    more = len({s.path for s in result.suspects})
    return {"changed": changed, "verdict": result.verdict, "said": said, "listed": more,
            "seconds": time.process_time() - began}  # fmt: skip


def injected(case: Case, model: Any) -> Any:
    """The fault of a case, planted."""
    more: dict[str, Any] = {} if case["fraction"] == 1 else {"fraction": case["fraction"]}
    if "channel" in case:
        more = {"channel": case["channel"]} if case["kind"] == "stuck_channel" else {"channels": [case["channel"]]}
    made = ns.fault(case["kind"], case["magnitude"], **more)
    handle = ns.inject(model, made, layers=[case["layer"]], operators=case["operator"], seed=FAULT_SEED)
    handle.strict = False
    return handle


def healthy() -> Iterator[Case]:
    """Models without a fault."""
    small = ("llama", "gpt2", "gemma", "bert", "mixtral", "tied", "tiny", "outliers")
    dtypes = ("float32", "bfloat16", "float16")
    for name, dtype, attention, seed in itertools.product(small, dtypes, ("sdpa", "eager"), (5, 6)):
        yield {"healthy": name, "dtype": dtype, "attention": attention, "seed": seed}
    for name, dtype, seed in itertools.product(("smollm2", "minilm"), dtypes, (5, 6, 7)):
        yield {"healthy": name, "dtype": dtype, "attention": "sdpa", "seed": seed}


def run_healthy(case: Case, model: Any) -> dict[str, Any]:
    """The verdict on a healthy model, and what it cost in forwards."""
    inputs = batch_of(model, case["seed"], rows=3, length=40)
    with torch.no_grad():
        model(**inputs)
        began = time.process_time()
        model(**inputs)
        forward = time.process_time() - began
    began = time.process_time()
    result = ns.locate(model, [inputs], seed=CHECK_SEED)
    return {
        "verdict": result.verdict,
        "said": [str(s) for s in (*result.suspects, *result.odd)],
        "unchecked": len(result.unchecked),
        "ratio": (time.process_time() - began) / max(forward, 1e-9),
    }


class Book:
    """The results so far, one line each."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.rows: dict[str, dict[str, Any]] = {}
        for line in lines:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                self.rows[json.dumps(row["case"], sort_keys=True)] = row

    def has(self, case: Case) -> bool:
        """Whether a case has been run."""
        return json.dumps(case, sort_keys=True) in self.rows

    def add(self, case: Case, result: dict[str, Any]) -> None:
        """Keep a result."""
        row = {"case": case, **result}
        self.rows[json.dumps(case, sort_keys=True)] = row
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def run_faults(book: Book, share: float) -> None:
    """All fault cases of the share."""
    for name, dtype in itertools.product(("llama", "gpt2", "gemma", "minilm", "smollm2"), DTYPES):
        model = model_of(name, dtype)
        part = share * WEIGHT.get(name, 1.0)
        groups = ((planted, part), (in_channels, min(1.0, 2 * part)), (strange, min(1.0, 2 * part)))
        for make, wanted in groups:
            for case in make(name, dtype, model):
                if chance(case, "share") >= wanted or book.has(case):
                    continue
                with contextlib.suppress(BadInputError):
                    book.add(case, run_case(case, model))
        print(f"{name} {dtype}: {len(book.rows)} cases so far", file=sys.stderr)


def run_all_healthy(book: Book) -> None:
    """All healthy cases."""
    for case in healthy():
        if not book.has(case):
            book.add(case, run_healthy(case, model_of(case["healthy"], case["dtype"], case["attention"])))


LIMITS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
GRADED = ("dead_zone", "noise", "gain_drift", "offset", "value_corruption", "exp_lut")


def run_limits(book: Book) -> None:
    """The smallest magnitude that is still found in all of three layers, going down until one is missed."""
    for dtype, kind in itertools.product(DTYPES, GRADED):
        model = model_of("llama", dtype)
        operator = "softmax" if kind == "exp_lut" else "linear"
        least = None
        for size in LIMITS:
            cases = [
                {"kind": kind, "magnitude": size, "fraction": 1.0, "layer": layer, "operator": operator}
                for layer in (0, 1, 3)
            ]
            results = [run_case(case, model) for case in cases]
            if not all(
                r["said"] and r["said"][:2] == [c["layer"], operator] for c, r in zip(cases, results, strict=True)
            ):
                break
            least = size
        book.add({"limit": kind, "dtype": dtype}, {"least": least})


def run_classic(book: Book, share: float) -> None:
    """The classical probes on the faults of whole tensors of one small model, and on healthy ones."""
    model = model_of("llama", "float32")
    inputs = batch_of(model, FAULT_SEED, rows=4)
    for case in planted("llama", "float32", model):
        asked = {**case, "method": "classic"}
        if case["layer"] is None or case["fraction"] < 1 or chance(case, "classic") >= share or book.has(asked):
            continue
        with contextlib.suppress(BadInputError):
            with injected(case, model) as handle:
                result = ns.locate(model, [inputs], method="classic", seed=CHECK_SEED)
            changed = any(r.changed for r in handle.stats.by_site().values())
            book.add(asked, {"changed": changed, "rank": result.rank_of(case["layer"]), "verdict": result.verdict})


def rate(hits: int, of: int) -> str:
    """A share with its Wilson interval."""
    if not of:
        return "-"
    found = proportion(hits, of)
    return f"{hits}/{of} = {found.estimate:.2%} [{found.low:.1%}, {found.high:.1%}]"


def table(rows: list[dict[str, Any]], by: str) -> Iterator[str]:
    """Top-1 by a field of the case."""
    yield f"| {by} | cases | layer top-1 | operator top-1 |"
    yield "|---|---|---|---|"
    for value in sorted({str(r["case"].get(by)) for r in rows}):
        group = [r for r in rows if str(r["case"].get(by)) == value]
        layers = sum(is_layer(r) for r in group)
        operators = sum(is_operator(r) for r in group)
        yield f"| {value} | {len(group)} | {rate(layers, len(group))} | {rate(operators, len(group))} |"


def is_layer(row: dict[str, Any]) -> bool:
    """Whether the worst suspect is in the layer of the fault."""
    return row["said"] is not None and row["said"][0] == row["case"]["layer"]


def is_operator(row: dict[str, Any]) -> bool:
    """Whether the worst suspect is the operator of the fault."""
    return is_layer(row) and row["said"][1] == row["case"]["operator"]


def report(book: Book) -> Iterator[str]:
    """All tables."""
    rows = list(book.rows.values())
    faults = [r for r in rows if "layer" in r["case"] and "method" not in r["case"]]
    spread = [r for r in faults if "channel" not in r["case"]]
    effective = [r for r in faults if r["changed"]]
    yield f"{len(faults)} planted faults, {len(faults) - len(effective)} of them changed no value and are left out.\n"
    yield f"layer top-1    {rate(sum(map(is_layer, effective)), len(effective))}"
    yield f"operator top-1 {rate(sum(map(is_operator, effective)), len(effective))}"
    narrow = [r for r in effective if "channel" in r["case"] or r["case"]["kind"] == "stuck_channel"]
    exact = sum(r["said"] is not None and r["said"][3] == [r["case"].get("channel", 0)] for r in narrow)
    yield f"channel exact  {rate(exact, len(narrow))}"
    odd = [r for r in rows if "path" in r["case"] and r["changed"]]
    yield f"faults that the engine does not know, module top-1 {rate(sum(is_module(r) for r in odd), len(odd))}"
    well = [r for r in rows if "healthy" in r["case"]]
    yield f"false alarms   {rate(sum(r['verdict'] != 'no fault found' for r in well), len(well))}"
    ratios = sorted(r["ratio"] for r in well if r["case"]["healthy"] in WEIGHT)
    if ratios:
        middle, last = ratios[len(ratios) // 2], ratios[-1]
        yield f"cost on the real models, in clean forwards: median {middle:.1f}, worst {last:.1f}; 3 of them are runs"
    classic = [r for r in rows if r["case"].get("method") == "classic" and r["changed"]]
    if classic:
        yield f"classic: layer at rank 1 {rate(sum(r['rank'] == 1 for r in classic), len(classic))}"
    for by in ("kind", "operator", "fraction", "magnitude", "model", "dtype"):
        yield ""
        yield from table([r for r in spread if r["changed"]], by)
    yield ""
    yield from limits(rows)
    yield ""
    missed = Counter((r["case"]["kind"], r["case"]["operator"]) for r in effective if not is_operator(r))
    yield f"missed: {dict(missed)}"
    yield f"unknown faults missed: {[(r['case'], r['said']) for r in odd if not is_module(r)]}"
    yield f"alarms: {[(r['case'], r['said']) for r in well if r['verdict'] != 'no fault found']}"


def is_module(row: dict[str, Any]) -> bool:
    """Whether the worst suspect is the very module."""
    return row["said"] is not None and row["said"][2] == row["case"]["path"]


def limits(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The smallest magnitudes found."""
    yield "| smallest magnitude found | float32 | bfloat16 |"
    yield "|---|---|---|"
    found = {(r["case"]["limit"], r["case"]["dtype"]): r["least"] for r in rows if "limit" in r["case"]}
    for kind in GRADED:
        yield f"| {kind} | {found.get((kind, 'float32'))} | {found.get((kind, 'bfloat16'))} |"


def main() -> None:
    """Run and print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--share", type=float, default=0.05, help="part of the fault cases to run, 0 to 1")
    asked.add_argument("--out", type=Path, help="a file of results to go on from")
    args = asked.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    book = Book(args.out)
    run_all_healthy(book)
    run_faults(book, args.share)
    run_limits(book)
    run_classic(book, args.share)
    print("\n".join(report(book)))


if __name__ == "__main__":
    main()
