"""Views whose every text is hostile, or whose every number is odd, for the tests of the renderers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

ATTACKS = (
    '<script>alert("1")</script>',
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style></script></svg><svg onload=alert(1)>",
    "| a | b |\n| --- |",
    "\x1b[31mred\x1b[0m\x07",
    "`code` **bold** [link](javascript:alert(1)) ![x](http://h/x.png)",
    "{{ 7 * 7 }} ${7 * 7} <%= 7 %>",
    "&lt;b&gt; &#x3c; &amp;amp;",
    "\u202egnp.exe \u2066hidden\u2069",
    "# heading",
    "- item",
    "1. item",
    "> quote",
    "```",
    "https://example.org/x www.example.org me@example.org",
    "$x_1$ ~~no~~ ---",
    "x" * 10_000,
    "long words " * 500,
    "]]> <!-- -->",
    "half \ud800 pair",
)
# Words of closed lists, and keys by which parts of a view are found.
_KEPT = {"key", "kind", "level", "form", "x_form", "spacing", "group", "groups"}


def poisoned(view: Any) -> Any:
    """The view with an attack behind every text."""
    return _poisoned(view, itertools.cycle(ATTACKS))


def _poisoned(value: Any, attacks: Iterator[str]) -> Any:
    if isinstance(value, str):
        return next(attacks) if len(value) > 60 else f"{next(attacks)} {value}"
    if isinstance(value, tuple):
        return tuple(_poisoned(item, attacks) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        return type(value)(**{n: v if n in _KEPT else _poisoned(v, attacks) for n, v in fields.items()})
    return value


NUMBERS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-300, 1e300, -5.0)


def odd(view: Any) -> Any:
    """The view with odd numbers in all figures."""
    return _odd(view, itertools.cycle(NUMBERS))


def _odd(value: Any, numbers: Iterator[float]) -> Any:
    if isinstance(value, tuple):
        return tuple(_odd(item, numbers) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        if set(fields) == {"value", "low", "high", "samples", "confidence"}:
            return type(value)(next(numbers), next(numbers), next(numbers), 0)
        return type(value)(**{name: _odd(inner, numbers) for name, inner in fields.items()})
    return value
