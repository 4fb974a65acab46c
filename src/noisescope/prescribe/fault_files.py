"""Fault tests as files: JSON that is read back whole or refused, and CSV for spreadsheets.

A cell of the CSV that a spreadsheet would run as a formula is written as text.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

from noisescope.core.codec import SCHEMA, from_plain, parse, to_plain
from noisescope.core.errors import BadInputError
from noisescope.core.foreign import clean
from noisescope.diagnose.fault_tests import FaultCase, FaultOutcome, FaultPlan, FaultTests

FORMAT, VERSION = "noisescope fault tests", 1
# Beginnings of formulas, as typed and as Asian keyboards type them.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_ALL = "all"
Cell = str | float | int | None


def plan_text(plan: FaultPlan) -> str:
    """The document that `read_plan` reads, in ASCII: a name in it cannot steer the terminal that shows the file."""
    document = {"format": FORMAT, "version": VERSION, "schema": SCHEMA, "plan": to_plain(plan)}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def read_plan(path: Path) -> FaultPlan:
    """The cases in a file; it is whole and makes sense, or it is refused in one line."""
    try:
        document = parse(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise BadInputError(f"{path}: cannot be read ({problem.strerror}); expected {FORMAT} as JSON.") from None
    except ValueError as problem:
        raise BadInputError(f"{path}: not JSON ({problem}); expected {FORMAT}.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadInputError(f"{path}: no {FORMAT}; make them with noisescope faults RUN --json FILE.")
    seen = (document.get("version"), document.get("schema"))
    if seen != (VERSION, SCHEMA):
        raise BadInputError(
            f"{path}: fault tests of version {seen[0]!r}, schema {seen[1]!r}; this noisescope reads {VERSION} and "
            f"{SCHEMA}: make them anew with noisescope faults RUN --json FILE."
        )
    strange = sorted(set(document) - {"format", "version", "schema", "plan"})
    if strange:
        raise BadInputError(f"{path}: no field {', '.join(strange)} is known; expected format, version, schema, plan.")
    try:
        plan: FaultPlan = from_plain(FaultPlan, document.get("plan"))
    except BadInputError as problem:
        raise BadInputError(f"{path}: not a whole set of fault tests: {problem}") from None
    return plan


def table_text(plan: FaultPlan, tests: FaultTests | None = None) -> str:
    """One line for each case, with what came of it where it was run."""
    outcomes = {} if tests is None else {outcome.case.name: outcome for outcome in tests.outcomes}
    rows = [{**_asked(case), **_came(outcomes.get(case.name))} for case in plan.cases]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: safe(cell) for name, cell in row.items()} for row in rows)
    return out.getvalue()


def safe(cell: Cell) -> Cell:
    """A cell that no spreadsheet runs: a text that begins like a formula gets an apostrophe, which makes it plain text.

    Line breaks and tabs become spaces, for they end a cell where a file is pasted; what steers a terminal or hides is
    left out. Numbers stay numbers.
    """
    if not isinstance(cell, str):
        return cell
    shown = clean(cell)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


def _asked(case: FaultCase) -> Mapping[str, Cell]:
    accepted = case.accepted
    return {
        "name": case.name,
        "level": case.level,
        "kind": case.kind,
        "magnitude": case.magnitude,
        "rate": case.rate,
        "operators": _joined(case.operators) if not case.path else "",
        "layers": _joined(case.layers) if not case.path else "",
        "module": case.path,
        "side": case.side,
        "channels": _joined(case.channels),
        "when": case.moment,
        "accepted loss": accepted.loss,
        "accepted share not finite": accepted.nonfinite,
        "recovered before step": accepted.recovery,
        "must be located": "yes" if accepted.located else "no",
        "critical": "yes" if case.is_critical else "no",
        "because": case.because,
    }


def _came(outcome: FaultOutcome | None) -> Mapping[str, Cell]:
    if outcome is None:
        return {}
    loss, stepped, located = outcome.loss, outcome.stepped, outcome.located
    recovery = None if stepped is None else stepped.recovery
    return {
        "verdict": outcome.verdict,
        "loss": None if loss is None else loss.estimate,
        "loss low": None if loss is None else loss.low,
        "loss high": None if loss is None else loss.high,
        "samples": None if loss is None else loss.samples,
        "share not finite": outcome.nonfinite_rate,
        "recovery step": None if recovery is None else recovery.estimate,
        "recovery low": None if recovery is None else recovery.low,
        "recovery high": None if recovery is None else recovery.high,
        "located": None if located is None else "yes" if located.is_found else "no",
        "rank": None if located is None else located.rank,
        "reasons": "; ".join(outcome.reasons),
    }


def _joined(names: tuple[object, ...] | None) -> str:
    return _ALL if names is None else " ".join(map(str, names))
