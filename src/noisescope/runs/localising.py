"""Finds the faulty operators of the machine that a model runs on: what `noisescope.locate` does.

Runs the model on the batches, has every call examined on the host, and repeats the runs for faults that come and go.
The conclusions are drawn in `noisescope.diagnose`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError, LayersNotFoundError, unknown_name
from noisescope.core.records import Site, is_number
from noisescope.diagnose.classic import conclude_classic
from noisescope.diagnose.localization import Localization, Suspect, Witnessed
from noisescope.diagnose.srdd import Runs, conclude
from noisescope.measure.judged import Judged
from noisescope.model.layout import layout_of
from noisescope.runs.capturing import checked, inputs_of
from noisescope.runs.confirming import Answers, Failed, answers_of, confirm, some_of
from noisescope.runs.fingerprinting import locate_by_fingerprint
from noisescope.sweep.evaluating import evaluating
from noisescope.sweep.responses import SCALES, responses
from noisescope.sweep.witnessing import Observer

Batch = Mapping[str, Any]
METHODS = ("srdd", "classic", "fingerprint")
CONFIDENCE = 0.95
REPEATS = 3


def locate(
    model: nn.Module,
    batches: Sequence[Batch],
    *,
    method: str = "srdd",
    reference: Any = None,
    seed: int = 0,
    repeats: int = REPEATS,
) -> Localization:
    """Name the operators that do not compute what they should on this machine, worst first, or say that none is found.

    Every batch runs `repeats` times. For a fault that fires in one run in ten pass `repeats_for(0.1)`. `seed` is that
    of the checks' own random numbers. The method "fingerprint" needs a `reference`: a healthy model, or the path of a
    capture of one on the same batches. The default method confirms its suspects by one more run in which the host
    computes their outputs; given a healthy model, or its `Answers`, as `reference`, it says how much of the way to its
    results that makes good.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise BadInputError(f"repeats {repeats!r}: expected a whole number >= 1.")
    model = getattr(model, "_orig_mod", model)
    asked = checked(batches)
    if method == "fingerprint":
        return locate_by_fingerprint(model, asked, reference, seed)
    with evaluating(model), torch.no_grad():
        if method == "classic":
            return _classic(model, asked, seed)
        found, failed, unchecked = _examined(model, asked, repeats, seed)
    verdict = conclude(found, Runs(repeats, CONFIDENCE, unchecked))
    if not verdict.suspects or not failed:
        return verdict
    run = _telling(verdict.suspects[0], found, failed)
    if reference is not None:
        answers = reference if isinstance(reference, Answers) else answers_of(reference, asked)
        run = replace(run, healthy=answers.rows[run.batch])
    return replace(verdict, confirmation=confirm(model, verdict.suspects, run, seed))


def _telling(worst: Suspect, found: Sequence[Witnessed], failed: Mapping[int, Failed]) -> Failed:
    """Of the runs whose end results were kept, one in which the worst suspect failed, if there is one."""
    places = {(one.batch, one.run) for one in found if one.site.path == worst.path and not one.judged.holds}
    return next((run for run in failed.values() if (run.batch, run.number) in places), next(iter(failed.values())))


def _classic(model: nn.Module, batches: Sequence[Batch], seed: int) -> Localization:
    paths = layout_of(model).layers
    if not paths:
        raise LayersNotFoundError("the classical probes compare layers, and no stack of layers was found.")
    inputs = [inputs_of(model, batch) for batch in batches]
    return conclude_classic(responses(model, inputs, len(paths), seed), SCALES, paths)


def _examined(
    model: nn.Module, batches: Sequence[Batch], repeats: int, seed: int
) -> tuple[list[Witnessed], dict[int, Failed], tuple[str, ...]]:
    """What the checks say of every call of all runs, the first run of each batch that failed, what was not checked."""
    _keep_freed_memory()
    found: list[Witnessed] = []
    failed: dict[int, Failed] = {}
    now = [0, 0]

    def tell(site: Site, judged: Judged, order: int) -> None:
        found.append(Witnessed(site, judged, now[0], now[1], order))

    observer = Observer(model, seed, tell)
    asked = [inputs_of(model, batch) for batch in batches]
    for now[1], now[0] in itertools.product(range(repeats), range(len(batches))):
        before = len(found)
        with observer.watching(now[0]):
            out = model(**asked[now[0]])
        if now[0] not in failed and any(not one.judged.holds for one in found[before:]):
            rows = some_of(out)
            failed |= {} if rows is None else {now[0]: Failed(asked[now[0]], rows, now[0], now[1])}
    return found, failed, tuple(f"{site.operator} at {site.path} ({why})" for site, why in observer.unchecked.items())


def _keep_freed_memory() -> None:
    """Have the C library reuse memory instead of giving it back: pages that come anew cost more than many checks.

    The GNU one gives back what is freed above a limit, and raises that to the largest block freed so far, up to 32 MiB.
    """
    torch.empty(31 << 20, dtype=torch.uint8)


def repeats_for(rate: float, confidence: float = CONFIDENCE) -> int:
    """How often to run so that a fault that fires in a share `rate` of the runs fires at least once."""
    for name, share in (("confidence", confidence), ("rate", rate)):
        if not is_number(share) or not 0 < share < 1:
            raise BadInputError(f"{name} {share!r}: expected a share between 0 and 1.")
    return math.ceil(math.log(1 - confidence) / math.log(1 - rate))
