"""Measures how well one-pass screening foretells injected noise, where its law ends, and what it costs.

Usage: python bench/screening.py [--parts agreement,validity,cost,memory] [--layouts 8x48,1x384]
           [--keep FOLDER] [--out FILE]

Harm is KL(clean || noisy) in nats per token. What is injected is measured over `--copies` times `--seeds` draws of the
noise, and its own standard error is given: no prediction can agree better with it than it does with itself. With
`--keep FOLDER` what was injected is kept there, group by group, and a run that was stopped goes on from it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import transformers
from scipy.stats import pearsonr, spearmanr
from torch import Tensor, nn

import noisescope as ns
from noisescope.core.records import Injection
from noisescope.measure.validity import judge_validity
from noisescope.measure.workload import DEMO_FOLDER
from noisescope.sweep.response import Responses

OPERATORS = ("linear", "matmul", "softmax", "silu", "rms_norm")
SCREENINGS = 5
RESPONSE_SCALES = (0.01, 0.02, 0.05, 0.1)
Key = tuple[int | None, str]
Model = tuple[nn.Module, Callable[[str], list[int]]]


def prepare(args: argparse.Namespace) -> Model:
    """The model and how it splits a text."""
    subject = ns.load(args.model)
    model = subject.model.to(args.device)
    return model, lambda text: subject.tokenizer(text).input_ids


def batch_of(args: argparse.Namespace, model: Model, layout: str) -> dict[str, Tensor]:
    """Rows of equal length cut from one stream of text: `8x48` is 8 rows of 48 tokens."""
    rows, length = map(int, layout.split("x"))
    if args.text:
        text = args.text.read_text(encoding="utf-8")[: 20 * rows * length]
    else:
        lines = (DEMO_FOLDER / "texts.jsonl").read_text(encoding="utf-8").splitlines()
        text = "\n\n".join(json.loads(line)["text"] for line in lines)
    ids = model[1](text)[: rows * length]
    return {"input_ids": torch.tensor(ids, device=args.device).view(rows, length)}


def groups_of(model: nn.Module) -> list[Key]:
    """Every layer and operator that screening and injection share."""
    return sorted({(s.layer, s.operator) for s in ns.sites(model) if s.operator in OPERATORS}, key=str)


def injected(args: argparse.Namespace, model: nn.Module, batch: dict[str, Tensor], scale: float) -> dict[Key, Tensor]:
    """Harm of each group by injection, one value per draw of the noise."""
    rows = len(batch["input_ids"])
    kept = Kept(args, batch, scale)
    responses = Responses(model, [{"input_ids": batch["input_ids"].repeat(args.copies, 1)}])
    asked = [(layer, operator, seed) for seed in range(args.seeds) for layer, operator in groups_of(model)]
    for number, (layer, operator, seed) in enumerate(asked, 1):
        print(f"\r  run {number} of {len(asked)} at {scale:g}", end="", file=sys.stderr, flush=True)
        if (layer, operator, seed) not in kept.values:
            values = responses.of_group((layer, operator), [scale], [seed])[0]
            kept.add((layer, operator, seed), values.reshape(-1, rows).mean(1).tolist())
    print(file=sys.stderr)
    draws = {key: [v for s in range(args.seeds) for v in kept.values[(*key, s)]] for key in groups_of(model)}
    return {key: torch.tensor(values, dtype=torch.float64) for key, values in draws.items()}


class Kept:
    """What was injected so far, by group and seed, in a file of its own for everything else that it depends on."""

    def __init__(self, args: argparse.Namespace, batch: dict[str, Tensor], scale: float) -> None:
        self.values: dict[tuple[int | None, str, int], list[float]] = {}
        asked = (args.model, batch["input_ids"].tolist(), scale, args.copies)
        name = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]
        self.file = args.keep / f"injected-{name}.jsonl" if args.keep else None
        if self.file and self.file.exists():
            lines = map(json.loads, self.file.read_text(encoding="utf-8").splitlines())
            self.values = {(layer, operator, seed): values for layer, operator, seed, values in lines}

    def add(self, key: tuple[int | None, str, int], values: list[float]) -> None:
        """Keep one run."""
        self.values[key] = values
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([*key, values]) + "\n")


def agreement(args: argparse.Namespace, model: Model) -> Iterator[str]:
    """How the prediction of several screenings agrees with what injection measures."""
    for layout in args.layouts:
        batch = batch_of(args, model, layout)
        seen = {scale: injected(args, model[0], batch, scale) for scale in args.scales}
        for draws in args.draws:
            profiles = [ns.screen(model[0], [batch], scale=1.0, draws=draws, seed=s) for s in range(SCREENINGS)]
            for scale in args.scales:
                yield f"### {layout} tokens, noise of {scale:.0%}, {draws} draw{'s' if draws > 1 else ''} of directions"
                yield ""
                yield from agreement_table(seen[scale], [p.at_scale(scale).harm for p in profiles])


def agreement_table(seen: dict[Key, Tensor], predicted: list[dict[Key, float]]) -> Iterator[str]:
    """One row for all groups and one for each operator."""
    draws = len(next(iter(seen.values())))
    yield f"{len(seen)} groups, each injected with {draws} draws of the noise; {len(predicted)} screenings."
    yield ""
    yield "| groups | Spearman | log Pearson | predicted / measured | standard error of the measured |"
    yield "|---|---|---|---|---|"
    for name in ("all", *OPERATORS):
        keys = [k for k in seen if name == "all" or (k[1] == name and k[0] is not None)]
        means = np.array([float(seen[k].mean()) for k in keys])
        error = np.median([float(seen[k].std() / seen[k].mean()) / draws**0.5 for k in keys])
        guesses = [np.array([one[k] for k in keys]) for one in predicted]
        ranks = [float(spearmanr(guess, means).statistic) for guess in guesses]
        logs = [float(pearsonr(np.log(guess), np.log(means)).statistic) for guess in guesses]
        ratios = [float(np.median(guess / means)) for guess in guesses]
        cells = (spread(ranks, 4), spread(logs, 4), spread(ratios, 3))
        yield f"| {name} | {' | '.join(cells)} | {error:.1%} |"
    yield ""
    yield worst_five(seen, predicted)
    yield ""


def spread(values: list[float], digits: int) -> str:
    """The middle of several screenings, and their range."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def worst_five(seen: dict[Key, Tensor], predicted: list[dict[Key, float]]) -> str:
    """Whether the five groups predicted to be worst are those, but for what is within two standard errors."""
    means = {k: float(v.mean()) for k, v in seen.items()}
    errors = {k: float(v.std()) / len(v) ** 0.5 for k, v in seen.items()}
    fifth = sorted(means, key=lambda k: -means[k])[4]
    counts = []
    for one in predicted:
        five = sorted(seen, key=lambda k: -one[k])[:5]
        counts.append(sum(means[fifth] - means[k] <= 2 * (errors[k] ** 2 + errors[fifth] ** 2) ** 0.5 for k in five))
    names = ", ".join(
        f"{k[1]} {'outside' if k[0] is None else k[0]}" for k in sorted(means, key=lambda k: -means[k])[:5]
    )
    among = f"{min(counts)} to {max(counts)} are among them"
    return f"The five worst by injection: {names}. Of the five predicted to be, {among}."


