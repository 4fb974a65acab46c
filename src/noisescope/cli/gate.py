"""Stop a checkpoint that noise costs more than it cost a baseline on the same samples, or more than a limit.

Noise goes into one operator after the other, everywhere, in all seeds; sample is paired with sample. An operator fails
where its degradation is shown to be more than --factor times the baseline's, or above --max-degradation. All verdicts
together are wrong about a checkpoint within its limits in at most 5 % of cases. What is not decided passes, unless
--strict is given; --save-baseline makes the baseline, --template prints a CI job.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisescope.cli.config import add_config
from noisescope.cli.lines import remark, show
from noisescope.cli.options import (
    DEMO,
    add_model,
    count,
    folder_of,
    how_to_load,
    positive,
    read_data,
    whole,
    write_page,
)
from noisescope.core.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from noisescope.prescribe.baseline import Baseline
    from noisescope.runs.diagnosing import Wanted
    from noisescope.runs.ordering import Order

SUMMARY = "stop a checkpoint that got more brittle than a baseline"
EXAMPLE = "noisescope gate demo --samples 8 --save-baseline runs/baseline.json"
TEMPLATES = {"github": "gate.github.yml", "gitlab": "gate.gitlab-ci.yml"}
LIMIT_BROKEN, NOT_JUDGED = 1, 2
# Of the usual metrics accuracy says too little of 50 samples.
METRIC, SAMPLES, SEEDS, SCALE = "nll", 50, 3, 0.05


class _Print(argparse.Action):
    """Prints a template and ends, as --version does."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if values not in TEMPLATES:
            parser.error(f"argument {option_string}: {unknown_name('template', values, TEMPLATES)}")
        show(template(str(values)).splitlines())
        parser.exit(0)


def template(name: str) -> str:
    """The text of a CI job that calls this command."""
    return files("noisescope.cli").joinpath("templates", TEMPLATES[name]).read_text("utf-8")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The checkpoint, the baseline, the limits, and how it is measured."""
    add_model(parser)
    parser.add_argument("--template", action=_Print, metavar="NAME", help=f"print a CI job: {', '.join(TEMPLATES)}")
    _add_limits(parser.add_argument_group("limits"))
    group = parser.add_argument_group("measuring; what is left out is taken from the baseline")
    group.add_argument("--data", metavar="F", help=f"as of diagnose (without a baseline: {DEMO}texts)")
    group.add_argument("--metric", metavar="NAME", help=f"(without a baseline: {METRIC})")
    group.add_argument("--samples", "-n", type=count, metavar="N", help=f"items (without a baseline: {SAMPLES})")
    group.add_argument("--noise-scale", type=positive, metavar="S", help=f"(without a baseline: {SCALE})")
    group.add_argument("--seeds", type=count, metavar="N", help=f"draws per item (without a baseline: {SEEDS})")
    group.add_argument("--seed", type=whole, metavar="N", help="where the noise begins (without a baseline: 0)")
    _add_files(parser.add_argument_group("run"))
    add_config(parser)


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--baseline", type=Path, metavar="REPORT", help="file of --save-baseline, or run folder of gate or diagnose"
    )
    group.add_argument("--factor", type=positive, default=1.2, metavar="X", help="times the baseline's (%(default)s)")
    group.add_argument(
        "--max-degradation", type=positive, default=0.15, metavar="D", help="share of the clean score (%(default)s)"
    )
    group.add_argument(
        "--ignore-below",
        type=_share,
        default=0.0,
        metavar="D",
        help="losses that are not held against the baseline's (default: %(default)s)",
    )
    group.add_argument("--strict", action="store_true", help="fail unless all is shown to be within the limits")


def _add_files(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--save-baseline", type=Path, metavar="FILE", help="keep this checkpoint as a baseline")
    group.add_argument(
        "--history",
        type=Path,
        default=Path("runs/gate-history.jsonl"),
        metavar="FILE",
        help="one line for each checkpoint is added here (default: %(default)s)",
    )
    group.add_argument("--label", metavar="NAME", help="what the checkpoint is called (default: MODEL)")
    group.add_argument("--out", type=Path, metavar="RUN", help="run folder (default: runs/gate-MODEL-HASH)")
    group.add_argument("--workers", type=count, default=1, metavar="N", help="processes (default: %(default)s)")


def _share(text: str) -> float:
    return 0.0 if text.strip() in ("0", "0.0") else positive(text)


def run(asked: argparse.Namespace) -> int:
    """The verdict and a line for each operator on stdout; the page, the trend and the readings in the run folder."""
    from noisescope.diagnose.gate import GateRules
    from noisescope.diagnose.gate_lines import gate_lines
    from noisescope.prescribe.baseline import read_baseline
    from noisescope.runs.gating import Passing, gate
    from noisescope.runs.kept_keys import GATE
    from noisescope.runs.ordering import opened
    from noisescope.sweep.store import Request

    if asked.baseline is None and asked.save_baseline is None:
        raise BadInputError("--baseline is missing: name one, or make one with --save-baseline FILE.")
    rules = GateRules(asked.factor, asked.max_degradation, asked.ignore_below)
    baseline = None if asked.baseline is None else read_baseline(asked.baseline)
    data = asked.data or (baseline.checkpoint.data if baseline else f"{DEMO}texts")
    passing = Passing(asked.label or asked.model, data, rules, baseline, asked.save_baseline, asked.history)
    with opened(_order(asked, data, baseline), sys.stderr) as desk:
        passed = gate(desk, _wanted(asked, baseline), passing)
        request = Request(asked.command_line, passing.name, data)
        desk.store.save_finding(GATE, passed.gated, request)
    show(gate_lines(passed.gated))
    if passed.damaged:
        remark(f"{asked.history}: {passed.damaged} lines could not be read and were passed over")
    write_page(desk.store.folder, ("html", "svg"))
    remark(f"kept in {desk.store.folder}")
    return _status(passed.gated.gate.verdict, strict=asked.strict)


def _status(verdict: str, *, strict: bool) -> int:
    if verdict == "error":
        return NOT_JUDGED
    return LIMIT_BROKEN if verdict == "fail" or (strict and verdict == "undecided") else 0


def _order(asked: argparse.Namespace, data: str, baseline: Baseline | None) -> Order:
    from noisescope.runs.ordering import Order

    setting = baseline.fragility.setting if baseline else None
    return Order(
        source=asked.model,
        load_options=tuple(how_to_load(asked).items()),
        workload=read_data(data, asked.samples or (setting.samples if setting else SAMPLES)),
        out=folder_of(asked),
        metric=asked.metric or (setting.metric if setting else METRIC),
        workers=asked.workers,
        asked=asked.command_line,
        is_marked=asked.out is None,
    )


def _wanted(asked: argparse.Namespace, baseline: Baseline | None) -> Wanted:
    """The same noise as the baseline's, but for what the command line says."""
    from noisescope.runs.diagnosing import Wanted

    known = baseline.fragility.setting if baseline else None
    seeds, seed = (len(known.seeds), known.seeds[0]) if known else (SEEDS, 0)
    return Wanted(
        kind=known.kind if known else Wanted.kind,
        scale=asked.noise_scale or (known.scale if known else SCALE),
        seeds=asked.seeds or seeds,
        seed=seed if asked.seed is None else asked.seed,
    )
