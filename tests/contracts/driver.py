"""A study as a command: what a person runs, kills and runs again. Exit status 3 says interrupted and resumable."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from contracts.benches import Census, NumericBench, trials
from noisescope.core.codec import encode
from noisescope.core.errors import NoisescopeError
from noisescope.sweep.executors.process import Processes
from noisescope.sweep.executors.serial import Serial
from noisescope.sweep.progress import Progress
from noisescope.sweep.store import About, Store
from noisescope.sweep.study import Interrupted, run_study

ABOUT = About("model", "workload")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--log", default="")
    parser.add_argument("--largest-file", type=int)
    args = parser.parse_args()
    if args.largest_file:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (args.largest_file, args.largest_file))
    bench = NumericBench(args.log, args.pause)
    executor = Processes(bench, args.workers, threads=1) if args.workers else Serial(bench, threads=1)
    print("begun", flush=True)
    try:
        with Store(args.folder, ABOUT) as store, executor if args.workers else nullcontext():
            finding = run_study(Census(tuple(trials(args.count))), executor, store, Progress("census", sys.stderr))
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return 3
    except NoisescopeError as problem:
        print(problem, file=sys.stderr)
        return 2
    assert "torch" not in sys.modules
    print(encode(finding))
    return 0


if __name__ == "__main__":
    sys.exit(main())
