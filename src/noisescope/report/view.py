"""What a report shows, as records: a verdict, what to do about it, and sections of tables, figures and notes.

It decides nothing and draws nothing. Every renderer works from a View alone, so that no two of them can disagree.
All text is cleaned when a record is made; what is left may still mean something to HTML or Markdown.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from noisescope.core.errors import BadInputError
from noisescope.core.foreign import clean
from noisescope.report.wording import Format

Level = Literal["critical", "high", "moderate", "low", "undecided", "none"]
LEVELS: tuple[Level, ...] = ("critical", "high", "moderate", "low", "undecided", "none")
Spacing = Literal["linear", "log"]


@dataclass(frozen=True)
class Shown:
    """Base of all records of a view: its texts are one clean line each, its lists are tuples."""

    def __post_init__(self) -> None:
        for own in dataclasses.fields(self):
            object.__setattr__(self, own.name, _cleaned(getattr(self, own.name)))
        self.check()

    def check(self) -> None:
        """Refuse what cannot be shown."""


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    return tuple(_cleaned(item) for item in value) if isinstance(value, tuple | list) else value


@dataclass(frozen=True)
class Figure(Shown):
    """A number with its interval and how many samples are behind it, where it has them."""

    value: float | None
    low: float | None = None
    high: float | None = None
    samples: int | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class Severity(Shown):
    """The word that the record uses, and the level by which it is drawn."""

    word: str
    level: Level

    def check(self) -> None:
        if self.level not in LEVELS:
            raise BadInputError(f"level {self.level!r}: expected one of {', '.join(LEVELS)}.")


@dataclass(frozen=True)
class Threshold(Shown):
    """A limit, and the name of what lies beyond it."""

    value: float
    name: str
    level: Level


Cell = str | Figure | Severity | None


@dataclass(frozen=True)
class Column(Shown):
    """A column of a table: how its cells are written and ordered."""

    name: str
    kind: Literal["text", "figure", "severity"] = "text"
    form: Format = "plain"
    unit: str = ""


@dataclass(frozen=True)
class Row(Shown):
    """A row of a table, with the layers and operators that it speaks of; none means all, None is outside the layers."""

    cells: tuple[Cell, ...]
    layers: tuple[int | None, ...] = ()
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table(Shown):
    """Rows that can be sorted by any column."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    kind: Literal["table"] = field(default="table", init=False)

    def check(self) -> None:
        uneven = [i for i, row in enumerate(self.rows) if len(row.cells) != len(self.columns)]
        if uneven:
            raise BadInputError(f"table {self.title!r}: row {uneven[0]} does not fit {len(self.columns)} columns.")


@dataclass(frozen=True)
class Heatmap(Shown):
    """A value for every operator and layer; None where nothing was measured, for the reason in `missing`.

    `layers` are the columns; a layer of None is what lies outside the stack.
    """

    title: str
    operators: tuple[str, ...]
    layers: tuple[int | None, ...]
    cells: tuple[tuple[Figure | None, ...], ...]
    measure: str
    form: Format = "plain"
    unit: str = ""
    spacing: Spacing = "linear"
    missing: str = "not measured"
    caption: str = ""
    kind: Literal["heatmap"] = field(default="heatmap", init=False)

    def check(self) -> None:
        fits = len(self.cells) == len(self.operators) and all(len(row) == len(self.layers) for row in self.cells)
        if not fits:
            raise BadInputError(
                f"heatmap {self.title!r}: expected {len(self.operators)} rows of {len(self.layers)} cells."
            )


@dataclass(frozen=True)
class Bar(Shown):
    """One bar; `marks` are flags on it, such as avalanche point, and `note` is what else is to be said of it."""

    label: str
    figure: Figure
    severity: Severity
    marks: tuple[str, ...] = ()
    layers: tuple[int | None, ...] = ()
    operators: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Bars(Shown):
    """Bars in their order, with intervals, and the thresholds that name them."""

    title: str
    bars: tuple[Bar, ...]
    measure: str
    what: str
    form: Format = "plain"
    unit: str = ""
    spacing: Spacing = "linear"
    thresholds: tuple[Threshold, ...] = ()
    caption: str = ""
    kind: Literal["bars"] = field(default="bars", init=False)


