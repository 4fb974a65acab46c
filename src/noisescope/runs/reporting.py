"""A run folder as a report: reads every finding that is there, makes one view of them and writes it in some formats.

It needs neither the model nor torch, judges nothing, and changes nothing in the folder but the files of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from noisescope.core.migration import Plan
from noisescope.core.precision import PrecisionMap
from noisescope.core.smoothing import Smoothing
from noisescope.diagnose.bit_curve import BitCurves
from noisescope.diagnose.comparison import Comparison
from noisescope.diagnose.experiment import Experiment
from noisescope.diagnose.fault_tests import FaultPlan, FaultTests
from noisescope.diagnose.gated import Gated
from noisescope.diagnose.localization import Localization
from noisescope.diagnose.robustness import Robustness
from noisescope.diagnose.whole import Diagnosis
from noisescope.measure.profile import Profile
from noisescope.report.comparison import comparison_view
from noisescope.report.diagnosis import diagnosis_view
from noisescope.report.experiment import experiment_view
from noisescope.report.fault_part import cases_view, curves_view, outcomes_view
from noisescope.report.gate_part import gate_view
from noisescope.report.joined import joined_view
from noisescope.report.localization import localization_view
from noisescope.report.origin import Origin
from noisescope.report.plan import plan_view
from noisescope.report.precision import precision_view
from noisescope.report.robustness import robustness_view
from noisescope.report.smoothing import smoothing_view
from noisescope.report.view import View
from noisescope.report.writing import DEFAULT, write_report
from noisescope.runs.kept_keys import (
    BIT_CURVES,
    CALIBRATION,
    COMPARISON,
    DIAGNOSIS,
    EXPERIMENT,
    FAULT_PLAN,
    FAULTS,
    GATE,
    LOCALIZATION,
    PLAN,
    PRECISION,
    ROBUSTNESS,
    SMOOTHING,
    profile_key,
)
from noisescope.sweep.journal import RunFolderError
from noisescope.sweep.store import Request, Store

_SHORT = 8
_PARTS: tuple[tuple[str, str, type[Any], Callable[..., View]], ...] = (
    ("Localisation", LOCALIZATION, Localization, localization_view),
    ("Comparison", COMPARISON, Comparison, comparison_view),
    ("Diagnosis", DIAGNOSIS, Diagnosis, diagnosis_view),
    ("Robustness", ROBUSTNESS, Robustness, robustness_view),
    ("Migration plan", PLAN, Plan, plan_view),
    ("Precision map", PRECISION, PrecisionMap, precision_view),
    ("Smoothing", SMOOTHING, Smoothing, smoothing_view),
    ("Gate", GATE, Gated, gate_view),
    ("Experiment", EXPERIMENT, Experiment, experiment_view),
    # Of two under one title the later one is shown: cases that were run instead of cases that were made.
    ("Fault tests", FAULT_PLAN, FaultPlan, cases_view),
    ("Fault tests", FAULTS, FaultTests, outcomes_view),
    ("Bit sensitivity", BIT_CURVES, BitCurves, curves_view),
)
# In whose request the model and the workload are looked up first.
_NAMES = (
    DIAGNOSIS,
    ROBUSTNESS,
    LOCALIZATION,
    COMPARISON,
    PLAN,
    PRECISION,
    SMOOTHING,
    GATE,
    FAULTS,
    FAULT_PLAN,
    BIT_CURVES,
    EXPERIMENT,
)


def report(folder: str | Path, formats: Iterable[str] = DEFAULT) -> list[Path]:
    """Write the report of a run folder into it; returns the files."""
    return write_report(view_of(Store(folder)), folder, formats)


def view_of(store: Store) -> View:
    """All that was concluded in a run folder."""
    views = dict(_views(store))
    if not views:
        raise RunFolderError(
            f"{store.folder}: holds {len(store.readings())} readings and no finding of {', '.join(_NAMES[:-1])} or "
            f"{_NAMES[-1]}, so there is nothing to report; repeat the command that made it: "
            f"{store.about.asked or 'not noted'}"
        )
    asked = [store.request_of(name) for name in _NAMES]
    request = next((one for one in asked if one is not None), Request())
    return joined_view(views, f"Report on {_model_name(store, request)}")


def _views(store: Store) -> Iterator[tuple[str, View]]:
    """A view of every finding by its name; a fault of the machine comes before what is measured on it."""
    for title, name, kind, view in _PARTS:
        found = store.load_finding(name, kind)
        if found is not None:
            yield title, view_of_diagnosis(store, found) if name == DIAGNOSIS else view(found, origin_of(store, name))


def view_of_diagnosis(store: Store, diagnosis: Diagnosis) -> View:
    """The diagnosis that a run folder keeps, alone."""
    return diagnosis_view(diagnosis, origin_of(store, DIAGNOSIS), _profile(store, diagnosis.setting.scale))


def _profile(store: Store, scale: float) -> Profile | None:
    """What screening predicted; None where there was none."""
    return store.kept("profile", profile_key(store.about.workload, scale), Profile.from_arrays)


def origin_of(store: Store, name: str) -> Origin:
    """Where a finding comes from, as far as the folder says."""
    about, request = store.about, store.request_of(name) or Request()
    settings = dict(about.settings)
    hashes = (("model", about.model), ("workload", about.workload), (CALIBRATION, str(settings.pop(CALIBRATION, ""))))
    return Origin(
        model=_model_name(store, request),
        workload=request.workload,
        device=about.device,
        command=request.command or about.asked,
        remark=request.remark,
        versions=about.versions,
        settings=tuple((name, str(value)) for name, value in settings.items()),
        fingerprints=tuple((what, mark) for what, mark in hashes if mark),
    )


def _model_name(store: Store, request: Request) -> str:
    return request.model or f"model {store.about.model[:_SHORT]}".strip()
