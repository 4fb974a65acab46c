"""The records of a localisation: what was checked at a site, who is suspected on what evidence, and the verdict.

They draw no conclusion themselves; each method has a module of its own for that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from noisescope.core.codec import LATER
from noisescope.core.records import Site
from noisescope.measure.judged import Judged

Verdict = Literal["fault", "no fault found", "undecided"]
Outcome = Literal["confirmed", "no effect", "not confirmed", "impossible"]


@dataclass(frozen=True)
class Witnessed:
    """What a check found at a site, and when: the batch, the run over it, and the place in the order of the run."""

    site: Site
    judged: Judged
    batch: int = 0
    run: int = 0
    order: int = 0


@dataclass(frozen=True)
class Evidence:
    """One reason for a suspicion: the check, how far its worst value lies above what is allowed, and in words."""

    check: str
    excess: float
    hits: int
    judged: int
    words: str


@dataclass(frozen=True)
class Suspect:
    """A site that is held to be faulty. `channels` are named where its errors are confined to some."""

    layer: int | None
    operator: str
    path: str
    score: float
    evidence: tuple[Evidence, ...] = ()
    channels: tuple[int, ...] = ()
    rate: float = 1.0

    def __str__(self) -> str:
        where = "outside the layers" if self.layer is None else f"layer {self.layer}"
        return f"{self.operator} at {self.path or 'the model'} ({where}): {'; '.join(e.words for e in self.evidence)}"


@dataclass(frozen=True)
class Opinion:
    """What a second way of looking says: a place, and why in words."""

    layer: int | None
    operator: str
    path: str
    words: str


@dataclass(frozen=True)
class Confirmation:
    """What came of one more run with what the host computes in the place of the outputs of the suspects.

    `corrected` operators were replaced; `left` are those at which a check still fails. `moved` says how far the end
    result moved, as a share of its size, and `beside` how far it moves where `healthy` operators that hold are replaced
    as well. `recovered` is the share of the distance to the healthy result that is gone, where that result is known.
    """

    outcome: Outcome
    words: str
    corrected: int
    left: tuple[str, ...] = ()
    moved: float | None = None
    healthy: int = 0
    beside: float | None = None
    recovered: float | None = None

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Localization:
    """Who is at fault, worst first, and how sure that is.

    `odd` are sites where something lies above what rounding allows, but not far enough to be called a fault.
    `unchecked` says what could not be checked, `would_decide` what to do where the verdict is undecided, `notes` the
    rest: how many runs there were, and what rate of failure they can have missed. Of fingerprints there are the lead
    of the best over the second, in what share of draws it stays the best, and a second opinion. Suspects of the
    default method are confirmed.
    """

    verdict: Verdict
    suspects: tuple[Suspect, ...] = ()
    method: str = "srdd"
    odd: tuple[Suspect, ...] = ()
    checked: int = 0
    unchecked: tuple[str, ...] = ()
    would_decide: str = ""
    notes: tuple[str, ...] = ()
    margin: float | None = None
    confidence: float | None = None
    opinion: Opinion | None = None
    confirmation: Confirmation | None = field(default=None, metadata=LATER)

    def __str__(self) -> str:
        lines = [self.verdict, *(f"{n + 1}. {s}" for n, s in enumerate(self.suspects))]
        lines += [str(self.confirmation)] if self.confirmation is not None else []
        return "\n".join([*lines, *self.notes, *([self.would_decide] if self.would_decide else [])])

    def rank_of(self, layer: int | None, operator: str | None = None) -> int | None:
        """The place of a layer, or of an operator in it, among the suspects, counted from 1."""
        for rank, suspect in enumerate(self.suspects):
            if suspect.layer == layer and operator in (None, suspect.operator):
                return rank + 1
        return None
