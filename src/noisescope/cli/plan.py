"""Plan the move of a model to another device or format, from its diagnosis and a comparison if there is one.

What noise costs in each layer, times how far the target diverges there, says what comes first. Each step has its
reason and the command that shows that it holds. The model is not needed. The plan is kept in the run folder, as
plan.md, plan.json and a part of the report.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from noisescope.cli.lines import show
from noisescope.cli.options import add_loading, asked_in, write_page

SUMMARY = "plan the move to another device: what first, why, and how to validate it"
EXAMPLE = "noisescope plan runs/first --target npu"
_CARRIED = ("config_from", "trust_remote_code")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run folder, the comparison, and the words of the commands that the plan writes."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="run folder with a diagnosis")
    parser.add_argument(
        "--comparison", type=Path, metavar="RUN", help="run folder with a comparison (default: the one in RUN, if any)"
    )
    parser.add_argument(
        "--target",
        metavar="D",
        help="device that the model moves to (default: that of the comparison, else of the diagnosis)",
    )
    parser.add_argument("--model", metavar="MODEL", help="the model in the commands (default: the one of the run)")
    parser.add_argument("--data", metavar="F", help="the data in the commands (default: the data of the run)")


def run(asked: argparse.Namespace) -> int:
    """The steps on stdout; the plan and its files in the run folder."""
    from noisescope.prescribe.validation import Move
    from noisescope.report.plan import plan_lines
    from noisescope.runs.planning import plan, write_plan
    from noisescope.sweep.store import Store

    with Store(asked.run_folder) as store:
        request = asked_in(store, asked)
        compared = None if asked.comparison is None else Store(asked.comparison)
        move = Move(request.model, request.workload, loading=_loading(store.about.asked))
        found = plan(store, move, compared, asked.target)
        paths = write_plan(found, store, request)
    show([*plan_lines(found), *map(str, paths)])
    write_page(asked.run_folder)
    return 0


def _loading(command: str) -> tuple[str, ...]:
    """The options of the command that made the run without which its model cannot be loaded."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_loading(parser)
    known, _ = parser.parse_known_args(shlex.split(command))
    words = ["--config-from", known.config_from] if known.config_from else []
    return (*words, *(["--trust-remote-code"] if known.trust_remote_code else []))
