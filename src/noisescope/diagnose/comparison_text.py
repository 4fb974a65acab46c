"""A comparison as lines of text for the terminal: verdict, suspects, the first divergent place, and the curve.

It draws no conclusion of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from noisescope.diagnose.comparison import Comparison, Row, Side

MOST_SHOWN = 10
_BAR = 30


def comparison_lines(found: Comparison) -> list[str]:
    """What a reader of a terminal needs, most important first."""
    return [
        found.verdict,
        *(f"  {reason}" for reason in _cut(found.reasons)),
        "",
        f"reference  {side_text(found.reference)}",
        f"other      {side_text(found.other)}",
        *_first(found),
        *_parts(found),
        *_curve(found),
        *_rest(found),
    ]


def side_text(side: Side) -> str:
    """One system in a few words."""
    words = (side.name, side.dtype, side.device, side.system, f"model {side.model[:8]}" if side.model else "")
    return ", ".join(word for word in words if word)


def _cut(reasons: list[str]) -> list[str]:
    if len(reasons) <= MOST_SHOWN:
        return reasons
    return [*reasons[: MOST_SHOWN - 1], f"and {len(reasons) - MOST_SHOWN + 1} more"]


def _first(found: Comparison) -> Iterator[str]:
    first = found.first_divergent
    if first is None:
        yield f"every one of {len(found.rows)} places agrees within what rounding does to a healthy system"
        return
    yield f"first divergent place: {first.place}, {first.excess:.3g} times what rounding allows"
    kept = sum(row.verdict == "inherited" for row in found.rows)
    if kept:
        yield f"inherited from there: {kept} places"


def _parts(found: Comparison) -> Iterator[str]:
    """The worst channels and blocks of the worst suspects, next to the figure over all channels."""
    for row in found.suspects[:3]:
        figures = row.figures
        if figures is None or not row.contrast.channels:
            continue
        worst = row.contrast.channels[0]
        block = row.contrast.blocks[0]
        yield (
            f"{row.path}: MAPE {figures.mape:.3g} over all, {worst.mape:.3g} in channel {worst.start}, "
            f"{block.mape:.3g} in channels {block.start}-{block.start + block.size - 1}; "
            f"Pearson {figures.pearson:.5f}, cosine {figures.cosine:.5f}, largest error {figures.max_error:.3g}, "
            f"{figures.ulp_max:.3g} ulps of {figures.ulp_dtype} ({row.contrast.basis})"
        )


def _curve(found: Comparison) -> Iterator[str]:
    if not found.curve:
        return
    yield ""
    yield "layer  MAPE      over rounding  sum of MAPE up to there"
    whole = found.curve[-1].total
    for point in found.curve:
        bar = "#" * round(_BAR * point.total / whole) if whole else ""
        yield f"{point.layer:>5}  {point.mape:<8.3g}  {point.excess:<13.3g}  {bar}"


def _rest(found: Comparison) -> Iterator[str]:
    yield ""
    yield found.how
    lost: list[Row] = [row for row in found.rows if row.verdict == "not compared"]
    if lost:
        yield f"not compared: {len(lost)} places, such as {lost[0].path} ({lost[0].contrast.note or 'not seen'})"
    if found.only_in_reference or found.only_in_other:
        yield (
            f"without a counterpart: {len(found.only_in_reference)} places of the reference, "
            f"{len(found.only_in_other)} of the other"
        )
    if found.first_divergent is None:
        worst = max((row.mape for row in found.rows if not math.isnan(row.mape)), default=math.nan)
        yield f"the largest MAPE is {worst:.3g}: with a --max-mape from there on this pair passes"
    yield from found.notes
