"""Environments of other people's tools: each its own, on top of ours, so that all of them run the same torch.

Usage in a benchmark: `run("mrfi", "injection_rivals.py", "--rounds", "9")`. What cannot be installed is said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HOME = Path(os.environ.get("NOISESCOPE_RIVALS", HERE.parent / "build" / "rivals"))
# What pip is asked for, one call after the other. Without what they ask for beside torch, unless it is needed here:
# torchvision would bring another torch.
WHEELS = {
    "pytorchfi": ("--no-deps pytorchfi==0.6.0",),
    "mrfi": ("--no-deps mrfi==2.1.0",),
    "modelopt": ("nvidia-modelopt==0.47.0 pulp omegaconf",),
    "aimet": (
        "--no-deps aimet-torch==2.42.0",
        "bokeh==3.6.3 cvxpy holoviews hvplot matplotlib osqp pandas pybind11 scikit-learn tensorboard",
    ),
}


class NotHereError(Exception):
    """A tool could not be installed or run here."""


def environment(name: str) -> Path:
    """The Python of a tool's environment, made the first time."""
    folder = HOME / name
    python = folder / "bin" / "python"
    wanted = "\n".join([sysconfig.get_path("purelib"), *WHEELS[name]])
    ready = folder / "ready"
    if not ready.exists() or ready.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        own = Path(_asked(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        (own / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
        for wheels in WHEELS[name]:
            _asked(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wheels.split())
        ready.write_text(wanted)
    return python


def run(name: str, script: str, *options: str) -> Any:
    """What a script of this folder says in the tool's environment, as JSON in its last line."""
    print(f"{name}: {script}", file=sys.stderr)
    said = _asked(environment(name), str(HERE / script), name, *options)
    return json.loads(said.strip().splitlines()[-1])


def _asked(*command: str | Path) -> str:
    paths = os.pathsep.join([str(HERE.parent / "src"), str(HERE)])
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths}
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no word"]
        raise NotHereError(" ".join(lines[-1].split())[:200])
    return done.stdout


def loudly(name: str, problem: NotHereError) -> str:
    """The cell of a table for a tool that is not here; said on stderr as well."""
    print(f"SKIPPED {name}: {problem}", file=sys.stderr)
    return f"**skipped**: {problem}".replace("|", "/")
