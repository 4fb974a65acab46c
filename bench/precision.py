"""Measures precision maps of one size beside each other: KL to the original, on samples that no map was made from.

Usage: python bench/precision.py [--held-out N] [--targets 5,6,7] [--work build/precision] [--out docs/precision.md]

Maps are of int4 (blocks of 32), int8 (by row) and bf16, and of these with int5 and int6 (blocks of 32), on
SmolLM2-135M-Instruct in float32. They are made from the first 50 texts that come with noisescope, as `noisescope bits`
does, and measured on the other 50 and those in bench/texts.jsonl. ModelOpt works in an environment of its own under
--work; where that cannot be installed its rows are missing, and the table says so. What was measured is kept under
--work, so that the same command goes on there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from environments import CONSTRAINTS, python_with

from noisescope.core.codec import key_of
from noisescope.core.precision import WeightFormat
from noisescope.inject.weights import rounded
from noisescope.measure.batches import Settings, prepare
from noisescope.measure.scoring import clean_run, evaluate
from noisescope.measure.statistics import difference, mean_interval
from noisescope.measure.workload import Workload, demo_workload, read_workload
from noisescope.model.embedded import embedded_folder
from noisescope.model.linears import linear_groups
from noisescope.model.load import load
from noisescope.prescribe.allocation import exact, greedy, spread
from noisescope.prescribe.applying import rounded_weights
from noisescope.runs.precision import METRIC, Halves, options_of
from noisescope.sweep.evaluating import evaluating, without_cache
from noisescope.sweep.weight_screening import screen_weights

FORMATS = tuple(map(WeightFormat.of, ("int4", "int8", "bf16")))
FINER = tuple(map(WeightFormat.of, ("int4", "int5", "int6", "int8", "bf16")))
# One format for all weights, of exactly these averages with its scales.
UNIFORM = {5.0: "int4:16", 6.0: "int5:16", 7.0: "int6:16"}
OURS = "exact map"
MODELOPT, PINNED = "nvidia-modelopt", "nvidia-modelopt==0.47.0"
BEGIN, END = "<!-- measured by make bench-precision -->", "<!-- end of what was measured -->"
MORE_TEXTS = Path(__file__).with_name("texts.jsonl")


@dataclass(frozen=True)
class Bench:
    """The model with its samples, and a folder for what was found. Without a limit all texts are held out for maps."""

    limit: int | None
    work: Path

    @cached_property
    def loaded(self):
        return load("demo")

    @cached_property
    def halves(self):
        """Of which the first makes the maps."""
        return Halves.of(self._prepared(demo_workload("texts")))

    @cached_property
    def judged(self):
        """The texts that maps are measured on: the second half, and those that nothing else reads."""
        items = demo_workload("texts").items[self.halves.middle :] + read_workload(MORE_TEXTS).items
        return self._prepared(Workload.of("texts that no map was made from", items[: self.limit]))

    def _prepared(self, workload):
        return prepare(workload, self.loaded.tokenizer, METRIC, Settings.of(self.loaded.model))

    @cached_property
    def made_from(self):
        """The inputs that maps are made from, as many as `noisescope bits` looks at."""
        return self.halves.inputs(self.loaded.model)

    @cached_property
    def groups(self):
        return linear_groups(self.loaded.model).groups

    @cached_property
    def weights(self):
        return sum(group.weights for group in self.groups)

    @cached_property
    def predicted(self):
        """Harm and its error by path and format, predicted from the first half."""
        path = self.work / f"predicted-{key_of((self.halves.samples.key, FINER))}.json"
        if not path.exists():
            path.write_text(json.dumps(self._predict()))
        return {tuple(name.split(" ")): tuple(both) for name, both in json.loads(path.read_text()).items()}

    def _predict(self):
        model = self.loaded.model
        modules = {one.path: model.get_submodule(one.path) for group in self.groups for one in group.linears}
        roundings = {form.name: partial(rounded, form=form) for form in FINER}
        say("predicting")
        found = screen_weights(model, self.made_from, modules, roundings, draws=2)
        return {" ".join(name): (one.harm, one.error) for name, one in found.predictions.items()}

    @cached_property
    def clean(self):
        return clean_run(self.loaded.model, self.judged)

    def kl(self, formats):
        """KL of each text that is measured on, with these formats by path."""
        path = self.work / f"kl-{key_of((self.judged.key, tuple(sorted(formats.items()))))}.json"
        if not path.exists():
            model = self.loaded.model
            with evaluating(model), without_cache(model), rounded_weights(model, {}):
                clean = self.clean
                with rounded_weights(model, formats):
                    values = evaluate(model, self.judged, clean=clean).values
            path.write_text(json.dumps(values))
        return json.loads(path.read_text())

    def tables(self, formats):
        """What each group could get, at the predicted harm."""
        return [options_of(group, formats, self.predicted) for group in self.groups]

    def by_path(self, tables, chosen):
        """Formats by path of a choice."""
        return {
            one.path: table[index].format
            for group, table, index in zip(self.groups, tables, chosen, strict=True)
            for one in group.linears
        }

    def foretold(self, formats):
        """What the predictions of all layers add up to, as text; empty where a format was not predicted."""
        harms = [self.predicted.get(one) for one in formats.items()]
        return "" if None in harms else f"{math.fsum(harm for harm, _ in harms):.4f}"

    def average(self, formats):
        """Bits per weight with scales."""
        bits = sum(
            WeightFormat.of(formats[one.path]).size(one.rows, one.columns) for g in self.groups for one in g.linears
        )
        return bits / self.weights


def say(text):
    """A line of progress, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def own_maps(bench, target, formats):
    """Maps of noisescope and the blind ones, by name."""
    budget = int(target * bench.weights)
    tables = bench.tables(formats)
    chosen = {
        OURS: exact(tables, budget),
        "greedy pass over the same predictions": greedy(tables, budget),
        "evenly mixed, blind": spread(tables, budget),
    }
    maps = {name: bench.by_path(tables, one) for name, one in chosen.items()}
    uniform = {form.name: dict.fromkeys(maps[OURS], form.name) for form in formats}
    fitting = [name for name, one in uniform.items() if bench.average(one) <= target]
    maps[f"uniform {fitting[-1]}, the largest that fits"] = uniform[fitting[-1]]
    if target in UNIFORM:
        maps[f"uniform {UNIFORM[target]}, of that size"] = dict.fromkeys(maps[OURS], UNIFORM[target])
    return maps


