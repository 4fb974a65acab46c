"""How a count is said in a sentence."""

from __future__ import annotations


def many(count: int, what: str) -> str:
    """A count with its noun."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