@dataclass(frozen=True)
class Dot(Shown):
    """One point over its group."""

    group: str
    label: str
    figure: Figure
    severity: Severity
    layers: tuple[int | None, ...] = ()
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dots(Shown):
    """Points over groups in their order, such as the ratios of the outlier channels over the layers."""

    title: str
    groups: tuple[str, ...]
    dots: tuple[Dot, ...]
    measure: str
    what: str
    form: Format = "plain"
    unit: str = ""
    spacing: Spacing = "linear"
    thresholds: tuple[Threshold, ...] = ()
    caption: str = ""
    kind: Literal["dots"] = field(default="dots", init=False)

    def check(self) -> None:
        lost = sorted({dot.group for dot in self.dots} - set(self.groups))
        if lost:
            raise BadInputError(f"dots {self.title!r}: no group {lost[0]!r}; there are {', '.join(self.groups)}.")


@dataclass(frozen=True)
class Point(Shown):
    """A point of a curve; the limits of its figure make the band around the curve."""

    x: float
    figure: Figure
    layers: tuple[int | None, ...] = ()
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Curve(Shown):
    """A named line through points."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Curves(Shown):
    """Curves over one axis, such as divergence over layers or a score over noise scales."""

    title: str
    curves: tuple[Curve, ...]
    x_name: str
    measure: str
    x_form: Format = "plain"
    form: Format = "plain"
    unit: str = ""
    spacing: Spacing = "linear"
    thresholds: tuple[Threshold, ...] = ()
    caption: str = ""
    kind: Literal["curves"] = field(default="curves", init=False)


@dataclass(frozen=True)
class Note(Shown):
    """A paragraph; `level` other than none makes it a warning."""

    text: str
    level: Level = "none"
    kind: Literal["note"] = field(default="note", init=False)


@dataclass(frozen=True)
class Fact(Shown):
    """A name and what is known under it."""

    name: str
    value: str | Figure
    form: Format = "plain"
    unit: str = ""


@dataclass(frozen=True)
class Facts(Shown):
    """A list of facts."""

    title: str
    facts: tuple[Fact, ...]
    kind: Literal["facts"] = field(default="facts", init=False)


@dataclass(frozen=True)
class Gap(Shown):
    """Something that was not measured, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class NotMeasured(Shown):
    """All that was not measured."""

    gaps: tuple[Gap, ...]
    kind: Literal["not_measured"] = field(default="not_measured", init=False)


@dataclass(frozen=True)
class Reproduce(Shown):
    """How to get the same figures again: the commands, and the versions and hashes of what they ran on."""

    commands: tuple[str, ...]
    facts: tuple[Fact, ...] = ()
    kind: Literal["reproduce"] = field(default="reproduce", init=False)


Drawn = Heatmap | Bars | Dots | Curves
Block = Table | Heatmap | Bars | Dots | Curves | Note | Facts | NotMeasured | Reproduce


@dataclass(frozen=True)
class Section(Shown):
    """Blocks under a heading; `key` is its address within the page."""

    key: str
    heading: str
    blocks: tuple[Block, ...]
    intro: str = ""


@dataclass(frozen=True)
class Share(Shown):
    """A part of the risk score, and how it came about."""

    name: str
    points: float
    how: str = ""


@dataclass(frozen=True)
class Risk(Shown):
    """The risk in one word and, where there is one, as a score with its limits and its parts."""

    severity: Severity
    score: float | None = None
    thresholds: tuple[Threshold, ...] = ()
    shares: tuple[Share, ...] = ()
    how: str = ""


@dataclass(frozen=True)
class Action(Shown):
    """A thing to do, at which component, why, and on what evidence."""

    component: str
    action: str
    issue: str
    severity: Severity
    evidence: tuple[str, ...] = ()
    priority: int | None = None
    layers: tuple[int | None, ...] = ()
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statement(Shown):
    """A verdict under the name of what it is from."""

    name: str
    severity: Severity
    verdict: str


@dataclass(frozen=True)
class View(Shown):
    """A whole report. `actions` are sorted, most urgent first; the first three are on the first screen.

    A report of several findings has the verdict of the worst, and the other verdicts in `besides`.
    """

    title: str
    subject: str
    verdict: str
    severity: Severity
    sections: tuple[Section, ...]
    actions: tuple[Action, ...] = ()
    besides: tuple[Statement, ...] = ()
    risk: Risk | None = None
    facts: tuple[Fact, ...] = ()
    made_by: str = "noisescope"

    def check(self) -> None:
        keys = [section.key for section in self.sections]
        twice = sorted({key for key in keys if keys.count(key) > 1 or not key.replace("-", "").isalnum()})
        if twice:
            raise BadInputError(f"section {twice[0]!r}: expected a key of letters, digits and dashes, used once.")
