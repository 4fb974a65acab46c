"""Train small models under noise, or one of yours, and test what is claimed of it.

e8: does noise in the activations teach to stand noise, and noise in the gradients not? adaptive: do scales by layer
help more than one scale of the same mean? Each claim is verified, falsified or undecided, as found. Claims, limits and
the recipe are fixed in the run folder before anything is trained.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisescope.cli.lines import remark, show
from noisescope.cli.options import add_loading, count, how_to_load, one_of, positive, write_page
from noisescope.core.experiment import EXPERIMENTS, RIVALS, Recipe
from noisescope.core.records import freeze

if TYPE_CHECKING:
    from noisescope.runs.experiment import ExperimentWanted

SUMMARY = "train under noise and test what is claimed of it"
EXAMPLE = "noisescope experiment e8 --quick --out runs/e8-quick"
# A given model is trained more gently and on fewer rows.
_GIVEN: dict[str, Any] = {"steps": 200, "rows": 8, "rate": 2e-5, "items": 200, "between": 100}
_QUICK: dict[str, Any] = {"steps": 600, "largest": 24, "items": 200, "between": 100, "examples": 10_000}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which experiment, how thoroughly, on what."""
    parser.add_argument("name", metavar="NAME", type=one_of("experiment", EXPERIMENTS), help=", ".join(EXPERIMENTS))
    parser.add_argument("--quick", action="store_true", help="an easier task and half of the steps")
    parser.add_argument(
        "--arms",
        type=rivals,
        default=(),
        metavar="A,A,...",
        help=f"rival explanations, each with arms of its own: {', '.join(RIVALS)}",
    )
    group = parser.add_argument_group("another model than the small one that is built")
    group.add_argument("--model", metavar="MODEL", help="as of diagnose")
    group.add_argument("--data", metavar="F", help="JSONL file to learn from; a part of it is held back for the test")
    _add_recipe(parser.add_argument_group("training; what is left out is what the experiment is made for"))
    add_loading(parser)
    run = parser.add_argument_group("run")
    run.add_argument("--out", type=Path, metavar="RUN", help="run folder; the same command goes on there")
    run.add_argument("--workers", type=count, default=2, metavar="N", help="processes (default: %(default)s)")


def _add_recipe(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--seeds", type=count, metavar="N", help=f"trainings of each arm ({Recipe.seeds})")
    group.add_argument("--samples", "-n", type=count, metavar="N", dest="items", help=f"of the test ({Recipe.items})")
    group.add_argument("--draws", type=count, metavar="N", help=f"noise draws per item ({Recipe.draws})")
    group.add_argument("--steps", type=count, metavar="N", help=f"({Recipe.steps})")
    group.add_argument("--batch-size", type=count, metavar="N", dest="rows", help=f"rows of a step ({Recipe.rows})")
    group.add_argument("--learning-rate", type=positive, metavar="R", dest="rate", help=f"at its peak ({Recipe.rate})")


def rivals(text: str) -> tuple[str, ...]:
    """Comma-separated names of rival explanations, each once."""
    return tuple(dict.fromkeys(one_of("rival explanation", RIVALS)(part.strip()) for part in text.split(",")))


def run(asked: argparse.Namespace) -> int:
    """Scores and verdicts on stdout; the trained arms, the readings and the report in the run folder."""
    from noisescope.diagnose.experiment_lines import experiment_lines
    from noisescope.runs.experiment import run_experiment

    wanted = _wanted(asked)
    folder = asked.out or Path("runs") / "-".join(["experiment", asked.name, *(["quick"] if asked.quick else [])])
    found = run_experiment(wanted, folder, asked=asked.command_line, stream=sys.stderr)
    show(experiment_lines(found))
    write_page(folder, ("html", "md", "json"))
    remark(f"kept in {folder}")
    return 0


def _wanted(asked: argparse.Namespace) -> ExperimentWanted:
    from noisescope.runs.experiment import ExperimentWanted

    base = {**(_GIVEN if asked.model else {}), **(_QUICK if asked.quick else {})}
    named = {name: getattr(asked, name) for name in ("seeds", "items", "draws", "steps", "rows", "rate")}
    recipe = Recipe(**{**base, **{name: value for name, value in named.items() if value is not None}})
    # Steps that are small beside a weight would be lost in a short format.
    options = freeze({**how_to_load(asked), "dtype": asked.dtype or "float32"}) if asked.model else ()
    return ExperimentWanted(asked.name, recipe, asked.arms, asked.model, asked.data, options, asked.workers)
