"""Makes text that came from models, data and files harmless to look at: it can neither steer a terminal nor hide.

Escaping for HTML or Markdown is the renderers' business.
"""

from __future__ import annotations

import re
import unicodedata

_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|\x1b[@-_]"
)
_BREAKS = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
# Controls, and what has no shape of its own: marks that turn the direction of writing round, tags, soft hyphens.
_UNSEEN = ("Cc", "Cf")
# These two shape letters of several scripts.
_JOINERS = "\u200c\u200d"
# Halves of surrogate pairs, and what XML has no place for.
_UNWRITABLE = re.compile("[\ud800-\udfff\ufffe\uffff]")


def plain(text: str) -> str:
    """One line of text, as wide as it was, without terminal sequences, controls, or what UTF-8 cannot hold."""
    if text.isprintable():
        return text
    visible = _BREAKS.sub(" ", _SEQUENCES.sub("", text))
    seen = "".join(c for c in visible if c in _JOINERS or unicodedata.category(c) not in _UNSEEN)
    return _UNWRITABLE.sub("\ufffd", seen)


def clean(text: str) -> str:
    """The same with single spaces."""
    return " ".join(plain(text).split())


def shorten(text: str, limit: int) -> str:
    """The text, or its beginning and end where it is longer than the limit."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 3
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"
