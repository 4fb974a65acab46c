"""What a command says, line by line: results to stdout, remarks to stderr, nothing in it that steers a terminal.

It chooses no words.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from noisescope.core.errors import BadInputError
from noisescope.core.foreign import plain


def show(lines: Iterable[str]) -> None:
    """Results. A line stays one line, whatever was quoted in it."""
    try:
        sys.stdout.write(_text(lines))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise BadInputError(f"the output could not be written ({problem.strerror}); send it elsewhere.") from problem


def remark(*lines: str) -> None:
    """What else there is to say."""
    sys.stderr.write(_text(lines))


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{plain(line)}\n" for line in lines)
