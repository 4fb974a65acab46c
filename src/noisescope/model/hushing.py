"""Lets other libraries work without notes on stderr about what they have not got or mean to change.

Their errors still come through.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed(*loggers: str) -> Iterator[None]:
    """Inside, of these loggers errors alone; afterwards as before."""
    before = {name: logging.getLogger(name).level for name in loggers}
    try:
        for name in before:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
