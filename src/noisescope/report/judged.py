"""From the words and intervals of the records to those of a view: which level a word is drawn at, how harm is written.

The words themselves are the records' own and stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from noisescope.measure.metrics import METRICS
from noisescope.measure.statistics import Interval
from noisescope.report.view import Column, Figure, Level, Row, Severity, Table
from noisescope.report.wording import Format

_LEVELS: Mapping[str, Level] = {
    "error": "critical",
    "critical": "critical",
    "fault": "critical",
    "high": "high",
    "poor": "high",
    "moderate": "moderate",
    "warning": "moderate",
    "fair": "moderate",
    "undecided": "undecided",
    "robust": "low",
    "low": "low",
    "good": "low",
    "excellent": "low",
    "no fault found": "low",
}
_UNITS: Mapping[str, str] = {"kl_to_clean": "nats per token"}


def severity_of(word: str) -> Severity:
    """A record's word with the level that it is drawn at; a word that judges nothing has none."""
    return Severity(word, _LEVELS.get(word.lower(), "none"))


def figure_of(interval: Interval | None) -> Figure | None:
    """An interval as a figure."""
    if interval is None:
        return None
    return Figure(interval.estimate, interval.low, interval.high, interval.samples, interval.confidence)


@dataclass(frozen=True)
class Unit:
    """How harm under a metric is named and written."""

    name: str
    form: Format
    unit: str

    @property
    def is_share(self) -> bool:
        return self.form == "percent"


def harm_unit(metric: str) -> Unit:
    """A share of the clean score; of a metric that is 0 when clean its own unit."""
    if METRICS[metric].clean == 0.0:
        return Unit(metric.replace("_", " "), "plain", _UNITS.get(metric, ""))
    return Unit("degradation", "percent", "")


def score_unit(metric: str) -> Unit:
    """The metric's own value; a share where it lies between 0 and 1."""
    form: Format = "percent" if METRICS[metric].higher_is_better else "plain"
    return Unit(metric.replace("_", " "), form, "nats" if metric == "nll" else _UNITS.get(metric, ""))


def filled_table(title: str, columns: Sequence[Column], rows: Sequence[Row], caption: str = "") -> Table:
    """A table without the columns in which no row has anything."""
    kept = [i for i in range(len(columns)) if any(row.cells[i] is not None for row in rows)]
    thinned = tuple(replace(row, cells=tuple(row.cells[i] for i in kept)) for row in rows)
    return Table(title, tuple(columns[i] for i in kept), thinned, caption)
