"""Holds the default diagnosis against the exhaustive one: what each costs, and whether their verdicts are the same.

Usage: python bench/verdicts.py --keep FOLDER [--data choices] [--metric accuracy] [--samples 24] [--scale 0.05]
       [--device cpu] [--time] [--out FILE]

Both ask the demo model with the same samples, scale and seeds, in one run folder below FOLDER: a reading that both need
is taken once, which changes no reading, and a run that was stopped goes on. A cost is what a diagnosis would have taken
alone, in evaluations of the clean model over all samples.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
import transformers

from noisescope.core.records import Trial
from noisescope.diagnose.harm import percent
from noisescope.diagnose.ledger import Answer
from noisescope.diagnose.whole import Diagnosis
from noisescope.measure.verdicts import Verdict
from noisescope.measure.workload import demo_workload
from noisescope.runs.diagnosing import Desk, Wanted, examine
from noisescope.runs.ordering import Order, opened
from noisescope.sweep.bench import ModelBench

LEVELS = ("operators", "windows")


def order_of(args: argparse.Namespace) -> Order:
    """The demo model on demo data, in a folder of its own."""
    folder = args.keep / "-".join([args.data, args.metric or "usual", str(args.samples)])
    workload = demo_workload(args.data, limit=args.samples)
    options = (("device", args.device),)
    return Order("demo", options, workload, folder, metric=args.metric, asked="bench/verdicts.py")


def both(args: argparse.Namespace, desk: Desk) -> tuple[Diagnosis, Diagnosis]:
    """The default diagnosis and the exhaustive one."""
    plain = {"scale": args.scale, "seeds": args.seeds}
    default = examine(desk, Wanted(**plain))
    every = Wanted(**plain, exhaustive=True, mode=args.mode)
    return default, examine(desk, every)


def timed(args: argparse.Namespace, desk: Desk) -> str:
    """CPU time of the default diagnosis, in clean evaluations by CPU time, the one before it and the one behind it."""
    samples = desk.patient.samples
    clean = Trial((), samples.key, samples.metric.name)
    steps: list[Callable[[], object]] = [lambda: ModelBench(desk.patient.model, samples).measure(clean)]
    steps += [lambda: examine(desk, Wanted(scale=args.scale, seeds=args.seeds)), *steps]
    taken = []
    for step in steps:
        start = time.process_time()
        step()
        taken.append(time.process_time() - start)
    ratios = [taken[1] / one for one in (taken[0], taken[2])]
    return (
        f"{args.data}, {samples.metric.name}, {len(samples)} samples: the default diagnosis took {taken[1]:.0f} s of "
        f"CPU time, a clean evaluation {taken[0]:.1f} and {taken[2]:.1f} s: {min(ratios):.1f} to {max(ratios):.1f} "
        "of them."
    )


def by_name(found: Diagnosis, level: str) -> dict[str, Answer]:
    """What was found out, by operator or by window."""
    if level == "operators":
        return {result.operator: result.answer for result in found.operators}
    return {result.name: result.answer for result in found.windows}


def relation(one: Verdict, other: Verdict) -> str:
    """How a verdict of the default stands to that of the exhaustive diagnosis."""
    if one.decided and other.decided:
        return "same" if one.bands == other.bands else "contradicted"
    if one.decided or other.decided:
        who = "default" if one.decided else "exhaustive"
        return f"only the {who} decided" if set(one.bands) & set(other.bands) else "contradicted"
    return "both undecided"


def compared(one: Diagnosis, other: Diagnosis, level: str) -> dict[str, str]:
    """The relation of the verdicts, by name."""
    mine, theirs = by_name(one, level), by_name(other, level)
    return {name: relation(mine[name].verdict, theirs[name].verdict) for name in mine if name in theirs}


def summary(default: Diagnosis, every: Diagnosis) -> Iterator[str]:
    """Costs, and how many verdicts are the same."""
    yield "| | default | exhaustive |"
    yield "|---|---|---|"
    yield f"| clean evaluations | {default.cost:.1f} | {every.cost:.1f} |"
    for level in LEVELS:
        counts = [
            sum(answer.verdict.decided for answer in by_name(found, level).values()) for found in (default, every)
        ]
        yield f"| {level} decided | {counts[0]} of {len(by_name(default, level))} | {counts[1]} |"
        measured = [
            sum(answer.harm is not None for answer in by_name(found, level).values()) for found in (default, every)
        ]
        yield f"| {level} measured | {measured[0]} | {measured[1]} |"
    points = ["; ".join(f"{p.peak} {p.severity}" for p in found.points) or "none" for found in (default, every)]
    yield f"| avalanche points | {points[0]} | {points[1]} |"
    yield ""
    for level in LEVELS:
        counted = Counter(compared(default, every, level).values())
        yield f"{level.capitalize()}: {', '.join(f'{count} {name}' for name, count in counted.most_common())}."
    agreement = default.agreement
    if agreement is not None:
        one = agreement.interval
        yield ""
        yield (
            f"Predicted and measured harm of the {one.samples} windows that the default measured: Spearman "
            f"{one.estimate:.2f} ({one.low:.2f} to {one.high:.2f})."
        )
    yield ""


def details(default: Diagnosis, every: Diagnosis, level: str) -> Iterator[str]:
    """One line for each operator or window."""
    mine, theirs, how = by_name(default, level), by_name(every, level), compared(default, every, level)
    evidence = {result.name: result.evidence for result in default.windows}
    yield f"| {level[:-1]} | default | exhaustive | harm by the exhaustive | rests on | verdicts |"
    yield "|---|---|---|---|---|---|"
    for name in sorted(mine, key=lambda one: -_harm(theirs.get(one))):
        if name not in theirs:
            continue
        cells = (shown(mine[name].verdict), shown(theirs[name].verdict), cost_of(theirs[name]))
        yield f"| {name} | {' | '.join(cells)} | {evidence.get(name, 'measured')} | {how[name]} |"
    yield ""


def _harm(answer: Answer | None) -> float:
    return 0.0 if answer is None or answer.harm is None else answer.harm.estimate


def shown(verdict: Verdict) -> str:
    """A band, or the bands that are left."""
    return " or ".join(verdict.bands)


def cost_of(answer: Answer) -> str:
    """The degradation with its interval."""
    return "" if answer.harm is None else percent(answer.harm)


def report(args: argparse.Namespace, default: Diagnosis, every: Diagnosis) -> Iterable[str]:
    """Everything that the documents show."""
    setting = default.setting
    clean = default.clean.estimate if default.clean else float("nan")
    yield (
        f"{args.data}, {setting.metric}, {setting.samples} samples, {len(setting.seeds)} seeds, noise of "
        f"{setting.scale:g}; the clean score is {clean:.3f}."
    )
    yield ""
    yield from summary(default, every)
    for level in LEVELS:
        yield from details(default, every, level)


def main() -> None:
    """Ask, compare, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="choices", choices=("choices", "texts", "questions"))
    parser.add_argument("--metric")
    parser.add_argument("--samples", type=int, default=24)
    parser.add_argument("--scale", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", default="full", help="levels that the exhaustive diagnosis is asked about")
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--time", action="store_true", help="only the CPU time of the default, in a new folder")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with opened(order_of(args), sys.stderr) as desk:
        if args.time:
            print(timed(args, desk))
            return
        default, every = both(args, desk)
    text = "\n".join(report(args, default, every))
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
