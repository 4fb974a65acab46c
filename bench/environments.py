"""Environments of their own for tools that want other versions of what noisescope uses. It runs no tool."""

from __future__ import annotations

import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

CONSTRAINTS = str(Path(__file__).parents[1] / "constraints.txt")


def python_with(home: Path, module: str, packages: Sequence[str]) -> Path | None:
    """Python of an environment that has a module, made if need be; None where the packages cannot be installed."""
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
    if not subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode:
        return python
    pip = [python, "-m", "pip", "install", "--quiet"]
    # torch first and alone: what comes after is then satisfied by it.
    for asked in (("--constraint", CONSTRAINTS, "torch"), packages):
        if subprocess.run([*pip, *asked], check=False).returncode:
            return None
    return python
