"""Where the results of the bench of faults are kept, and how its cases are shared among processes. It runs no case."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class TimeIsUpError(Exception):
    """No more cases are to be run in this call."""


class Book:
    """The results so far, one line each. Of `part` (i, n) every n-th case belongs to this process, from the i-th on."""

    def __init__(self, path: Path | None, until: float, part: tuple[int, int] = (0, 1)) -> None:
        self.path, self.until, self.part = path, until, part
        self._asked = itertools.count()
        self.rows: dict[str, Row] = {}
        self.read(path)

    def read(self, path: Path | None) -> None:
        """Take in the results of a file; a line that was cut off is none."""
        for line in path.read_text().splitlines() if path is not None and path.exists() else []:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                self.rows[_key(row["case"])] = row

    def lacks(self, case: Row) -> bool:
        """Whether a case has no result yet and is one of this process."""
        mine = next(self._asked) % self.part[1] == self.part[0]
        return mine and _key(case) not in self.rows

    def add(self, case: Row, result: Row) -> None:
        """Keep a result; the last one when the time is up."""
        row = {"case": case, **result}
        self.rows[_key(case)] = row
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        if time.monotonic() > self.until:
            raise TimeIsUpError

    def gather(self) -> None:
        """Take over what processes left in files of their own."""
        if self.path is None:
            return
        for left in sorted(self.path.parent.glob(f"{self.path.name}.part*")):
            self.read(left)
            left.unlink()
        self.path.write_text("".join(json.dumps(row) + "\n" for row in self.rows.values()))


def _key(case: Row) -> str:
    return json.dumps(case, sort_keys=True)


def shared(book: Book, run: Callable[[Book], None], workers: int) -> None:
    """Run the cases that a book lacks on so many processes; which one runs a case changes nothing in it."""
    if workers == 1:
        fill(book, run)
        return
    if book.path is None:
        raise SystemExit("--workers: give --out as well, where the processes leave their results.")
    book.gather()
    start = multiprocessing.get_context("spawn").Process
    parts = [start(target=_part, args=(book.path, book.until, (i, workers), run)) for i in range(workers)]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    book.gather()
    if any(part.exitcode for part in parts):
        raise SystemExit("a process of the bench failed; what it had is kept: call again to go on.")


def _part(path: Path, until: float, part: tuple[int, int], run: Callable[[Book], None]) -> None:
    book = Book(path, until, part)
    book.path = path.with_name(f"{path.name}.part{part[0]}")
    fill(book, run)


def fill(book: Book, run: Callable[[Book], None]) -> None:
    """Run the cases that a book lacks until they are done or the time is up."""
    try:
        run(book)
    except TimeIsUpError:
        print("stopped early: the tables are of a part of the cases", file=sys.stderr)
