"""Choose a number format for the weights of every linear layer so that an average number of bits is met at least harm.

A few backward passes predict what each format costs each group of layers; the choice is solved exactly, scales
and zero points counted; the map is applied for a while and measured beside uniform precision. It is written for
llm-compressor, compressed-tensors, ModelOpt, auto-round and msModelSlim.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from noisescope.cli.config import add_config
from noisescope.cli.lines import remark, show
from noisescope.cli.options import add_loading, asked_in, count, how_to_load, one_of, positive, read_data, write_page

if TYPE_CHECKING:
    from noisescope.core.precision import WeightFormat

SUMMARY = "choose the bits of every linear layer within an average"
EXAMPLE = "noisescope bits runs/first --target-avg-bits 6"
RULES = ("exact", "thresholds")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run folder, the target, the formats and the data."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="run folder of an earlier command")
    group = parser.add_argument_group("what is asked")
    group.add_argument(
        "--target-avg-bits",
        type=positive,
        default=6.0,
        metavar="B",
        help="bits per weight with scales and zero points, over the linear layers of the stack (default: %(default)g)",
    )
    group.add_argument(
        "--formats",
        type=formats,
        default="int4,int8,bf16",
        metavar="F,F,...",
        help="bf16, fp8, int8, int6, int5, int4, uint4, mxfp4; int4:128 for longer blocks (default: %(default)s)",
    )
    group.add_argument(
        "--rule",
        type=one_of("rule", RULES),
        default="exact",
        metavar="R",
        help="exact, or thresholds: 16, 8 or 4 bits by the loss of each layer in the diagnosis (default: exact)",
    )
    group.add_argument(
        "--split-groups", action="store_true", help="let q, k and v, or gate and up, have different formats"
    )
    group.add_argument("--no-measure", action="store_true", help="do not apply the map and measure what it costs")
    data = parser.add_argument_group("data")
    data.add_argument("--data", metavar="F", help="as for diagnose (default: the data of the run)")
    data.add_argument(
        "--samples", "-n", type=count, default=100, metavar="N", help="items, half to predict from (default: 100)"
    )
    parser.add_argument("--model", metavar="MODEL", help="the model (default: the one of the run)")
    add_loading(parser)
    add_config(parser)


def formats(text: str) -> tuple[WeightFormat, ...]:
    """Comma-separated formats of weights."""
    from noisescope.core.errors import BadInputError
    from noisescope.core.precision import WeightFormat

    try:
        return tuple(WeightFormat.of(part) for part in text.split(","))
    except BadInputError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def run(asked: argparse.Namespace) -> int:
    """The map in short on stdout; the map itself and the files for other tools are in the run folder."""
    from noisescope.prescribe.summary import precision_lines
    from noisescope.runs.kept_keys import PRECISION
    from noisescope.runs.precision import BitsWanted, bits_desk, precision_map, write_recipes
    from noisescope.sweep.store import Store

    wanted = BitsWanted(
        target=asked.target_avg_bits,
        formats=asked.formats,
        rule=asked.rule,
        apart=asked.split_groups,
        measure=not asked.no_measure,
    )
    with Store(asked.run_folder) as store:
        request = asked_in(store, asked)
        model, samples = bits_desk(store, request.model, how_to_load(asked), read_data(request.workload, asked.samples))
        found = precision_map(model, samples, wanted, store, sys.stderr)
        store.save_finding(PRECISION, found, request)
    paths, unsaid = write_recipes(found, asked.run_folder)
    show([*precision_lines(found), *map(str, paths)])
    remark(*unsaid)
    write_page(asked.run_folder)
    return 0
