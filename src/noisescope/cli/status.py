"""Say how far a run folder is: what it was asked, how many readings it holds, and what failed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from noisescope.cli.lines import show
from noisescope.core.records import Reading

SUMMARY = "say how far a run folder is"
EXAMPLE = "noisescope status runs/first"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Only the folder."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="run folder of an earlier command")


def run(asked: argparse.Namespace) -> int:
    """A few lines on stdout. The folder is only read."""
    from noisescope.sweep.store import Store

    store = Store(asked.run_folder)
    lines = [f"asked     {store.about.asked or 'not noted'}", f"device    {store.about.device}"]
    lines += summary(list(store.readings().values()))
    concluded = sorted(path.name for path in asked.run_folder.glob("finding-*.json"))
    lines.append(f"findings  {', '.join(concluded) or 'none yet: repeat the command to go on'}")
    show(lines)
    return 0


def summary(readings: list[Reading]) -> Iterator[str]:
    """How many readings there are, and the first failure."""
    failed = [reading for reading in readings if reading.error is not None]
    yield f"readings  {len(readings) - len(failed)}"
    yield f"failed    {len(failed)}"
    if failed:
        yield f"first     {failed[0].error}"
    if broken := sum(reading.nonfinite for reading in readings):
        yield f"nonfinite {broken} outputs"
