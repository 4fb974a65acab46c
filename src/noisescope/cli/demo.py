"""Show the main job on the embedded model, end to end: diagnosis, a planted fault found, precision map, plan, report.

It runs the commands that it names, so that each can be repeated with a model and data of one's own. It opens with no
network once the model is fetched.
"""

from __future__ import annotations

import argparse
import os
import textwrap
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from noisescope.cli.lines import show

if TYPE_CHECKING:
    from noisescope.diagnose.operator import OperatorResult
    from noisescope.sweep.store import Store

SUMMARY = "show the main job on the embedded model, end to end"
EXAMPLE = "noisescope demo"
LAYER, KIND, OPERATOR = 10, "dead_zone", "linear"
WIDTH = 88


@dataclass(frozen=True)
class Step:
    """One command of the demo: what it answers, what it does, its words, and what it found in a line or a few."""

    question: str
    what: str
    words: tuple[str, ...]
    answer: Callable[[Store], Iterable[str]]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Only where it is kept."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/demo"),
        metavar="RUN",
        help="run folder; the demo goes on there (default: %(default)s)",
    )


def steps(out: Path) -> tuple[Step, ...]:
    """What the demo does before the report."""
    workers = str(min(2, os.cpu_count() or 1))
    data = ("--data", "demo:texts", "--calibration", "demo:calibration", "--samples", "40")
    fault = ("--ground-truth-layer", str(LAYER), "--fault-type", KIND, "--fault-operator", OPERATOR)
    return (
        Step(
            "Where is this model fragile?",
            "Random errors of 5 % are put into its operators and its layers, and what they add to the loss on 40 short "
            "texts is measured. One backward pass says first where to look. Its channels are watched for outliers.",
            ("diagnose", "demo", *data, "--workers", workers, "--out", str(out)),
            _fragile,
        ),
        Step(
            "Would a faulty chip be found, with no healthy one to compare with?",
            f"A simulated defect sets small values to 0 in the {OPERATOR} operators of layer {LAYER}. Every operator "
            "call is held against its own arithmetic, which says nothing of where the defect is.",
            ("locate", "demo", *fault, "--samples", "2", "--repeats", "1", "--out", str(out)),
            _faulty,
        ),
        Step(
            "How few bits are enough, and where?",
            "The weights of each group of linear layers get 4, 8 or 16 bits, 6 on average, where they hurt least. The "
            "map is then applied and measured, and written for five quantizers.",
            ("bits", str(out), "--target-avg-bits", "6", "--samples", "24"),
            _cheap,
        ),
        Step(
            "What comes first when the model moves to another device?",
            "What noise costs in each layer ranks the layers; each step of the plan has its reason and the command by "
            "which to see on the target that it holds.",
            ("plan", str(out), "--target", "npu"),
            _planned,
        ),
    )


def run(asked: argparse.Namespace) -> int:
    """Each command with its question and its answer, then what to do and where the report is."""
    from noisescope.runs.reporting import report
    from noisescope.sweep.store import Store

    began, todo = time.monotonic(), steps(asked.out)
    _say(
        "noisescope on SmolLM2-135M-Instruct, a small language model. It takes about two minutes on two free cores; "
        f"what is measured is kept in {asked.out}, and a second run goes on from there."
    )
    answers: list[str] = []
    for number, step in enumerate(todo, 1):
        _announce(number, len(todo), step)
        _run(step.words)
        found = list(step.answer(Store(asked.out)))
        for line in found:
            _say(line, first="  > ", then="    ")
        answers += found
    (page,) = report(asked.out, ("html",))
    _close(answers, asked.out, page, time.monotonic() - began)
    return 0


def _run(words: tuple[str, ...]) -> None:
    """One command, its own results left to the report."""
    from noisescope.cli.main import read_words

    with redirect_stdout(StringIO()):
        one = read_words(words)
        one.run(one)


def _announce(number: int, of: int, step: Step) -> None:
    show(["", f"Step {number} of {of}: {step.question}"])
    _say(step.what, first="  ", then="  ")
    show([f"  $ noisescope {' '.join(step.words)}"])


def _close(answers: Iterable[str], out: Path, page: Path, seconds: float) -> None:
    """The answers once more, what to do about them, the page, and what comes next."""
    from noisescope.runs.reporting import view_of
    from noisescope.sweep.progress import duration
    from noisescope.sweep.store import Store

    show(["", f"Done in {duration(seconds)}. What was found"])
    for line in answers:
        _say(line, first="  - ", then="    ")
    show(["", "What to do first"])
    for number, action in enumerate(view_of(Store(out)).actions[:3], 1):
        _say(f"{action.action} ({action.severity.word}: {action.component})", first=f"  {number}. ", then="     ")
    show(
        [
            "",
            "The report, with every figure, its interval and how to get it again; open it in a browser",
            f"  {page.resolve()}",
            "",
            "The same for a model of your own",
            "  noisescope diagnose MODEL --data questions.jsonl --out runs/mine",
            "  noisescope locate MODEL --out runs/mine",
            "  noisescope bits runs/mine --target-avg-bits 6",
        ]
    )