def modelopt_python(work):
    """Python of an environment with ModelOpt, made if need be; None where it cannot be."""
    say("looking for the environment of ModelOpt, or making it")
    # ModelOpt does not name requests, which it needs.
    packages = ("--constraint", CONSTRAINTS, PINNED, "transformers", "requests")
    python = python_with(work / "modelopt-env", "modelopt.torch.quantization", packages)
    if python is None:
        say("ModelOpt CANNOT BE INSTALLED: its rows will be missing")
    return python


def modelopt_answer(bench, targets, formats):
    """What ModelOpt scored and chose, from the same inputs; None where it could not be asked."""
    inputs = [{name: x.tolist() for name, x in batch.items()} for batch in bench.made_from]
    paths = [one.path for group in bench.groups for one in group.linears]
    ways = [
        {"bits": form.bits, "block": form.block, "size": bench.average(dict.fromkeys(paths, form.name))}
        for form in formats
        if form.scale_bits
    ]
    asked = {"model": str(embedded_folder("demo")), "batches": inputs, "targets": targets, "formats": ways}
    path = bench.work / f"modelopt-{key_of(json.dumps(asked))}.json"
    if not path.exists():
        python = modelopt_python(bench.work)
        if python is None:
            return None
        say("asking ModelOpt")
        question = path.with_suffix(".asked.json")
        question.write_text(json.dumps(asked))
        environment = {**os.environ, "PYTHONPATH": "", "TORCHDYNAMO_DISABLE": "1"}
        script = Path(__file__).with_name("modelopt_map.py")
        done = subprocess.run([python, script, question, path], env=environment, stdout=sys.stderr, check=False)
        if done.returncode:
            say(f"ModelOpt FAILED with status {done.returncode}: its rows will be missing")
            return None
    return json.loads(path.read_text())["maps"]


