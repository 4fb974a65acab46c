"""The colours of figures and pages, light and dark, chosen so that no meaning rests on hue alone.

Levels also differ in shape and in words; heat runs in lightness; lines also differ in dash and in the shape of points.
"""

from __future__ import annotations

from noisescope.report.markup import Attribute

HEAT_STEPS = 9
_HEAT_LIGHT = ("#fdf3d0", "#fbe3a0", "#f9cd6b", "#f5b041", "#e98e26", "#d56a14", "#b34a0c", "#873209", "#571f08")
_HEAT_DARK = ("#2b2119", "#47301b", "#65401b", "#86511b", "#a8651c", "#c97e25", "#e39c3d", "#f3bd66", "#fde3a7")
_LINES_LIGHT = ("#0b6fa4", "#c2410c", "#567a17", "#8e4a9e", "#3f4752", "#9a6b00")
_LINES_DARK = ("#5fb8e8", "#ff9a5c", "#a8cf5a", "#d79ae6", "#c3cad3", "#e5c158")
LINES = len(_LINES_LIGHT)
DASHES = (None, "7 3", "2 3", "9 3 2 3", "4 4", "12 4")


def _numbered(name: str, colours: tuple[str, ...]) -> dict[str, str]:
    return {f"{name}{index}": colour for index, colour in enumerate(colours)}


LIGHT: dict[str, str] = {
    "paper": "#ffffff",
    "panel": "#f6f7f9",
    "ink": "#1a1f26",
    "muted": "#56606c",
    "rule": "#dde1e6",
    "accent": "#0b5c87",
    "critical": "#8f1238",
    "high": "#c14a09",
    "moderate": "#a67300",
    "low": "#1c7688",
    "undecided": "#646d7a",
    "none": "#7b8491",
    **_numbered("heat", _HEAT_LIGHT),
    **_numbered("line", _LINES_LIGHT),
}
DARK: dict[str, str] = {
    "paper": "#12161b",
    "panel": "#1a2027",
    "ink": "#e9edf1",
    "muted": "#a3adb9",
    "rule": "#303842",
    "accent": "#79c3ee",
    "critical": "#ff6384",
    "high": "#ff9c4a",
    "moderate": "#e6c04c",
    "low": "#4db8cb",
    "undecided": "#a0a9b5",
    "none": "#8a94a1",
    **_numbered("heat", _HEAT_DARK),
    **_numbered("line", _LINES_DARK),
}


def filled(name: str, more: str = "") -> dict[str, Attribute]:
    """Attributes that fill with a colour: by itself in a file of its own, by theme in a page."""
    return {"class_": f"f-{name} {more}".strip(), "fill": LIGHT[name]}


def drawn(name: str, width: float = 1.0, more: str = "") -> dict[str, Attribute]:
    """Attributes that draw a line in a colour, without filling."""
    return {"class_": f"s-{name} {more}".strip(), "stroke": LIGHT[name], "stroke_width": width, "fill": "none"}


def stylesheet() -> str:
    """The colours as variables of a page, by theme, and the classes that use them."""
    uses = "".join(f".f-{name}{{fill:var(--{name})}}.s-{name}{{stroke:var(--{name})}}" for name in LIGHT)
    return (
        f":root{{color-scheme:light dark;{_variables(LIGHT)}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}\n"
        f"@media print{{:root{{color-scheme:light;{_variables(LIGHT)}}}}}\n{uses}\n"
    )


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())
