"""Concludes whether suspects explain what is wrong, from one more run in which the host computed their outputs.

Without a healthy machine its end result is not known. What is known is whether any check still fails once the suspects
are replaced, and how far that moves the end result, beside how far replacing operators that hold moves it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from noisescope.core.words import many
from noisescope.diagnose.localization import Confirmation, Outcome, Suspect

# A move of less than this many times that of healthy operators is rounding that is carried on.
_CLEARLY = 3.0
_NAMED = 3


@dataclass(frozen=True)
class Replaced:
    """How far the end result moved, how far it moved beside, where `healthy` operators were replaced as well.

    `before` and `after` are its distances to the healthy result, where that is known.
    """

    moved: float
    healthy: int
    beside: float
    before: float | None = None
    after: float | None = None


def conclude_confirmation(suspects: Sequence[Suspect], left: Sequence[Suspect], seen: Replaced) -> Confirmation:
    """What replacing the suspects showed; `left` are those whom the checks of that run accuse."""
    places = tuple(f"{one.operator} at {one.path}" for one in left)
    reaches = seen.moved > _CLEARLY * seen.beside
    words = (
        f"With what the host computes in the place of {many(len(suspects), 'suspect')}, "
        f"{_what_is_left(places)}. The end result moves by {_share(seen.moved)}; replacing "
        f"{many(seen.healthy, 'operator')} that {'holds' if seen.healthy == 1 else 'hold'} moves it by "
        f"{_share(seen.beside)}."
    )
    outcome = _outcome(bool(places), reaches)
    recovered = _recovered(seen)
    if recovered is not None:
        words += f" {max(recovered, 0.0):.1%} of its distance to the healthy result is gone."
    return Confirmation(
        outcome,
        f"{_SAID[outcome]} {words}",
        len(suspects),
        places,
        seen.moved,
        seen.healthy,
        seen.beside,
        recovered,
    )


def cannot_confirm(suspects: Sequence[Suspect], why: str) -> Confirmation:
    """Where the host could not compute the output of a suspect."""
    return Confirmation("impossible", f"{_SAID['impossible']} {why}.", len(suspects))


_SAID: dict[Outcome, str] = {
    "confirmed": "Confirmed.",
    "no effect": "The suspects are wrong, but the end result hardly depends on it.",
    "not confirmed": "Not confirmed: the suspects are not all that is wrong.",
    "impossible": "The suspects could not be replaced, so nothing was confirmed:",
}


def _outcome(is_left: bool, reaches: bool) -> Outcome:
    if is_left:
        return "not confirmed"
    return "confirmed" if reaches else "no effect"


def _what_is_left(places: Sequence[str]) -> str:
    if not places:
        return "no check fails any more"
    more = len(places) - _NAMED
    return f"checks still fail at {', '.join(places[:_NAMED])}{f' and {more} more' if more > 0 else ''}"


def _recovered(seen: Replaced) -> float | None:
    if seen.before is None or seen.after is None or not seen.before:
        return None
    return 1.0 if math.isinf(seen.before) and math.isfinite(seen.after) else 1 - seen.after / seen.before


def _share(move: float) -> str:
    return f"{move:.3g} of its size" if math.isfinite(move) else "all of it, for it was not finite"