def modelopt_maps(bench, rows, target, formats):
    """Its own map, and the exact choice by its scores, within the same budget."""
    names = {form.bits: form.name for form in formats}
    inside = {one.path for group in bench.groups for one in group.linears}
    rows = [row for row in rows if inside.issuperset(row["modules"])]
    own = {module: names[int(row["bits"][row["taken"]])] for row in rows for module in row["modules"]}
    scores = {}
    for row in rows:
        for bits, score in zip(row["bits"], row["scores"], strict=True):
            for module in row["modules"]:
                scores[module, names[int(bits)]] = (score / len(row["modules"]), 0.0)
    tables = [options_of(group, formats, scores) for group in bench.groups]
    chosen = exact(tables, int(target * bench.weights))
    return {
        "ModelOpt auto_quantize, gradient": own,
        "exact choice by ModelOpt's scores": bench.by_path(tables, chosen),
    }


def rows_of(bench, target, maps):
    """A line of the table for each map; differences are paired by text."""
    best = bench.kl(maps[OURS])
    for name, formats in maps.items():
        say(f"{target:g} bits: {name}")
        values = bench.kl(formats)
        kl, above = mean_interval(values), difference(values, best)
        more = "" if name == OURS else f"{above.estimate:+.4f} [{above.low:+.4f}, {above.high:+.4f}]"
        yield (
            f"| {target:g} | {name} | {bench.average(formats):.3f} | {bench.foretold(formats)} "
            f"| {kl.estimate:.4f} [{kl.low:.4f}, {kl.high:.4f}] | {more} |"
        )


def table(bench, targets, formats):
    """All maps that choose from these formats, in Markdown."""
    answer = modelopt_answer(bench, targets, formats)
    names = ", ".join(form.name for form in formats)
    lines = ["", f"To choose from: {names}.", ""]
    lines.append("| target | map | bits | predicted | KL, nats per token | more than the exact map |")
    lines.append("|---|---|---|---|---|---|")
    for target in targets:
        maps = own_maps(bench, target, formats)
        if answer is not None:
            maps |= modelopt_maps(bench, answer[str(target)], target, formats)
        lines += rows_of(bench, target, maps)
    return lines if answer is not None else [*lines, "", "ModelOpt could not be installed: no rows of it."]


def page(bench, targets):
    """Both tables, and on what they stand."""
    lines = [line for formats in (FORMATS, FINER) for line in table(bench, targets, formats)]
    tokens = sum(int(inputs["attention_mask"].sum()) for inputs in bench.made_from)
    texts = sum(len(inputs["attention_mask"]) for inputs in bench.made_from)
    return "\n".join(
        [
            *lines,
            "",
            f"95 % intervals of a bootstrap over {len(bench.judged)} texts that no map was made from; the maps were "
            f"made from {texts} others, of {tokens:,} tokens. Differences are paired by text.",
        ]
    ).strip()


def main():
    """Measure, print, and write into the page where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", type=int, metavar="N", help="measure on N texts (default: all there are)")
    parser.add_argument("--targets", default="5,6,7")
    parser.add_argument("--work", type=Path, default=Path("build/precision"))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    text = page(Bench(asked.held_out, asked.work), [float(part) for part in asked.targets.split(",")])
    print(text)
    if asked.out is not None:
        old = asked.out.read_text()
        before, after = old.split(BEGIN)[0], old.split(END)[1]
        asked.out.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
