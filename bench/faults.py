"""How often `noisescope.locate` names the right place, and how often it accuses a healthy machine.

    python bench/faults.py --share 0.02 --out faults.jsonl

Plants every fault kind at every layer and operator, in whole tensors, a tenth and a hundredth of their values, at two
magnitudes; faults of single channels; several at once; faults that the engine does not know, always there or in one
call in ten; and runs healthy models, the odd ones among them. A case that changed no value is counted apart. Seeds of
faults and of checks are disjoint. `--share` takes a part of the cases at random; with `--out` a second call goes on
where the first one ended.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from fault_cases import GROUPS, Case, healthy, planted
from fault_subjects import batch_of, chance, model_of
from fault_tables import GRADED, report
from strange_faults import STRANGE, Spoiled

import noisescope as ns
from noisescope.core.errors import BadInputError
from noisescope.runs.localising import repeats_for

DTYPES = ("float32", "bfloat16")
FAULT_SEED, CHECK_SEED = 1_000_003, 17
# Of the cases of a large model only a part can be run in the time of a small one's.
WEIGHT = {"smollm2": 0.02, "minilm": 0.3}
MODELS = ("llama", "gpt2", "gemma", "minilm", "smollm2")
LIMITS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)


def run_case(case: Case, model: Any) -> dict[str, Any]:
    """What became of one case."""
    inputs = batch_of(model, FAULT_SEED)
    began = time.process_time()
    if "path" in case:
        result, changed = with_strange(case, model, inputs)
        more = {}
    else:
        result, changed, more = with_planted(case, model, inputs)
    top = result.suspects[0] if result.suspects else None
    said = None if top is None else [top.layer, top.operator, top.path, list(top.channels)]
    listed = len({(s.layer, s.operator) for s in result.suspects})
    seconds = time.process_time() - began
    return {"changed": changed, "verdict": result.verdict, "said": said, "listed": listed, "seconds": seconds, **more}


def with_strange(case: Case, model: Any, inputs: Any) -> tuple[ns.Localization, bool]:
    """A fault on a module from outside."""
    rate = case.get("rate")
    repeats = 3 if rate is None else repeats_for(rate)
    module = model.get_submodule(case["path"])
    with Spoiled(module, STRANGE[case["kind"]], rate, FAULT_SEED) as spoiled:
        result = ns.locate(model, [inputs], seed=CHECK_SEED, repeats=repeats)
    return result, spoiled.changed


def with_planted(case: Case, model: Any, inputs: Any) -> tuple[ns.Localization, bool, dict[str, Any]]:
    """One fault of the engine, or several."""
    single = {"layer", "operator", "kind"} <= set(case)
    places = [(case["layer"], case["operator"], case["kind"])] if single else case["several"]
    with contextlib.ExitStack() as stack:
        handles = [stack.enter_context(injected(case, model, tuple(place))) for place in places]
        result = ns.locate(model, [inputs], seed=CHECK_SEED)
    changed = [any(r.changed for r in handle.stats.by_site().values()) for handle in handles]
    if single:
        return result, changed[0], {}
    asked = {(layer, operator) for (layer, operator, _), yes in zip(places, changed, strict=True) if yes}
    return result, all(changed), {"all_listed": {(s.layer, s.operator) for s in result.suspects} == asked}


def injected(case: Case, model: Any, place: tuple[Any, ...]) -> Any:
    """A fault of a case, planted."""
    layer, operator, kind = place
    more: dict[str, Any] = {} if case.get("fraction", 1) == 1 else {"fraction": case["fraction"]}
    if "channel" in case:
        more = {"channel": case["channel"]} if kind == "stuck_channel" else {"channels": [case["channel"]]}
    made = ns.fault(kind, case["magnitude"], **more)
    handle = ns.inject(model, made, layers=[layer], operators=operator, seed=FAULT_SEED)
    handle.strict = False
    return handle


def run_healthy(case: Case, model: Any) -> dict[str, Any]:
    """The verdict on a healthy model, and what it cost in clean forwards."""
    inputs = batch_of(model, case["seed"], rows=3, length=40)
    with torch.no_grad():
        model(**inputs)
        began = time.process_time()
        model(**inputs)
        model(**inputs)
        forward = (time.process_time() - began) / 2
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
    for name, dtype in itertools.product(MODELS, DTYPES):
        model = model_of(name, dtype)
        for group, (make, weight) in GROUPS.items():
            part = share * weight * WEIGHT.get(name, 1.0)
            cases = ({"group": group, "model": name, "dtype": dtype, **case} for case in make(model))
            run_group(book, model, (case for case in cases if chance(case) < part))
        print(f"{name} {dtype}: {len(book.rows)} cases so far", file=sys.stderr)


def run_group(book: Book, model: Any, cases: Iterable[Case]) -> None:
    """The cases that have no result yet; a fault that does not fit where it is put is none."""
    for case in cases:
        if not book.has(case):
            with contextlib.suppress(BadInputError):
                book.add(case, run_case(case, model))


def run_all_healthy(book: Book) -> None:
    """All healthy cases."""
    for case in healthy():
        if not book.has(case):
            book.add(case, run_healthy(case, model_of(case["model"], case["dtype"], case["attention"])))


def run_limits(book: Book) -> None:
    """The smallest magnitude that is still found in all of three layers, going down until one is missed."""
    for dtype, kind in itertools.product(DTYPES, GRADED):
        asked = {"group": "limit", "limit": kind, "dtype": dtype}
        if not book.has(asked):
            book.add(asked, {"least": least_found(kind, model_of("llama", dtype))})


def least_found(kind: str, model: Any) -> float | None:
    """The smallest magnitude of a fault that is found in every layer tried."""
    operator = "softmax" if kind == "exp_lut" else "linear"
    least = None
    for size in LIMITS:
        for layer in (0, 1, 3):
            said = run_case({"kind": kind, "magnitude": size, "layer": layer, "operator": operator}, model)["said"]
            if not said or said[:2] != [layer, operator]:
                return least
        least = size
    return least


def run_classic(book: Book, share: float) -> None:
    """The classical probes and the default on the same faults of whole tensors of one small model."""
    model = model_of("llama", "float32")
    inputs = batch_of(model, FAULT_SEED, rows=4)
    for case in planted(model):
        asked = {"group": "classic", **case}
        if case["layer"] is None or case["fraction"] < 1 or chance(asked) >= share or book.has(asked):
            continue
        with contextlib.suppress(BadInputError):
            with injected(case, model, (case["layer"], case["operator"], case["kind"])) as handle:
                classic = ns.locate(model, [inputs], method="classic", seed=CHECK_SEED)
                default = ns.locate(model, [inputs], seed=CHECK_SEED)
            changed = any(r.changed for r in handle.stats.by_site().values())
            ranks = {"rank": classic.rank_of(case["layer"]), "default_rank": default.rank_of(case["layer"])}
            book.add(asked, {"changed": changed, "verdict": classic.verdict, **ranks})


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
    run_classic(book, min(1.0, 10 * args.share))
    print("\n".join(report(list(book.rows.values()))))


if __name__ == "__main__":
    main()
