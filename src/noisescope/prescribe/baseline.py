"""Baselines: what noise costs a checkpoint, sample by sample, from a run folder or in a file of its own.

It refuses, in one line, what a checkpoint cannot be compared with. It measures nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisescope.core.codec import SCHEMA, from_plain, parse, to_plain
from noisescope.core.errors import BadInputError
from noisescope.diagnose.gate import Fragility, fragility_of
from noisescope.diagnose.gated import Checkpoint, Gated
from noisescope.diagnose.setting import Setting
from noisescope.diagnose.whole import Diagnosis
from noisescope.sweep.journal import put
from noisescope.sweep.store import ABOUT, About, Request, Store

FORMAT, VERSION = "noisescope baseline", 1
REPORT = "noisescope report"
GATE, DIAGNOSIS = "gate", "diagnosis"
# What has to be equal, by the words in which it is told.
_TERMS = ("metric", "samples", "seeds", "kind", "scale", "params", "operators", "layers", "shape", "chunk")
MAKE_ONE = "noisescope gate MODEL --save-baseline FILE"


@dataclass(frozen=True)
class Baseline:
    """What noise costs a checkpoint, and which one it is."""

    checkpoint: Checkpoint
    fragility: Fragility


def write_baseline(baseline: Baseline, path: Path) -> None:
    """The file that `read_baseline` reads."""
    document = {"format": FORMAT, "version": VERSION, "schema": SCHEMA, "baseline": to_plain(baseline)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, f"{json.dumps(document, indent=1, allow_nan=False)}\n".encode())
    except OSError as problem:
        raise BadInputError(f"{path}: cannot be written ({problem.strerror}); name another file.") from None


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file, in a run folder, or in the folder of a report; it is whole, or refused."""
    found = _of_folder(path) if path.is_dir() else _of_file(path)
    if found.fragility.gaps:
        raise BadInputError(
            f"{path}: no whole baseline: {found.fragility.gaps[0]}. A diagnosis stops where a verdict is decided, and "
            f"what it stopped at would lean; make one with {MAKE_ONE}, or with diagnose --exhaustive."
        )
    return found


def _of_file(path: Path) -> Baseline:
    try:
        document = parse(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise BadInputError(f"{path}: {problem.strerror}; expected a baseline, made with {MAKE_ONE}.") from None
    except ValueError as problem:
        raise BadInputError(f"{path}: not JSON ({problem}); expected a baseline, made with {MAKE_ONE}.") from None
    form = document.get("format") if isinstance(document, dict) else None
    if form == REPORT and (path.parent / ABOUT).is_file():
        return _of_folder(path.parent)
    if form != FORMAT:
        seen = "a report holds no values by sample" if form == REPORT else f"no {FORMAT}"
        raise BadInputError(f"{path}: {seen}; name its run folder, or make a baseline with {MAKE_ONE}.")
    _check_version(path, document)
    try:
        baseline: Baseline = from_plain(Baseline, document.get("baseline"))
    except BadInputError as problem:
        raise BadInputError(f"{path}: not a whole baseline ({problem}); make it anew with {MAKE_ONE}.") from None
    _check_lengths(path, baseline.fragility)
    return baseline


def _check_version(path: Path, document: dict[str, Any]) -> None:
    seen = (document.get("version"), document.get("schema"))
    if seen != (VERSION, SCHEMA):
        raise BadInputError(
            f"{path}: a baseline of version {seen[0]!r}, schema {seen[1]!r}; this noisescope reads {VERSION} and "
            f"{SCHEMA}: make it anew with {MAKE_ONE}."
        )


def _check_lengths(path: Path, found: Fragility) -> None:
    """A file may have been edited; what does not fit together is refused before it is taken for figures."""
    setting, rows = found.setting, [row for one in found.operators for row in one.rows]
    names = tuple(one.operator for one in found.operators)
    fits = all(len(row) == setting.samples for row in (found.clean, *rows)) and sorted(names) == sorted(
        setting.operators
    )
    if not fits or any(len(one.rows) != len(setting.seeds) for one in found.operators):
        raise BadInputError(
            f"{path}: its values are not those of {setting.samples} samples, {len(setting.seeds)} seeds and "
            f"{', '.join(setting.operators)}; make it anew with {MAKE_ONE}."
        )


def _of_folder(folder: Path) -> Baseline:
    store = Store(folder)
    gated = store.load_finding(GATE, Gated)
    diagnosis = None if gated else store.load_finding(DIAGNOSIS, Diagnosis)
    setting = gated.gate.setting if gated else diagnosis.setting if diagnosis and diagnosis.operators else None
    if setting is None:
        raise BadInputError(
            f"{folder}: holds neither a gate nor a diagnosis of operators; make a baseline with {MAKE_ONE}."
        )
    request = store.request_of(GATE if gated else DIAGNOSIS) or Request()
    found = gated.checkpoint if gated else checkpoint_of(store.about, request.model, request.workload)
    return Baseline(found, fragility_of(setting, store.readings()))


def checkpoint_of(about: About, name: str, data: str) -> Checkpoint:
    """Which checkpoint a run folder belongs to."""
    settings = dict(about.settings)
    architecture, dtype = str(settings.get("architecture", "")), str(settings.get("dtype", ""))
    return Checkpoint(name or about.model[:8], about.model, architecture, dtype, data)


def check_comparable(baseline: Baseline, setting: Setting, checkpoint: Checkpoint) -> None:
    """Refuse to compare what was not asked the same: another architecture, other data, other noise."""
    there, known = baseline.checkpoint, baseline.fragility.setting
    pairs = [
        ("architecture", there.architecture or "unknown", checkpoint.architecture),
        ("dtype", there.dtype, checkpoint.dtype),
        *((name, getattr(known, name), getattr(setting, name)) for name in _TERMS),
        ("workload", known.workload, setting.workload),
    ]
    seen = [f"{name} {_said(old)} there, {_said(new)} here" for name, old, new in pairs if old != new]
    if seen:
        hint = " (other items, or another tokenizer)" if len(seen) == 1 and seen[0].startswith("workload") else ""
        raise BadInputError(
            f"the baseline is of {there.name or 'another model'}, and cannot be compared: {'; '.join(seen)}{hint}. "
            f"Ask the same of both, or make a baseline with {MAKE_ONE}."
        )


def _said(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
