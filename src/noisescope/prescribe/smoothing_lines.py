"""A smoothed model in a few lines of text.

It judges nothing; every figure is one of the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from noisescope.core.smoothing import TOKEN, Cost, Smoothing
from noisescope.core.words import many

_MOST = 3


def smoothing_lines(found: Smoothing) -> list[str]:
    """What was folded, what it costs in int8 before and after, and what was left."""
    return list(_lines(found))


def _lines(found: Smoothing) -> Iterator[str]:
    kept = found.folded
    yield f"folded {len(kept)} of {many(len(found.folds), 'place')} where it is exact"
    if found.remark:
        yield f"  {found.remark}"
    if kept:
        counts = sorted(Counter(fold.alpha for fold in kept if fold.alpha is not None).items())
        yield "alpha " + ", ".join(f"{alpha:g} ({count})" for alpha, count in counts)
        yield f"moved the answers by {found.moved:.2g} of the largest" if found.moved else "moved no bit of the answers"
    by = "token" if found.activations == TOKEN else "tensor"
    yield (
        f"int8 in {many(found.linears, 'linear layer')}, activations by {by}: {found.metric} over "
        f"{many(found.samples, 'sample')}"
    )
    yield f"  before {_text(found.before)}"
    yield f"  after  {_text(found.after)}"
    yield f"  change {_text(found.change)}"
    reasons = Counter(fold.why for fold in found.folds if fold.why)
    reasons.update(text.partition(": ")[2] for text in found.without)
    for why, count in reasons.most_common(_MOST):
        yield f"left {count}: {why}"


def _text(cost: Cost) -> str:
    return f"{cost.estimate:+.5f} [{cost.low:+.5f}, {cost.high:+.5f}]"
