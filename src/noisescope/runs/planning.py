"""Plans the move of the model of a run folder: what `noisescope plan` does. It needs neither the model nor torch.

The plan itself is made in `noisescope.prescribe.migration`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from noisescope.core.migration import Plan
from noisescope.diagnose.comparison import Comparison
from noisescope.diagnose.whole import Diagnosis
from noisescope.prescribe.migration import migration
from noisescope.prescribe.validation import Move
from noisescope.report.markdown import to_markdown
from noisescope.report.plan import plan_json, plan_view
from noisescope.report.writing import write_file
from noisescope.runs.kept_keys import COMPARISON, DIAGNOSIS, PLAN
from noisescope.runs.reporting import origin_of
from noisescope.sweep.journal import RunFolderError
from noisescope.sweep.store import Request, Store


def plan(store: Store, move: Move, compared: Store | None = None, target: str | None = None) -> Plan:
    """The plan for what a run folder holds; `compared` is another folder whose comparison counts.

    The target is the device that is named, else that of the comparison, else that of the diagnosis.
    """
    diagnosis = store.load_finding(DIAGNOSIS, Diagnosis)
    if diagnosis is None:
        raise RunFolderError(f"{store.folder}: holds no diagnosis; make one with noisescope diagnose --out there.")
    holder = compared or store
    comparison = holder.load_finding(COMPARISON, Comparison)
    if compared is not None and comparison is None:
        raise RunFolderError(f"{compared.folder}: holds no comparison; make one with noisescope compare A B --out.")
    device = target or (comparison.other.device if comparison else "") or store.about.device or "cpu"
    request = holder.request_of(COMPARISON) or Request()
    move = replace(move, device=device, compared=request.command if comparison else "")
    found = migration(diagnosis, move, comparison)
    return replace(found, notes=(*found.notes, *_remarks(store, comparison)))


def _remarks(store: Store, comparison: Comparison | None) -> Sequence[str]:
    if comparison is None or not store.about.model or comparison.reference.model == store.about.model:
        return ()
    return (
        f"The reference of the comparison is {comparison.reference.name or 'a model'} in {comparison.reference.dtype}, "
        "not to the bit the model of the diagnosis: other weights, or the same in another dtype.",
    )


def write_plan(found: Plan, store: Store, request: Request) -> list[Path]:
    """Keep the plan in the run folder, and write it as Markdown and JSON beside it."""
    store.save_finding(PLAN, found, request)
    view = plan_view(found, origin_of(store, PLAN))
    return [
        write_file(store.folder / "plan.md", to_markdown(view).encode()),
        write_file(store.folder / "plan.json", plan_json(found).encode()),
    ]
