"""Capture what a system makes of some inputs, into one file that can be compared on another machine.

The file holds statistics, a shared random projection and a few whole rows of every tensor that passes between
operators, and says by itself what it is of. Its size does not grow with the data.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisescope.cli.config import add_config
from noisescope.cli.lines import remark, show
from noisescope.cli.options import DEMO, add_model, count, how_to_load, one_of, positive, read_data, whole

if TYPE_CHECKING:
    from noisescope.sweep.subject import Subject

SUMMARY = "write what a system makes of some inputs into one portable file"
EXAMPLE = "noisescope capture demo --data demo:texts --samples 2 --dtype bfloat16 --out bf16.capture"
# As in runs/systems.py and transformers; naming them there would load torch.
SYSTEMS, ATTENTIONS = ("eager", "compiled", "int8", "onnx"), ("eager", "sdpa")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The model, how it runs, the texts, and what is kept."""
    add_model(parser)
    add_system(parser)
    add_texts(parser)
    group = parser.add_argument_group("what is kept")
    group.add_argument(
        "--full",
        action="append",
        default=[],
        metavar="PATTERN",
        help="keep every row where the module path (or PATH:ROLE) matches, such as '*.mlp.down_proj'; may be repeated",
    )
    group.add_argument(
        "--max-size", type=positive, default=50.0, metavar="MB", help="limit of the file (default: %(default)g)"
    )
    group.add_argument(
        "--no-dither", action="store_true", help="do not measure the answer to a last bit, for the second of two"
    )
    group.add_argument("--seed", type=whole, default=0, metavar="N", help="of the projection (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write")
    add_config(parser)


def add_system(parser: argparse.ArgumentParser) -> None:
    """How the model runs."""
    group = parser.add_argument_group("system")
    group.add_argument(
        "--system", type=one_of("system", SYSTEMS), default="eager", metavar="S", help=f"{', '.join(SYSTEMS)}"
    )
    group.add_argument("--attention", type=one_of("attention", ATTENTIONS), metavar="A", help=", ".join(ATTENTIONS))


def add_texts(parser: argparse.ArgumentParser) -> None:
    """What it runs on."""
    parser.add_argument("--data", default=f"{DEMO}texts", metavar="F", help="texts to run on (default: %(default)s)")
    parser.add_argument(
        "--samples", "-n", type=count, default=8, metavar="N", help="texts that are used (default: %(default)s)"
    )


def run(asked: argparse.Namespace) -> int:
    """The path of the file on stdout, what it is of on stderr."""
    from noisescope.runs.capturing import Keeping, capture
    from noisescope.runs.systems import as_system

    subject = load_as_asked(asked)
    keeping = Keeping(tuple(asked.full), megabytes=asked.max_size, dither=not asked.no_dither, seed=asked.seed)
    model = as_system(subject.model, asked.system)
    path = capture(model, batches_of(subject, asked), asked.out, keeping=keeping, system=asked.system, name=asked.model)
    show([str(path)])
    remark(f"{path.stat().st_size / 1e6:.1f} MB; compare it with: noisescope compare {path} OTHER")
    return 0


def load_as_asked(asked: argparse.Namespace) -> Subject:
    """The model with the attention that was asked for."""
    from noisescope.sweep.subject import load

    return load(asked.model, **how_to_load(asked), attention=asked.attention)


def batches_of(subject: Subject, asked: argparse.Namespace) -> list[Any]:
    """The texts in tokens, the same on every machine that has this tokenizer."""
    from noisescope.measure.batches import Settings, prepare

    workload = read_data(asked.data, asked.samples)
    samples = prepare(workload, subject.tokenizer, "embedding_shift", Settings.of(subject.model))
    return [batch.inputs for batch in samples.batches()]
