"""Tells a person how far a long run is: one line rewritten in place, or plain lines at growing intervals.

Nothing is said of what takes less than two seconds. A stream that cannot be written is given up, never an error.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, TextIO, TypeVar

PATIENCE = 2.0
_REWRITE = 0.5
_LONGEST = 300.0
T = TypeVar("T")


class Progress:
    """Counts what is done of what is expected while a `with` block runs. Without a stream it is silent."""

    def __init__(self, label: str, stream: TextIO | None, unit: str = "trials") -> None:
        self._label, self._unit = label, unit
        self._stream = stream
        self._in_place = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._done = self._total = self._width = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="progress", daemon=True)
        self._start = time.monotonic()

    def expect(self, more: int) -> None:
        """So many more are to be done."""
        self._total += more

    def advance(self, by: int = 1) -> None:
        """So many more are done."""
        self._done += by

    def over(self, items: Sequence[T]) -> Sequence[T]:
        """The same items, which count as done one by one as somebody goes through them."""
        self.expect(len(items))
        return _Counted(items, self)

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        if self._stream is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is None:
            return
        self._stop.set()
        self._thread.join()
        elapsed = time.monotonic() - self._start
        if elapsed >= PATIENCE:
            self._say(f"{self._label}: {self._done} of {self._total} {self._unit} in {duration(elapsed)}", last=True)

    def _beat(self) -> None:
        # A line is due even when nothing is completed for long: the person sees that it is alive.
        pause = PATIENCE
        while not self._stop.wait(pause):
            elapsed = time.monotonic() - self._start
            self._say(status(self._label, self._unit, (self._done, self._total), elapsed))
            # Doubled pauses put plain lines at 2, 4, 8, 16 ... seconds.
            pause = _REWRITE if self._in_place else min(elapsed, _LONGEST)

    def _say(self, text: str, *, last: bool = False) -> None:
        if self._stream is None:
            return
        if self._in_place:
            room = shutil.get_terminal_size().columns - 1
            shown = text[:room]
            text = f"\r{shown.ljust(min(self._width, room))}"
            self._width = len(shown)
        try:
            self._stream.write(text + ("\n" if last or not self._in_place else ""))
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


class _Counted(list[T]):
    """A list that tells how far somebody has gone through it."""

    def __init__(self, items: Sequence[T], progress: Progress) -> None:
        super().__init__(items)
        self._progress = progress

    def __iter__(self) -> Iterator[T]:
        for item in super().__iter__():
            yield item
            self._progress.advance()


def status(label: str, unit: str, count: tuple[int, int], elapsed: float) -> str:
    """One line on what is done, how fast, and how long it will take."""
    done, total = count
    if done == 0:
        return f"{label}: 0 of {total} {unit}, {duration(elapsed)} so far"
    each = elapsed / done
    rate = f"{1 / each:.1f}/s" if each < 1 else f"{each:.1f} s each"
    return f"{label}: {done} of {total} {unit}, {rate}, {duration(each * (total - done))} left"


def duration(seconds: float) -> str:
    """A duration as a person says it."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
