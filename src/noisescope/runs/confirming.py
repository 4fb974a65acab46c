"""Confirms suspects: runs the model once more with what the host computes in the place of their outputs.

Once more for the suspects with all checks on, and once for as many operators that hold, without checks. Conclusions are
drawn in `diagnose.confirmation`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.records import Site
from noisescope.diagnose.confirmation import Replaced, cannot_confirm, conclude_confirmation
from noisescope.diagnose.localization import Confirmation, Suspect, Witnessed
from noisescope.diagnose.srdd import Runs, conclude
from noisescope.measure.judged import Judged
from noisescope.measure.replay import tensors_of
from noisescope.runs.capturing import inputs_of
from noisescope.sweep.evaluating import evaluating
from noisescope.sweep.witnessing import Observer

# Rows of an end result that are kept, evenly over all of them.
_ROWS = 64


@dataclass(frozen=True, eq=False)
class Answers:
    """Some rows of what a model answers to each batch; None where it answers with no floating tensor."""

    rows: tuple[Tensor | None, ...]


def answers_of(model: nn.Module, batches: Sequence[Mapping[str, Any]]) -> Answers:
    """What a model answers as it is now: of a healthy one, what a confirmation can be held against."""
    with evaluating(model), torch.no_grad():
        return Answers(tuple(some_of(model(**inputs_of(model, batch))) for batch in batches))


def some_of(out: Any) -> Tensor | None:
    """Some rows of the end result of a run, in float64 on the host."""
    whole = next(iter(tensors_of(out if isinstance(out, Mapping) else [out])), None)
    if whole is None:
        return None
    rows = whole.reshape(-1, whole.shape[-1]) if whole.dim() else whole.reshape(1, 1)
    return rows[:: max(len(rows) // _ROWS, 1)].cpu().double()


@dataclass(frozen=True, eq=False)
class Failed:
    """A run in which suspects failed: its inputs and its end result, and the healthy one where that is known."""

    inputs: Mapping[str, Any]
    before: Tensor
    batch: int = 0
    number: int = 0
    healthy: Tensor | None = None


def confirm(model: nn.Module, suspects: Sequence[Suspect], run: Failed, seed: int) -> Confirmation:
    """Whether everything that is wrong goes away with what these suspects give."""
    asked = frozenset(Site(one.layer, one.operator, one.path) for one in suspects)
    found: list[Witnessed] = []

    def tell(site: Site, judged: Judged, order: int) -> None:
        found.append(Witnessed(site, judged, order=order))

    with evaluating(model), torch.no_grad():
        observer = Observer(model, seed, tell, asked)
        after = _answer(observer, run)
        if observer.unhealed:
            site, why = next(iter(observer.unhealed.items()))
            return cannot_confirm(suspects, f"{site.operator} at {site.path} ({why})")
        others = _others(asked, found)
        beside = _answer(Observer(model, seed, None, asked | others), run)
    left = conclude(found, Runs(1, 0.95)).suspects
    known = run.healthy
    return conclude_confirmation(
        suspects,
        left,
        Replaced(
            _apart(run.before, after),
            len(others),
            _apart(after, beside),
            None if known is None else _apart(run.before, known),
            None if known is None else _apart(after, known),
        ),
    )


def _answer(observer: Observer, run: Failed) -> Tensor:
    with observer.watching(0):
        found = some_of(observer.model(**run.inputs))
    return run.before if found is None else found


def _others(asked: frozenset[Site], found: Sequence[Witnessed]) -> frozenset[Site]:
    """As many sites that hold, of the same operators where there are any, from the front."""
    failing = {one.site for one in found if not one.judged.holds}
    sites = [site for site in dict.fromkeys(one.site for one in found) if site not in asked and site not in failing]
    operators = {site.operator for site in asked}
    alike = [site for site in sites if site.operator in operators]
    return frozenset([*alike, *(site for site in sites if site.operator not in operators)][: len(asked)])


def _apart(one: Tensor, other: Tensor) -> float:
    """The distance of one result from another as a share of the size of the other."""
    gap, size = float((one - other).norm()), float(other.norm())
    if not math.isfinite(gap):
        return math.inf
    return gap / size if size else (math.inf if gap else 0.0)
