"""Find the fragile operators, layers and channels of a model by putting noise there and measuring what it costs.

By default one backward pass predicts the harm of noise everywhere, and the worst places and a random control group
are then measured. Every reading is kept in the run folder; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import sys

from noisescope.cli.lines import remark, show
from noisescope.cli.options import (
    add_data,
    add_model,
    add_run,
    count,
    folder_of,
    one_of,
    order_of,
    positive,
    request_of,
    write_page,
)

SUMMARY = "find the fragile operators, layers and channels of a model"
EXAMPLE = "noisescope diagnose demo --samples 50 --out runs/first"
MODES = ("full", "operator", "layer", "channel")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the data, the noise, the levels and the run."""
    add_model(parser)
    add_data(parser, samples=100)
    parser.add_argument("--calibration", metavar="F", help="texts for the channel level, as --data (demo:calibration)")
    group = parser.add_argument_group("what is asked")
    group.add_argument(
        "--mode", type=one_of("mode", MODES), default="full", metavar="M", help=f"{', '.join(MODES)} (default: full)"
    )
    group.add_argument(
        "--noise-scale",
        type=positive,
        default=0.05,
        metavar="S",
        help="relative strength of the noise (default: %(default)s)",
    )
    group.add_argument(
        "--window-size", type=count, default=3, metavar="N", help="layers in a window (default: %(default)s)"
    )
    group.add_argument(
        "--step-size",
        type=count,
        default=1,
        metavar="N",
        help="layers from one window to the next (default: %(default)s)",
    )
    group.add_argument(
        "--outlier-threshold",
        type=positive,
        default=10.0,
        metavar="R",
        help="how many times the median channel an outlier is (default: %(default)s)",
    )
    group.add_argument("--exhaustive", action="store_true", help="measure every window, whatever it costs")
    add_run(parser)


def run(asked: argparse.Namespace) -> int:
    """The dashboard on stdout; everything else is in the run folder."""
    from noisescope.diagnose.dashboard import dashboard
    from noisescope.runs.diagnosing import Wanted, examine
    from noisescope.runs.kept_keys import DIAGNOSIS
    from noisescope.runs.ordering import opened

    wanted = Wanted(
        mode=asked.mode,
        scale=asked.noise_scale,
        window_size=asked.window_size,
        step_size=asked.step_size,
        outlier_threshold=asked.outlier_threshold,
        seeds=asked.seeds,
        seed=asked.seed,
        exhaustive=asked.exhaustive,
    )
    with opened(order_of(asked), sys.stderr) as desk:
        diagnosis = examine(desk, wanted)
        desk.store.save_finding(DIAGNOSIS, diagnosis, request_of(asked))
    show(dashboard(diagnosis))
    write_page(folder_of(asked))
    remark(f"kept in {folder_of(asked)}")
    # Without a baseline and a control that equals it nothing was judged.
    return 0 if diagnosis.control.holds or asked.mode == "channel" else 2
