"""Compare two captures, or two checkpoints of one model: where they part, whose error it is, if it is rounding.

The first is the reference. Two captures may come from two machines. Of two checkpoints both run here, every operator
of the second also on the inputs of the first, so that its own error is measured and not only estimated.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from noisescope.cli.capture import add_system, add_texts, batches_of
from noisescope.cli.config import add_config
from noisescope.cli.lines import show
from noisescope.cli.options import add_loading, how_to_load, positive, request_of, write_page
from noisescope.core.errors import BadInputError

if TYPE_CHECKING:
    from noisescope.diagnose.comparison import Comparison

SUMMARY = "compare two captures or two checkpoints, place by place"
EXAMPLE = "noisescope compare demo demo --dtype bfloat16 --samples 2 --max-mape 0.2"
LIMIT_BROKEN = 1


def arguments(parser: argparse.ArgumentParser) -> None:
    """The two sides, what is looked at, and how two checkpoints run."""
    parser.add_argument("one", metavar="A", help="the reference: a capture, or a model")
    parser.add_argument("other", metavar="B", help="what is compared with it: the same kind")
    group = parser.add_argument_group("what is asked")
    group.add_argument(
        "--max-mape", type=positive, default=0.05, metavar="X", help="largest mean relative error (default: 0.05)"
    )
    group.add_argument("--layers", type=layers, metavar="N,N,...", help="layers that are looked at (default: all)")
    group.add_argument("--out", type=Path, metavar="RUN", help="run folder to keep the answer in, with its page")
    add_texts(parser)
    add_loading(parser)
    add_system(parser)
    parser.add_argument_group("reference of two checkpoints").add_argument(
        "--reference-dtype", metavar="T", help="dtype of A (default: as its weights are); --dtype and the rest are of B"
    )
    add_config(parser)


def layers(text: str) -> tuple[int, ...]:
    """Comma-separated layers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected layers such as 9,10.") from None


def run(asked: argparse.Namespace) -> int:
    """The verdict, who is at fault, and the divergence by layer on stdout; 1 if it fails."""
    from noisescope.diagnose.comparison_text import comparison_lines

    found = _compared(asked)
    show(comparison_lines(found))
    if asked.out is not None:
        _keep(found, asked)
        write_page(asked.out)
    return LIMIT_BROKEN if found.verdict == "fail" else 0


def _compared(asked: argparse.Namespace) -> Comparison:
    from noisescope.measure.capture_file import is_capture

    kinds = [is_capture(asked.one), is_capture(asked.other)]
    if all(kinds) or any(Path(path).suffix == ".capture" for path in (asked.one, asked.other)):
        from noisescope.runs.comparing import compare

        return compare(asked.one, asked.other, max_mape=asked.max_mape, layers=asked.layers)
    if any(kinds):
        model = asked.other if kinds[0] else asked.one
        raise BadInputError(
            f"{model}: no capture, and the other one is; capture it with `noisescope capture {model} --out FILE` on "
            "the same --data and --samples, or name two models."
        )
    return _checkpoints(asked)


def _checkpoints(asked: argparse.Namespace) -> Comparison:
    from noisescope.runs.comparing import compare_models
    from noisescope.runs.systems import as_system
    from noisescope.sweep.subject import load

    one = load(asked.one, dtype=asked.reference_dtype, trust_remote_code=asked.trust_remote_code)
    other = load(asked.other, **how_to_load(asked), attention=asked.attention)
    return compare_models(
        one.model,
        as_system(other.model, asked.system),
        batches_of(one, asked),
        max_mape=asked.max_mape,
        layers=asked.layers,
        names=(asked.one, asked.other),
    )


def _keep(found: Comparison, asked: argparse.Namespace) -> None:
    from noisescope.runs.kept_keys import COMPARISON
    from noisescope.sweep.store import ABOUT, About, Store

    new = not (asked.out / ABOUT).exists()
    about = About(found.reference.model, asked.data, device=found.reference.device, asked=asked.command_line)
    with Store(asked.out, about if new else None) as store:
        asked.model = asked.one
        store.save_finding(COMPARISON, found, request_of(asked))
