"""Take outlier channels out of activations and put them into weights (SmoothQuant), and save the model.

The answers stay the same: factors are folded only where no bit changes by them. They are chosen by what int8 weights
and activations cost; a layer that does not profit is left alone. The cost before and after is measured on samples by
which nothing was chosen. DIR is an ordinary checkpoint, and a run folder with a report.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from noisescope.cli.lines import show
from noisescope.cli.options import (
    DEMO,
    add_model,
    count,
    how_to_load,
    one_of,
    read_data,
    request_of,
)

SUMMARY = "move outlier channels into weights, for int8, and save the model"
EXAMPLE = "noisescope smooth demo --alpha 0.5 --samples 16 --out runs/smoothed"
ACTIVATIONS = ("tensor", "token")
SEARCH = "search"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The model, how far it is smoothed, and the data."""
    add_model(parser)
    group = parser.add_argument_group("what is asked")
    group.add_argument(
        "--alpha",
        type=share,
        metavar="A",
        help="how much of the size of channels goes into weights: a share from 0 to 1, or search, which finds the best "
        "one of 0.1 to 0.9 for each layer (default: search)",
    )
    group.add_argument(
        "--activations",
        type=one_of("scale of activations", ACTIVATIONS),
        default="tensor",
        metavar="S",
        help="what shares a scale in int8: tensor, fixed beforehand, or each token (default: %(default)s)",
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data", default=f"{DEMO}texts", metavar="F", help="as for diagnose; only texts count (default: %(default)s)"
    )
    data.add_argument(
        "--samples",
        "-n",
        type=count,
        default=64,
        metavar="N",
        help="items: half for factors, a quarter to choose by, a quarter to judge on (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")


def share(text: str) -> float | None:
    """A share from 0 to 1; None for the word that has it searched."""
    if text == SEARCH:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share from 0 to 1 such as 0.5, or {SEARCH}.")
    return value


def run(asked: argparse.Namespace) -> int:
    """What was folded and what int8 costs before and after on stdout; the model and the report in the folder."""
    from noisescope.model.load import load
    from noisescope.prescribe.smoothing_lines import smoothing_lines
    from noisescope.runs.smoothed_folder import about, finished, is_free, write
    from noisescope.runs.smoothing import SmoothingWanted, samples_of, smooth

    wanted = SmoothingWanted(asked.alpha, asked.activations)
    is_free(asked.out)
    loaded = load(asked.model, **how_to_load(asked))
    samples = samples_of(loaded.model, loaded.tokenizer, read_data(asked.data, asked.samples))
    here = about(loaded, samples, wanted, asked.command_line)
    found = finished(asked.out, here)
    if found is None:
        found = smooth(loaded.model, samples, wanted, sys.stderr)
        write(loaded, found, asked.out, here, request_of(asked))
    show([*smoothing_lines(found), f"report: {asked.out / 'report.html'}", f"model: {asked.out}"])
    return 0
