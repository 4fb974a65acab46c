"""How often `noisescope.locate` names the right place, and how often it accuses a healthy machine.

    python bench/faults.py --cases 2000 --seed 1 --out faults.jsonl

Plants every fault kind at every layer and operator, in whole tensors, a tenth and a hundredth of their values, at two
magnitudes; faults of single channels; several at once; faults that the engine does not know, always there or in one
call in ten; and runs healthy models, the odd ones among them. A case that changed no value is counted apart. Seeds of
faults and of checks are disjoint. `--cases` are drawn at random from all; with `--out` a second call goes on where the
first one ended, and more cases of the same seed begin with the same ones. `--minutes` ends a call early. `--workers 16`
shares the cases among 16 processes of one thread each: a case has the same result in any of them. What it costs is
measured first, by one process alone.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from fault_book import Book, fill, shared
from fault_cases import GROUPS, Case, drawn, healthy, planted
from fault_cost import run_costs
from fault_subjects import REAL, batch_of, model_of, texts
from fault_tables import GRADED, report
from strange_faults import STRANGE, Spoiled

import noisescope as ns
from noisescope.core.errors import BadInputError
from noisescope.runs.localising import repeats_for

DTYPES = ("float32", "bfloat16")
FAULT_SEED, CHECK_SEED = 1_000_003, 17
# The share of the cases of each model: a case of a large one takes the time of many of a small one.
MODELS = {"llama": 0.25, "gpt2": 0.25, "gemma": 0.25, "minilm": 0.15, "smollm2": 0.1}
# One case in so many is judged by the classical probes as well, which take minutes for one of the large model.
CLASSIC = {"llama": 20, "smollm2": 200}
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
    """The verdict on a healthy model."""
    result = ns.locate(model, [batch_of(model, case["seed"], rows=3, length=40)], seed=CHECK_SEED)
    said = [str(s) for s in (*result.suspects, *result.odd)]
    return {"verdict": result.verdict, "said": said, "unchecked": len(result.unchecked)}


def run_faults(book: Book, asked: argparse.Namespace) -> None:
    """So many fault cases, by chance."""
    for name, dtype in itertools.product(asked.models, DTYPES):
        model = model_of(name, dtype, device=asked.device)
        for group, (make, weight) in GROUPS.items():
            count = round(asked.cases * MODELS[name] * weight / len(DTYPES))
            place = {"group": group, "model": name, "dtype": dtype, **on_device(asked.device)}
            run_group(book, model, [{**place, **case} for case in drawn(make(model), count, asked.seed)])
        print(f"{name} {dtype}: {len(book.rows)} cases so far", file=sys.stderr)


def run_group(book: Book, model: Any, cases: Iterable[Case]) -> None:
    """The cases that have no result yet; a fault that does not fit where it is put is none."""
    for case in cases:
        if book.lacks(case):
            with contextlib.suppress(BadInputError):
                book.add(case, run_case(case, model))


def run_all_healthy(book: Book, asked: argparse.Namespace) -> None:
    """All healthy cases."""
    for case in healthy():
        if case["model"] in REAL and case["model"] not in asked.models:
            continue
        placed = {**case, **on_device(asked.device)}
        if book.lacks(placed):
            model = model_of(case["model"], case["dtype"], case["attention"], asked.device)
            book.add(placed, run_healthy(placed, model))


def on_device(device: str) -> dict[str, str]:
    """What a case says of the device: nothing where it is the host."""
    return {} if device == "cpu" else {"device": device}


def run_limits(book: Book) -> None:
    """The smallest magnitude that is still found in all of three layers, going down until one is missed."""
    for dtype, kind in itertools.product(DTYPES, GRADED):
        asked = {"group": "limit", "limit": kind, "dtype": dtype}
        if book.lacks(asked):
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


def run_classic(book: Book, asked: argparse.Namespace) -> None:
    """The classical probes and the default on the same faults of whole tensors: of a small model, of a trained one."""
    for name in [name for name in CLASSIC if name in asked.models]:
        model = model_of(name, "float32")
        batches = texts() if name in REAL else [batch_of(model, FAULT_SEED, rows=4)]
        whole = [case for case in planted(model) if case["layer"] is not None and case["fraction"] == 1]
        for case in drawn(whole, asked.cases // CLASSIC[name], asked.seed):
            placed = {"group": "classic", "model": name, **case}
            if book.lacks(placed):
                with contextlib.suppress(BadInputError):
                    book.add(placed, both_ranks(case, model, batches))


def both_ranks(case: Case, model: Any, batches: list[Any]) -> dict[str, Any]:
    """At which rank the layer of a fault is, by the classical probes and by the default."""
    with injected(case, model, (case["layer"], case["operator"], case["kind"])) as handle:
        classic = ns.locate(model, batches, method="classic", seed=CHECK_SEED)
        default = ns.locate(model, batches, seed=CHECK_SEED)
    changed = any(r.changed for r in handle.stats.by_site().values())
    ranks = {"rank": classic.rank_of(case["layer"]), "default_rank": default.rank_of(case["layer"])}
    return {"changed": changed, "verdict": classic.verdict, **ranks}


def main() -> None:
    """Run and print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--cases", type=int, default=1000, help="fault cases to draw (default: %(default)s)")
    asked.add_argument("--seed", type=int, default=1, help="of the draw (default: %(default)s)")
    asked.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS), help="of the fault cases")
    asked.add_argument("--device", default="cpu", help="(default: %(default)s)")
    asked.add_argument("--workers", type=int, default=1, help="processes that share the cases (default: %(default)s)")
    asked.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop after so many, and print what there is"
    )
    asked.add_argument("--out", type=Path, help="a file of results to go on from")
    args = asked.parse_args()
    settle()
    book = Book(args.out, time.monotonic() + 60 * args.minutes)
    if args.device == "cpu":
        fill(book, functools.partial(run_costs, models=args.models))
    shared(book, functools.partial(run_all, asked=args), args.workers)
    print("\n".join(report(list(book.rows.values()))))


def settle() -> None:
    """What every process of the bench begins with."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()


def run_all(book: Book, asked: argparse.Namespace) -> None:
    """Everything that has no result yet."""
    settle()
    run_all_healthy(book, asked)
    run_faults(book, asked)
    run_limits(book)
    run_classic(book, asked)


if __name__ == "__main__":
    main()
