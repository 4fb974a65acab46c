"""Concludes from contrasts tap by tap where two systems part: whose error is its own, whose is inherited, the verdict.

It takes figures in and runs nothing. Errors are in units of what a healthy system's answer to its last bit allows, so
that what is carried on from one operator to the next keeps its size, and a rise is an operator's own doing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from noisescope.measure.contrasted import Contrast, Figures
from noisescope.measure.indices import cumulative_curve

RowVerdict = Literal["ok", "local", "inherited", "not compared"]
# An error that is only carried on was never seen to grow this much in these units; see docs/migration.md.
RISE = 4.0
SHADOW, ESTIMATE = "shadow", "estimate"
_HOW = {
    SHADOW: "Local error was measured: every operator of the second system ran on the inputs of the reference.",
    ESTIMATE: (
        "Local error was estimated from what goes in and comes out: a site is blamed where nothing before it differs, "
        f"or where it differs {RISE:g} times as much as anything before it. A smaller second fault may be hidden."
    ),
}


@dataclass(frozen=True)
class Side:
    """One of the two systems: what it is called, its model, and what it ran on."""

    name: str = ""
    model: str = ""
    device: str = ""
    dtype: str = ""
    system: str = ""


@dataclass(frozen=True)
class Row:
    """One tap. `local` is the error that is its operator's own, over what is healthy; None where it is not known."""

    contrast: Contrast
    verdict: RowVerdict
    local: float | None = None
    symptom: str = ""

    @property
    def layer(self) -> int | None:
        return self.contrast.site.layer

    @property
    def operator(self) -> str:
        return self.contrast.site.operator

    @property
    def path(self) -> str:
        return self.contrast.site.path

    @property
    def role(self) -> str:
        return self.contrast.role

    @property
    def excess(self) -> float:
        return self.contrast.excess

    @property
    def figures(self) -> Figures | None:
        return self.contrast.figures

    @property
    def mape(self) -> float:
        """The mean relative error; NaN where nothing was compared."""
        return math.nan if self.figures is None else self.figures.mape

    @property
    def place(self) -> str:
        """Operator, layer and module, for people."""
        where = "outside the layers" if self.layer is None else f"layer {self.layer}"
        role = "" if self.role == "output" else f", {self.role}"
        return f"{self.operator} of {where} ({self.path}{role})"


@dataclass(frozen=True)
class CurveRow:
    """The divergence at the end of a layer, and its sum up to there."""

    layer: int
    mape: float
    excess: float
    total: float


@dataclass(frozen=True)
class Comparison:
    """Two systems, tap by tap.

    `verdict` is pass or fail. It fails where an operator's own error is larger than rounding makes it, and where the
    mean relative error of any tap is above `max_mape`. `how` says how local error was told from inherited.
    """

    verdict: Literal["pass", "fail"]
    rows: tuple[Row, ...]
    first_divergent: Row | None
    suspects: tuple[Row, ...]
    reference: Side
    other: Side
    max_mape: float
    how: str
    curve: tuple[CurveRow, ...] = ()
    only_in_reference: tuple[str, ...] = ()
    only_in_other: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def above_limit(self) -> tuple[Row, ...]:
        """Taps whose mean relative error is above the limit."""
        return tuple(row for row in self.rows if row.mape > self.max_mape)

    def __str__(self) -> str:
        return "\n".join([self.verdict, *self.reasons])

    @property
    def reasons(self) -> list[str]:
        """Why, in sentences, the worst first."""
        found = [
            f"{row.place}: its own error is {_times(row.local)} what rounding allows"
            + (f"; {row.symptom}" if row.symptom else "")
            for row in self.suspects
        ]
        above = self.above_limit
        if above:
            worst = max(above, key=lambda row: row.mape)
            found.append(
                f"MAPE is above {self.max_mape:.3g} at {len(above)} of {len(self.rows)} places, "
                f"up to {worst.mape:.3g} at {worst.place}"
            )
        if above and not self.suspects:
            found.append("no operator is at fault: this is what the rounding of the dtype adds up to")
        return found


@dataclass(frozen=True)
class Question:
    """What is to be concluded: the limit, the layers that are looked at (None: all), and the two sides."""

    reference: Side
    other: Side
    max_mape: float = 0.05
    layers: tuple[int, ...] | None = None
    only_in_reference: tuple[str, ...] = ()
    only_in_other: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def conclude(
    question: Question, contrasts: Iterable[Contrast], local: Mapping[str, Contrast] | None = None
) -> Comparison:
    """The verdict. `local` holds, by path and role, what each operator made of the reference's own inputs."""
    every = list(contrasts)
    rows = _measured(every, local) if local is not None else _estimated(every)
    chosen = [row for row in rows if question.layers is None or row.layer in question.layers]
    suspects = _suspects(chosen)
    differing = [row for row in chosen if row.verdict in ("local", "inherited")]
    broken = any(row.mape > question.max_mape for row in chosen)
    return Comparison(
        verdict="fail" if suspects or differing or broken else "pass",
        rows=tuple(chosen),
        first_divergent=differing[0] if differing else None,
        suspects=suspects,
        reference=question.reference,
        other=question.other,
        max_mape=question.max_mape,
        how=_HOW[ESTIMATE if local is None else SHADOW],
        curve=_curve(chosen),
        only_in_reference=question.only_in_reference,
        only_in_other=question.only_in_other,
        notes=question.notes,
    )


def _suspects(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Of each module the first place that is at fault; what else is wrong inside it follows from that."""
    found: dict[tuple[str, bool], Row] = {}
    for row in rows:
        if row.verdict == "local":
            # What goes into a module is the doing of the code around it.
            found.setdefault((row.path, row.role == "input"), row)
    return tuple(found.values())


def key_of(contrast: Contrast) -> str:
    """What a tap is matched by."""
    return f"{contrast.site.path}:{contrast.role}"


def _measured(every: Sequence[Contrast], local: Mapping[str, Contrast]) -> list[Row]:
    rows = []
    for contrast in every:
        own = local.get(key_of(contrast))
        if contrast.figures is None or own is None or own.figures is None:
            rows.append(Row(contrast, "not compared"))
            continue
        verdict: RowVerdict = "local" if own.differs else "inherited" if contrast.differs else "ok"
        rows.append(Row(contrast, verdict, own.excess, own.symptom))
    return rows


def _estimated(every: Sequence[Contrast]) -> list[Row]:
    """In the order of the run: an error that rises above all before it is an operator's own."""
    rows, before = [], 0.0
    for contrast in every:
        if contrast.figures is None:
            rows.append(Row(contrast, "not compared", symptom=contrast.note))
            continue
        is_own = contrast.differs and (before <= 1.0 or contrast.excess > RISE * before)
        verdict: RowVerdict = "local" if is_own else "inherited" if contrast.differs else "ok"
        rows.append(Row(contrast, verdict, contrast.excess if is_own else None, contrast.symptom))
        before = max(before, contrast.excess)
    return rows


def _curve(rows: Iterable[Row]) -> tuple[CurveRow, ...]:
    """Over the ends of the layers."""
    ends = {r.layer: r for r in rows if r.layer is not None and r.role == "output" and r.operator == "residual"}
    points = cumulative_curve({layer: row.mape for layer, row in sorted(ends.items()) if math.isfinite(row.mape)})
    return tuple(CurveRow(int(p.layer), p.value, ends[int(p.layer)].excess, p.total) for p in points)


def _times(excess: float | None) -> str:
    if excess is None or not math.isfinite(excess):
        return "far above"
    return f"{excess:.3g} times"