def _say(text: str, first: str = "", then: str = "") -> None:
    show(textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=then))


def _fragile(store: Store) -> Iterable[str]:
    """The worst operator, window and layer of channels, from the diagnosis that was kept."""
    from noisescope.core.words import many
    from noisescope.diagnose.whole import Diagnosis
    from noisescope.report.wording import label, number
    from noisescope.runs.kept_keys import DIAGNOSIS

    found = store.load_finding(DIAGNOSIS, Diagnosis)
    if found is None:
        return
    noise = label(found.setting.scale, "percent")
    measured = [one for one in found.operators if one.answer.harm is not None]
    if measured:
        yield (
            f"Operators: noise of {noise} in {measured[0].operator} costs {_cost(measured[0])} "
            f"({measured[0].verdict.name.lower()}), {_rest(measured[1:])}."
        )
    windows = [one for one in found.windows if one.answer.harm is not None]
    if windows:
        worst = max(windows, key=lambda one: one.answer.harm.estimate if one.answer.harm else 0.0)
        harm = number(worst.answer.harm.estimate if worst.answer.harm else None, "percent")
        points = many(len(found.points), "avalanche point") if found.points else "no place where errors pile up"
        yield f"Layers: {worst.name} are the most sensitive and cost {harm} ({worst.verdict.name}); {points}."
    if found.channels is not None and found.channels.layers:
        peak = max(found.channels.layers, key=lambda one: one.max_ratio)
        outliers = sum(one.outliers for one in found.channels.layers)
        yield (
            f"Channels: {many(outliers, 'channel')} of {sum(one.channels for one in found.channels.layers):,} "
            f"{'is' if outliers == 1 else 'are'} more than 10 times as large as the median one, in layer {peak.layer} "
            f"up to {peak.max_ratio:,.0f} times." + (" They make low-bit formats lossy." if outliers else "")
        )


def _cheap(store: Store) -> Iterable[str]:
    """What the map costs as measured, beside one format for all."""
    from noisescope.core.precision import PrecisionMap
    from noisescope.report.wording import number
    from noisescope.runs.kept_keys import PRECISION

    found = store.load_finding(PRECISION, PrecisionMap)
    if found is None or not found.measured:
        return
    own, *others = found.measured
    uniform = {option.format for choice in found.choices for option in choice.options}
    beside = "; ".join(
        f"{one.name} everywhere ({number(one.average_bits)} bits) costs {number(one.estimate)}"
        for one in others
        if one.name in uniform
    )
    yield (
        f"Precision: a map of {number(own.average_bits)} bits per weight on average moves the answers by "
        f"{number(own.estimate)} nats of KL per token, 0 being no change (95 % interval {number(own.low)} to "
        f"{number(own.high)}, {found.samples} texts); {beside}."
    )


def _planned(store: Store) -> Iterable[str]:
    """How many steps of which urgency the plan has, and the first of them."""
    from noisescope.core.migration import PRIORITIES, Plan
    from noisescope.core.words import many
    from noisescope.runs.kept_keys import PLAN

    found = store.load_finding(PLAN, Plan)
    if found is None or not found.steps:
        return
    counts = {word: sum(step.priority == number for step in found.steps) for number, word in PRIORITIES.items()}
    told = ", ".join(f"{word} {count}" for word, count in counts.items() if count)
    yield f"Plan: {many(len(found.steps), 'step')} for the move to {found.target} ({told}), kept as plan.md."


def _cost(result: OperatorResult) -> str:
    from noisescope.report.wording import number

    harm = result.answer.harm
    return number(None if harm is None else harm.estimate, "percent")


def _rest(others: list[OperatorResult]) -> str:
    if not others:
        return "and it is the only operator"
    return f"every other kind at most {_cost(others[0])} ({others[0].verdict.name.lower()})"


def _faulty(store: Store) -> Iterable[str]:
    """Whether and at which rank the planted fault was found."""
    from noisescope.core.words import many
    from noisescope.diagnose.localization import Localization
    from noisescope.runs.kept_keys import LOCALIZATION

    found = store.load_finding(LOCALIZATION, Localization)
    if found is None:
        return
    rank = found.rank_of(LAYER, OPERATOR)
    if rank is None:
        yield f"Fault: the planted defect in layer {LAYER} was missed; the verdict is {found.verdict}."
        return
    wrong = [one for one in found.suspects if (one.layer, one.operator) != (LAYER, OPERATOR)]
    accused = f"{many(len(wrong), 'other place')} accused as well" if wrong else "nothing else was accused"
    yield (
        f"Fault: {OPERATOR} of layer {LAYER} was found at rank {rank} among the {found.checked:,} places that were "
        f"checked, and {accused}."
    )
