"""The first screen of a report as plain text for a terminal: verdict, risk, what to do.

Colours are for whoever prints it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from noisescope.report.view import Action, View
from noisescope.report.wording import points, shorten

_FIRST = 3


def to_text(view: View, width: int = 88) -> str:
    """Verdict, risk, and the three things to do, in lines of a given width."""
    lines = [shorten(view.title, width), "", *_wrapped("Verdict  ", f"{view.severity.word}. {view.verdict}", width)]
    for one in view.besides:
        lines += _wrapped("         ", f"{one.name}: {one.severity.word}. {one.verdict}", width)
    if view.risk is not None:
        score = "" if view.risk.score is None else f", score {points(view.risk.score)}"
        shares = "; ".join(f"{share.name} {points(share.points)}" for share in view.risk.shares)
        lines += _wrapped("Risk     ", f"{view.risk.severity.word}{score}" + (f" ({shares})" if shares else ""), width)
    for index, action in enumerate(view.actions[:_FIRST], 1):
        lines += ["", *_action(index, action, width)]
    more = len(view.actions) - _FIRST
    return "\n".join([*lines, *(["", f"{more} more in the report"] if more > 0 else [])]) + "\n"


def _action(index: int, action: Action, width: int) -> Iterator[str]:
    yield from _wrapped(f"{index}. ", action.action, width)
    yield from _wrapped("   ", f"{action.severity.word}, {shorten(action.component, 60)}: {action.issue}", width)


def _wrapped(first: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * len(first))