def validity(args: argparse.Namespace, model: Model) -> Iterator[str]:
    """Where the quadratic law ends: each operator in all layers, and in the five worst groups."""
    layout = args.layouts[0]
    batch = batch_of(args, model, layout)
    harm = ns.screen(model[0], [batch], draws=args.draws[0]).harm
    keys = [k for k in groups_of(model[0]) if k[0] is not None]
    worst = sorted(keys, key=lambda k: -harm[k])[:5]
    asked: list[tuple[str, list[int | None], str]] = [(f"{o}, each layer alone", [], o) for o in OPERATORS]
    asked += [(f"{operator} in layer {layer}", [layer], operator) for layer, operator in worst]
    asked += [("linear outside the layers", [None], "linear"), ("rms_norm outside the layers", [None], "rms_norm")]
    responses = Responses(model[0], [{"input_ids": batch["input_ids"].repeat(max(1, args.copies // 4), 1)}])
    yield f"### {layout} tokens, scales {', '.join(f'{s:g}' for s in RESPONSE_SCALES)}"
    yield ""
    yield "| group | exponent | 95 % | harm at the largest scale over the law | within 20 % up to | left at |"
    yield "|---|---|---|---|---|---|"
    for name, layers, operator in asked:
        chosen = [layers] if layers else [[layer] for layer, o in keys if o == operator][:: args.every]
        injections = [Injection.of(ns.noise(), layers=one, operators=[operator]) for one in chosen]
        found = sum(responses.measure(one, RESPONSE_SCALES, range(args.seeds)) for one in injections)
        one = judge_validity(name, RESPONSE_SCALES, found)
        law, last = one.law.exponent, one.departures[-1]
        left = "" if one.left_at is None else f"{one.left_at:.3f}"
        over = f"{last.estimate:.3f} ({last.low:.3f} to {last.high:.3f})"
        yield f"| {name} | {law.estimate:.3f} | {law.low:.3f} to {law.high:.3f} | {over} | {one.holds_to:g} | {left} |"
    yield ""


def cost(args: argparse.Namespace, model: Model) -> Iterator[str]:
    """CPU time of a screening over that of a clean forward without gradients, interleaved."""
    yield "| tokens | draws | clean forwards | quartiles |"
    yield "|---|---|---|---|"
    for layout in args.layouts:
        batch = batch_of(args, model, layout)
        for draws in args.draws:
            ratios = []
            ns.screen(model[0], [batch], draws=draws)
            for number in range(args.rounds):
                print(f"\r  {layout} round {number + 1} of {args.rounds}", end="", file=sys.stderr, flush=True)
                clean = seconds(lambda batch=batch: forward(model[0], batch))
                ratios.append(seconds(lambda b=batch, d=draws: ns.screen(model[0], [b], draws=d)) / clean)
            low, middle, high = statistics.quantiles(ratios, n=4)
            yield f"| {layout} | {draws} | {middle:.2f} | {low:.2f} to {high:.2f} |"
    print(file=sys.stderr)
    yield ""


def seconds(call: Callable[[], object]) -> float:
    """CPU time of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


@torch.no_grad()
def forward(model: nn.Module, batch: dict[str, Tensor]) -> None:
    """One clean run."""
    model(**batch, use_cache=False)


def backward(model: nn.Module, batch: dict[str, Tensor]) -> None:
    """One plain training step up to the gradients of the weights."""
    model(**batch, labels=batch["input_ids"], use_cache=False).loss.backward()


def memory(args: argparse.Namespace) -> Iterator[str]:
    """Peak memory beyond the loaded model, each in a process of its own."""
    calls = ("forward", "backward", "screen")
    yield f"| tokens | {' | '.join(calls)} |"
    yield f"|---|{'---|' * len(calls)}"
    for layout in args.long:
        row = []
        for call in calls:
            command = [sys.executable, __file__, "--peak", call, "--layouts", layout, "--device", args.device]
            said = subprocess.run([*command, "--model", args.model], capture_output=True, text=True, check=True)
            row.append(f"{float(said.stdout):.0f} MB")
        yield f"| {layout} | {' | '.join(row)} |"
    yield ""


def peak(args: argparse.Namespace) -> None:
    """Print the megabytes that one call took at its peak."""
    model = prepare(args)
    batch = batch_of(args, model, args.layouts[0])
    # The first call of anything brings its code and buffers along.
    small = {"input_ids": batch["input_ids"][:, :8]}
    calls: dict[str, Callable[[dict[str, Tensor]], object]] = {
        "forward": lambda b: forward(model[0], b),
        "backward": lambda b: backward(model[0], b),
        "screen": lambda b: ns.screen(model[0], [b], draws=args.draws[0]),
    }
    calls[args.peak](small)
    model[0].zero_grad()
    before = taken(args.device)
    calls[args.peak](batch)
    print(taken(args.device) - before)


def taken(device: str) -> float:
    """The most megabytes that this process has held so far."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def parse() -> argparse.Namespace:
    """What is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--text", type=Path, help="a text file in place of the demo texts")
    parser.add_argument("--parts", type=words, default=["agreement", "validity", "cost", "memory"])
    parser.add_argument("--layouts", type=words, default=["8x48", "1x384"])
    parser.add_argument("--long", type=words, default=["1x384", "1x1024", "1x2048"])
    parser.add_argument("--scales", type=lambda text: [float(s) for s in text.split(",")], default=[0.05])
    parser.add_argument("--draws", type=lambda text: [int(d) for d in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--copies", type=int, default=2, help="rows are repeated so often, each with its own noise")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--every", type=int, default=5, help="of an operator's layers, every so many-th responds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keep", type=Path, help="a folder for what was injected, to go on from")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure and write."""
    args = parse()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    if args.peak:
        peak(args)
        return
    model = prepare(args) if set(args.parts) - {"memory"} else None
    parts: dict[str, Callable[[], Iterator[str]]] = {
        "agreement": lambda: agreement(args, model),
        "validity": lambda: validity(args, model),
        "cost": lambda: cost(args, model),
        "memory": lambda: memory(args),
    }
    lines: list[str] = []
    for name in args.parts:
        for line in (f"## {name.capitalize()}", "", *parts[name]()):
            print(line, flush=True)
            lines.append(line)
        if args.out:
            args.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
