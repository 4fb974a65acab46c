"""The environment variables that noisescope reads, beside those of the switchboard, and what they do.

It reads none of them: each is asked for where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """What holds while a variable is not set, and what it does, both as Markdown."""

    left_out: str
    meaning: str


VARIABLES: Mapping[str, Variable] = {
    "NOISESCOPE_CACHE": Variable(
        "`noisescope` in `XDG_CACHE_HOME`, or in `~/.cache`",
        "folder under which the embedded models and the compiled kernel are kept; 1 GB is enough",
    ),
    "NOISESCOPE_NATIVE": Variable(
        "use the kernel if it can be built", "`0` draws noise by torch operations alone, without the C kernel"
    ),
    "NOISESCOPE_TRACEBACK": Variable("one line", "`1` shows where a failure of noisescope itself happened"),
    "CC": Variable("`cc`, `gcc` or `clang`", "the C compiler for the kernel"),
    "CHROMIUM": Variable(
        "the first of `chromium`, `google-chrome` and their like on the path", "the browser that makes PDF and PNG"
    ),
    "TERM": Variable("", "where it is `dumb`, progress comes as plain lines"),
    "RAY_ADDRESS": Variable(
        "a Ray on this machine, else a new one",
        "Ray's own variable: the cluster that `--ray` without an address works on",
    ),
}
