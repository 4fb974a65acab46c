"""The history of a gate: one line for each checkpoint in a file that is only ever added to.

A line that was torn by a crash, or damaged, is passed over and counted; it never hides the others.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from noisescope.core.codec import SCHEMA, encode, from_plain, parse
from noisescope.core.errors import BadInputError
from noisescope.diagnose.gated import Visit
from noisescope.sweep.journal import seal, unseal, write_whole


@dataclass(frozen=True)
class History:
    """The visits in the order of their lines, and how many lines could not be read."""

    visits: tuple[Visit, ...] = ()
    damaged: int = 0


def read_history(path: Path) -> History:
    """All visits in a file; none where there is no file yet."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return History()
    except OSError as problem:
        raise BadInputError(f"{path}: {problem.strerror}; --history expects a file of visits.") from None
    found = [_visit(line) for line in data.split(b"\n") if line.strip()]
    return History(tuple(visit for visit in found if visit is not None), sum(visit is None for visit in found))


def _visit(line: bytes) -> Visit | None:
    text = unseal(line)
    if text is None:
        return None
    try:
        plain = parse(text)
        return from_plain(Visit, plain["visit"]) if plain["schema"] == SCHEMA else None
    except (ValueError, KeyError, TypeError):
        return None


def add_visit(path: Path, visit: Visit) -> None:
    """Add a line, unless the last one of this checkpoint says the same; what a torn line left is closed off first."""
    held = [one for one in read_history(path).visits if _who(one) == _who(visit)]
    if held and _answer(held[-1]) == _answer(visit):
        return
    line = seal(f'"schema":{SCHEMA},"visit":{encode(visit)}')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            size = os.fstat(file).st_size
            torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            write_whole(file, b"\n" + line if torn else line)
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as problem:
        raise BadInputError(f"{path}: cannot be written ({problem.strerror}); name another file.") from None


def _who(visit: Visit) -> tuple[str, str, str]:
    return visit.checkpoint, visit.fingerprint, visit.terms


def _answer(visit: Visit) -> tuple[object, ...]:
    return visit.verdict, visit.clean, visit.operators
