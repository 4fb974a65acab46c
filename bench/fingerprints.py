"""How often the fingerprint of `noisescope.locate` names the layer of a fault, of another kind and seed than its noise.

    python bench/fingerprints.py --cases 200 --out fingerprints.jsonl

Runs on SmolLM2-135M. Faults of the engine, drawn at random over kinds, layers, operators and sparsity, and faults that
the engine does not know. A case that changed no value is counted apart. Beside the pattern over all borders stands the
pattern of the last output alone, as published fingerprints use it. `--opinions` full runs show how often the second
opinion agrees, with the good system as a model and as a capture. With `--out` a second call goes on; `--workers 16`
shares the cases among 16 processes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fault_book import Book, shared
from fault_cases import Case, drawn, planted
from fault_subjects import model_of, texts
from fault_tables import rate
from strange_faults import STRANGE, Spoiled

import noisescope as ns
from noisescope.core.errors import BadInputError
from noisescope.measure.capture_file import read_capture
from noisescope.runs.fingerprinting import Library, judged_by, library_of
from noisescope.sweep.responses import answer, by_position

FAULT_SEED, PRINT_SEED = 1_000_003, 17


def cases_of(model: Any, count: int, seed: int) -> list[Case]:
    """Faults of the engine in the layers, and one in five that it does not know."""
    inside = [{"group": "planted", **case} for case in planted(model) if case["layer"] is not None]
    paths = [s for s in ns.sites(model) if s.layer is not None and s.path in dict(model.named_modules())]
    strange = [
        {"group": "strange", "kind": kind, "path": site.path, "layer": site.layer, "operator": site.operator}
        for site in paths
        for kind in STRANGE
    ]
    return drawn(inside, count - count // 5, seed) + drawn(strange, count // 5, seed)


@contextlib.contextmanager
def faulty(case: Case, model: Any) -> Iterator[list[bool]]:
    """A model with the fault of a case; what is yielded says in the end whether it changed a value."""
    changed: list[bool] = []
    if case["group"] == "strange":
        with Spoiled(model.get_submodule(case["path"]), STRANGE[case["kind"]], None, FAULT_SEED) as spoiled:
            yield changed
        changed.append(spoiled.changed)
        return
    more = {} if case["fraction"] == 1 else {"fraction": case["fraction"]}
    made = ns.fault(case["kind"], case["magnitude"], **more)
    handle = ns.inject(model, made, layers=[case["layer"]], operators=case["operator"], seed=FAULT_SEED)
    handle.strict = False
    with handle:
        yield changed
    changed.append(any(realised.changed for realised in handle.stats.by_site().values()))


class Last:
    """Fingerprints of the last output alone: how far noise in a layer moves the answer at every position."""

    def __init__(self, good: Any) -> None:
        self.inputs = texts()[0]
        with torch.no_grad():
            self.clean = answer(good(**self.inputs, use_cache=False))
            self.prints = [self._with_noise(good, layer) for layer in range(len(good.model.layers))]

    def _with_noise(self, good: Any, layer: int) -> Any:
        with ns.inject(good, ns.noise(scale=0.05), layers=layer, operators="linear", seed=PRINT_SEED):
            return self.pattern(answer(good(**self.inputs, use_cache=False)))

    def pattern(self, moved: torch.Tensor) -> Any:
        """The logarithm of the divergence at every position."""
        return by_position(self.clean, moved).clamp(min=1e-9).log().flatten().double().numpy()

    def named(self, moved: torch.Tensor) -> int:
        """The layer whose fingerprint correlates best."""
        found = self.pattern(moved)
        return int(np.argmax([_correlation(found, prints) for prints in self.prints]))


def run_case(case: Case, model: Any, library: Library, last: Last) -> dict[str, Any]:
    """Which layer the pattern over all borders names, and which the last output alone."""
    kept: list[torch.Tensor] = []
    handle = model.register_forward_hook(lambda _m, _a, out: kept.append(answer(out)))
    with faulty(case, model) as changed:
        pattern = library.pattern_of(model)
    handle.remove()
    layers = [place.layer for place in library.places]
    scores = library.scores(pattern)
    order = np.argsort(-scores, kind="stable")
    return {
        "changed": changed[0],
        "seen": bool(pattern.any()),
        "said": layers[order[0]],
        "margin": float(scores[order[0]] - scores[order[1]]),
        "last": last.named(kept[0]),
    }


def _correlation(one: Any, other: Any) -> float:
    a, b = one - one.mean(), other - other.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size else 0.0


def run_opinion(case: Case, model: Any, reference: Any, library: Library | None) -> dict[str, Any]:
    """The whole method with its second opinion; with a library, one that needs no new fingerprints."""
    began = time.process_time()
    with faulty(case, model) as changed:
        known = library_of(reference, model, texts(), PRINT_SEED) if library is None else library
        found = judged_by(known, reference, model, PRINT_SEED)
    top = found.suspects[0].layer if found.suspects else None
    second = None if found.opinion is None else found.opinion.layer
    return {
        "changed": changed[0],
        "verdict": found.verdict,
        "said": top,
        "second": second,
        "confidence": found.confidence,
        "seconds": time.process_time() - began,
    }


def report(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The tables as Markdown, then the misses."""
    singles = [r for r in rows if "reference" not in r["case"] and r["changed"]]
    seen = [r for r in singles if r["seen"]]
    idle = sum(not r["changed"] for r in rows)
    yield f"{idle} cases changed no value, {len(singles) - len(seen)} none that leaves a layer: left out.\n"
    yield "| fingerprint over | dtype | layer top-1 [95 % interval] |"
    yield "|---|---|---|"
    for name, key in (("all borders", "said"), ("the last output alone", "last")):
        for dtype in sorted({r["case"]["dtype"] for r in seen}):
            group = [r for r in seen if r["case"]["dtype"] == dtype]
            yield f"| {name} | {dtype} | {rate(sum(r[key] == r['case']['layer'] for r in group), len(group))} |"
    yield "\n| kind of fault | layer top-1 |"
    yield "|---|---|"
    for kind in sorted({r["case"]["kind"] for r in seen}):
        group = [r for r in seen if r["case"]["kind"] == kind]
        yield f"| {kind} | {rate(sum(r['said'] == r['case']['layer'] for r in group), len(group))} |"
    yield from _opinions([r for r in rows if "reference" in r["case"] and r["changed"]])
    misses = [(r["case"], r["said"], round(r["margin"], 4)) for r in seen if r["said"] != r["case"]["layer"]]
    yield f"\nmissed: {misses}"


