"""Show the main job on the embedded model, end to end: a diagnosis, a planted hardware fault found, and a report.

It runs the commands that it names, so that each can be repeated with a model and data of one's own. It opens with no
network once the model is fetched.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

SUMMARY = "show the main job on the embedded model, end to end"
EXAMPLE = "noisescope demo"
FAULT = ("--ground-truth-layer", "10", "--fault-type", "dead_zone", "--fault-operator", "linear")
STEPS = (
    "What does noise cost: which operators, which layers, and which channels stand out?",
    "A fault is planted in the linear layers of layer 10. Is it found without a second machine?",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Only where it is kept."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/demo"),
        metavar="RUN",
        help="run folder; the demo goes on there (default: %(default)s)",
    )


def commands(out: Path) -> tuple[list[str], list[str], list[str]]:
    """The three command lines that the demo consists of."""
    workers = str(min(2, os.cpu_count() or 1))
    data = ["--data", "demo:texts", "--calibration", "demo:calibration"]
    return (
        ["diagnose", "demo", *data, "--samples", "40", "--workers", workers, "--out", str(out)],
        ["locate", "demo", *FAULT, "--samples", "2", "--repeats", "1", "--out", str(out)],
        ["report", str(out), "--format", "html,md,json"],
    )


def run(asked: argparse.Namespace) -> int:
    """Each command with its question, then the report's first screen and where it is."""
    from noisescope.cli.main import read_words

    *measuring, reporting = commands(asked.out)
    for question, words in zip(STEPS, measuring, strict=True):
        _announce(question, words)
        with redirect_stdout(StringIO()):
            one = read_words(words)
            one.run(one)
    _announce("What was found", reporting)
    last = read_words(reporting)
    status: int = last.run(last)
    sys.stdout.write(f"\nOpen {(asked.out / 'report.html').resolve()} in a browser.\n")
    return status


def _announce(question: str, words: list[str]) -> None:
    sys.stdout.write(f"\n{question}\n  $ noisescope {' '.join(words)}\n\n")
    sys.stdout.flush()
