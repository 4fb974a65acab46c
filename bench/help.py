"""How long `noisescope --help` takes: wall clock and CPU time, beside a Python that does nothing."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROUNDS = 21
COMMANDS = {
    "python that does nothing": [sys.executable, "-c", "pass"],
    "noisescope --help": [str(Path(sys.executable).with_name("noisescope")), "--help"],
    "noisescope diagnose --help": [str(Path(sys.executable).with_name("noisescope")), "diagnose", "--help"],
}


def once(command: list[str]) -> tuple[float, float]:
    """Wall clock and CPU time of one run, in seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """The rounds interleaved, and a line for each command."""
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            seen[name].append(once(command))
    print("| command | wall, least | wall, median | CPU, median |\n|---|---|---|---|")
    for name, times in seen.items():
        walls, work = zip(*times, strict=True)
        print(f"| {name} | {min(walls):.3f} s | {median(walls):.3f} s | {median(work):.3f} s |")


if __name__ == "__main__":
    main()