def _opinions(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "\n| the good system | fingerprint right | second opinion right | both agree | verdict is fault |"
    yield "|---|---|---|---|---|"
    for kind in sorted({r["case"]["reference"] for r in rows}):
        group = [r for r in rows if r["case"]["reference"] == kind]
        right = [sum(r[key] == r["case"]["layer"] for r in group) for key in ("said", "second")]
        agree, faults = sum(r["said"] == r["second"] for r in group), sum(r["verdict"] == "fault" for r in group)
        yield f"| a {kind} | " + " | ".join(rate(n, len(group)) for n in (*right, agree, faults)) + " |"


def run_dtype(book: Book, dtype: str, asked: argparse.Namespace) -> None:
    """All cases of a dtype."""
    good, model = model_of("smollm2", asked.good or dtype), model_of("smollm2", dtype)
    if asked.unfused:
        good.set_attn_implementation("eager")
    other = [part for part in (asked.good, "with unfused attention" if asked.unfused else None) if part]
    named = f"{dtype}, the good system {' '.join(other)}" if other else dtype
    cases = [{"dtype": named, **case} for case in cases_of(model, asked.cases, asked.seed)]
    asked_of = {
        kind: [{"reference": kind, **case} for case in cases[: asked.opinions]] for kind in ("model", "capture")
    }
    left = {kind: [c for c in chosen if book.lacks(c)] for kind, chosen in {"": cases, **asked_of}.items()}
    if left[""] or left["model"]:
        library, last = library_of(good, model, texts(), PRINT_SEED), Last(good)
        run_group(book, left[""], lambda case: run_case(case, model, library, last))
        run_group(book, left["model"], lambda case: run_opinion(case, model, good, library))
    with tempfile.TemporaryDirectory() as folder:
        capture = read_capture(ns.capture(good, texts(), Path(folder) / "good.capture"))
        run_group(book, left["capture"], lambda case: run_opinion(case, model, capture, None))


def run_group(book: Book, cases: list[Case], run: Callable[[Case], dict[str, Any]]) -> None:
    """Cases without a result; a fault that does not fit where it is put is none."""
    for case in cases:
        with contextlib.suppress(BadInputError):
            book.add(case, run(case))


def run_all(book: Book, asked: argparse.Namespace) -> None:
    """Everything that has no result yet."""
    torch.set_num_threads(1)
    for dtype in asked.dtypes:
        run_dtype(book, dtype, asked)


def main() -> None:
    """Run and print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--cases", type=int, default=200, help="faults of each dtype (default: %(default)s)")
    asked.add_argument("--opinions", type=int, default=60, help="of them with a second opinion (default: %(default)s)")
    asked.add_argument("--seed", type=int, default=1, help="of the draw (default: %(default)s)")
    asked.add_argument("--dtypes", type=lambda text: text.split(","), default=["float32", "bfloat16"])
    asked.add_argument("--good", help="dtype of the good system, if it is another one")
    asked.add_argument("--unfused", action="store_true", help="the good system with other kernels for attention")
    asked.add_argument("--workers", type=int, default=1, help="processes that share the cases (default: %(default)s)")
    asked.add_argument("--out", type=Path, help="a file of results to go on from")
    args = asked.parse_args()
    book = Book(args.out, float("inf"))
    shared(book, functools.partial(run_all, asked=args), args.workers)
    print("\n".join(report(list(book.rows.values()))))


if __name__ == "__main__":
    main()
