"""Turns figures and foreign text into the words that every rendering shows, so that no two of them can differ.

It knows no format: escaping for HTML or Markdown is the renderers' business.
"""

from __future__ import annotations

import math
from typing import Literal

from noisescope.core import foreign

Format = Literal["plain", "percent", "times", "count", "seconds"]
# What is shown of a name, and of a text in a table; JSON keeps all of it.
NAME_LIMIT, TEXT_LIMIT = 160, 600
_UNIT_LIMIT = 40
NOTHING = "\u2013"
_TIMES = "\u00d7"
# From here on a number is written as a power of ten.
_LONG = 1e9
_MANIFOLD = 1e3


def shorten(text: str, limit: int = NAME_LIMIT) -> str:
    """The text, or its beginning and end where it is longer than the limit."""
    return foreign.shorten(text, limit)


def number(value: float | None, form: Format = "plain", unit: str = "") -> str:
    """A value as people read it; a dash where there is none."""
    if value is None:
        return NOTHING
    if math.isnan(value):
        return "undefined"
    suffix = f" {shorten(unit, _UNIT_LIMIT)}" if unit else ""
    if math.isinf(value):
        return ("∞" if value > 0 else "-∞") + suffix
    # Adding 0 turns -0.0 into 0.0.
    return _written(value + 0.0, form) + suffix


def _written(value: float, form: Format) -> str:
    if form == "percent":
        if value == 0:
            return "0 %"
        # Below 1 % a fixed number of places would round most of the figure away.
        return f"{_fixed(100 * value, 1) if abs(value) >= 0.01 else _plain(100 * value, 2)} %"
    if form == "times":
        # A tenth of a thousandfold says nothing; below 1, one place would round most of the figure away.
        if abs(value) < 1:
            return f"{_plain(value, 2)}{_TIMES}"
        return f"{_fixed(value, 1 if abs(value) < _MANIFOLD else 0)}{_TIMES}"
    if form == "count":
        return f"{value:,.0f}" if abs(value) < _LONG else _plain(value)
    if form == "seconds":
        return f"{_fixed(value, 1)} s" if value < 120 else f"{_fixed(value / 60, 1)} min"
    return _plain(value)


def _fixed(value: float, places: int) -> str:
    """With a fixed number of places, or two digits where these would show nothing but zeros, or a power of ten."""
    if abs(value) >= _LONG:
        return _plain(value)
    if value != 0 and abs(value) < 0.5 * 10**-places:
        return _plain(value, 2)
    return f"{value:,.{places}f}"


def _plain(value: float, digits: int = 3) -> str:
    """Three digits; a power of ten where that is shorter."""
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)))
    if not -4 < power < 6:
        return f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.{max(0, digits - 1 - power)}f}"


def label(value: float, form: Format = "plain") -> str:
    """A round value, such as stands at an axis, without digits that say nothing."""
    shown, suffix = {"percent": (100 * value, " %"), "times": (value, _TIMES), "seconds": (value, " s")}.get(
        form, (value, "")
    )
    power = math.floor(math.log10(abs(shown))) if shown else 0
    if not -4 < power < 6:
        return f"{shown:.3g}".replace("e-0", "e-").replace("e+0", "e") + suffix
    digits = f"{shown:,.{max(0, 3 - power)}f}"
    return (digits.rstrip("0").rstrip(".") if "." in digits else digits) + suffix


def points(value: float) -> str:
    """A part of a score, to a tenth."""
    return label(round(value, 1))


def limits(low: float | None, high: float | None, form: Format = "plain") -> str:
    """An interval in brackets; nothing where there is none."""
    if low is None or high is None:
        return ""
    # The unit stands with the estimate.
    return "[" + ", ".join(number(end, form).removesuffix(" %").removesuffix(_TIMES) for end in (low, high)) + "]"
