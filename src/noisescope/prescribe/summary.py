"""A precision map in a few lines of text.

It judges nothing; every figure is one of the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from noisescope.core.precision import Measured, PrecisionMap
from noisescope.core.words import many

_MOST = 3


def precision_lines(found: PrecisionMap) -> list[str]:
    """The size, the share of each format, what it costs, and what is not in it."""
    return list(_lines(found))


def _lines(found: PrecisionMap) -> Iterator[str]:
    groups = many(len(found.choices), "group")
    yield f"average {found.average_bits:.3f} bits, target {found.target:g}, {found.weights:,} weights in {groups}"
    if found.remark:
        yield f"  {found.remark}"
    counts = Counter(choice.format for choice in found.choices)
    yield "formats " + ", ".join(f"{count} {name}" for name, count in counts.most_common())
    yield f"predicted {found.harm:.3g} nats of KL per token, from {many(found.tokens, 'token')}"
    if found.measured:
        yield f"measured, nats of KL per token over {many(found.samples, 'sample')}:"
        yield from map(_measured_line, found.measured)
    for reason in found.left_out[:_MOST]:
        yield f"left out {reason}"
    if len(found.left_out) > _MOST:
        yield f"left out {len(found.left_out) - _MOST} more"


def _measured_line(row: Measured) -> str:
    interval = f"{row.estimate:.4f} [{row.low:.4f}, {row.high:.4f}]"
    above = "" if row.above is None else f"   {row.above[0]:+.4f} [{row.above[1]:+.4f}, {row.above[2]:+.4f}] to the map"
    return f"  {row.name:<13} {row.average_bits:6.3f} bits  {interval}{above}"
