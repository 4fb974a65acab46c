"""Whole commands in processes of their own that can be killed, without each having to load torch anew.

Run as a script it is a parent that has imported everything, loaded nothing, and forks a child for each line that it
reads. As a module it is who talks to that parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Asked:
    """A command line in a folder, and what befalls it: killed after so many seconds, or at a step that writes.

    `at` counts the calls that change files; an even one is killed in the midst of it or before, an odd one behind it.
    """

    folder: str
    words: Sequence[str]
    after: float | None = None
    at: int | None = None
    file_limit: int | None = None


@dataclass(frozen=True)
class Told:
    """How it ended. `megabytes` is the most memory that it took, `steps` how often it changed files."""

    status: int
    out: str
    err: str
    seconds: float
    megabytes: float
    steps: int

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL


class Children:
    """Commands in children of one parent, which may be started inside another command, such as unshare."""

    def __init__(self, within: Sequence[str] = (), *, can_mount: bool = False) -> None:
        self.can_mount = can_mount
        own = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
        self._parent = subprocess.Popen(
            [*within, sys.executable, __file__],
            env={**own, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._parent.stdin.close()
        self._parent.wait(timeout=30)
        self._parent.stdout.close()

    def run(self, asked: Asked) -> Told:
        return Told(**self._answer({"ask": asdict(asked)}))

    def shell(self, script: str) -> None:
        """Something that has to happen where the commands run, such as mounting."""
        assert self._answer({"shell": script}) == 0, script

    def _answer(self, request: dict[str, Any]) -> Any:
        self._parent.stdin.write(json.dumps(request) + "\n")
        self._parent.stdin.flush()
        return json.loads(self._parent.stdout.readline())


def _serve() -> None:
    import torch
    import transformers
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    import noisescope.cli.main
    import noisescope.measure.harness
    import noisescope.runs.ordering
    import noisescope.runs.reporting

    torch.set_num_threads(1)
    loaded = (transformers, LlamaForCausalLM, PreTrainedTokenizerFast, noisescope)
    assert all(loaded)
    for line in sys.stdin:
        request = json.loads(line)
        if "shell" in request:
            done = subprocess.run(["sh", "-ec", request["shell"]], check=False, stdout=subprocess.DEVNULL)
            answer: Any = done.returncode
        else:
            answer = asdict(_forked(Asked(**request["ask"])))
        print(json.dumps(answer), flush=True)
    # Taking torch down in good order takes seconds.
    os._exit(0)


def _forked(asked: Asked) -> Told:
    with contextlib.ExitStack() as stack:
        import tempfile

        out, err, steps = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            _be_the_child(asked, out.fileno(), err.fileno(), steps.fileno())
        if asked.after is not None:
            time.sleep(asked.after)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        seconds = time.monotonic() - start
        texts = [file.seek(0) or file.read() for file in (out, err)]
        size = os.fstat(steps.fileno()).st_size
        return Told(os.waitstatus_to_exitcode(status), *texts, seconds, usage.ru_maxrss / 1024, size)


def _be_the_child(asked: Asked, out: int, err: int, steps: int) -> None:
    from noisescope.cli.main import main

    try:
        os.chdir(asked.folder)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if asked.file_limit:
            # The files of the parent that tell how it went are far smaller.
            resource.setrlimit(resource.RLIMIT_FSIZE, (asked.file_limit, asked.file_limit))
        _watch(steps, asked.at)
        status = main(list(asked.words))
        sys.stdout.flush()
    except BaseException as problem:  # noqa: BLE001 - nothing may come back into the parent's loop
        os.write(2, f"Traceback: {problem!r}\n".encode())
        status = 99
    os._exit(status)


def _watch(steps: int, fatal: int | None) -> None:
    """Count what changes files, and be killed at one of these calls."""
    seen = [0]

    def around(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            number = seen[0] = seen[0] + 1
            real_write(steps, b".")
            if number == fatal and number % 2 == 0:
                if real is real_write:
                    real(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            found = real(*args, **kwargs)
            if number == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return call

    real_write = os.write
    for name in ("write", "fsync", "replace", "rename", "link", "unlink", "mkdir"):
        setattr(os, name, around(getattr(os, name)))


if __name__ == "__main__":
    _serve()
