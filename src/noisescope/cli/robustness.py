"""Measure how a model holds out against more and more noise, and at which scale it breaks.

Noise is put into every operator at once, level by level, and what is kept of the score is measured on the same items.
"""

from __future__ import annotations

import argparse
import sys

from noisescope.cli.lines import remark, show
from noisescope.cli.options import add_data, add_model, add_run, folder_of, levels, order_of, request_of, write_page

SUMMARY = "measure what a model keeps at several levels of noise"
EXAMPLE = "noisescope robustness demo --noise-levels 0,0.05 -n 50 --no-threshold --out runs/robustness"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the data, the levels and the run."""
    add_model(parser)
    add_data(parser, samples=200)
    group = parser.add_argument_group("what is asked")
    group.add_argument(
        "--noise-levels",
        type=levels,
        default=(0.0, 0.05, 0.10),
        metavar="S,S,...",
        help="strengths, rising (default: 0,0.05,0.10)",
    )
    group.add_argument("--no-threshold", action="store_true", help="do not look for the scale that costs 10 %%")
    add_run(parser)


def run(asked: argparse.Namespace) -> int:
    """A table of the levels on stdout; readings and the finding are in the run folder."""
    from noisescope.diagnose.dashboard import robustness_lines
    from noisescope.runs.diagnosing import Wanted, withstand
    from noisescope.runs.kept_keys import ROBUSTNESS
    from noisescope.runs.ordering import opened

    wanted = Wanted(seeds=asked.seeds, seed=asked.seed)
    with opened(order_of(asked), sys.stderr) as desk:
        found = withstand(desk, wanted, asked.noise_levels, seeks_threshold=not asked.no_threshold)
        desk.store.save_finding(ROBUSTNESS, found, request_of(asked))
    show(robustness_lines(found))
    write_page(folder_of(asked))
    remark(f"kept in {folder_of(asked)}")
    return 0
