"""Measures what `noisescope --help` costs beside a Python that does nothing.

Usage: python bench/help.py [--rounds N] [--out FILE]
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from pathlib import Path

from measuring import present, said

NOISESCOPE = str(Path(sys.executable).with_name("noisescope"))
COMMANDS = {
    "python that does nothing": [sys.executable, "-c", "pass"],
    "`noisescope --help`": [NOISESCOPE, "--help"],
    "`noisescope diagnose --help`": [NOISESCOPE, "diagnose", "--help"],
}


def once(command: list[str]) -> float:
    """CPU seconds of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def lines_of(rounds: int) -> list[str]:
    """A row for each command, all of them in turns."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            taken[name].append(once(command))
    lines = ["| command | CPU time | quartiles | rounds |", "|---|---|---|---|"]
    for name, seconds in taken.items():
        low, middle, high = statistics.quantiles(seconds, n=4)
        lines.append(f"| {name} | {said(middle)} | {said(low)} - {said(high)} | {len(seconds)} |")
    return lines


if __name__ == "__main__":
    present(__doc__, 21, lines_of)
