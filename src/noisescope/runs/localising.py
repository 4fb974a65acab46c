"""Finds the faulty operators of the machine that a model runs on: what `noisescope.locate` does.

Runs the model on the batches, has every call examined on the host, and repeats the runs for faults that come and go.
The conclusions are drawn in `noisescope.diagnose`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError, LayersNotFoundError, unknown_name
from noisescope.core.records import Site, is_number
from noisescope.diagnose.classic import conclude_classic
from noisescope.diagnose.localization import Localization, Witnessed
from noisescope.diagnose.srdd import Runs, conclude
from noisescope.measure.calling import accepts
from noisescope.measure.judged import Judged
from noisescope.model.layout import layout_of
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
    capture of one on the same batches.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise BadInputError(f"repeats {repeats!r}: expected a whole number >= 1.")
    model = getattr(model, "_orig_mod", model)
    asked = _checked(batches)
    if method == "fingerprint":
        return locate_by_fingerprint(model, asked, reference, seed)
    with evaluating(model), torch.no_grad():
        if method == "classic":
            return _classic(model, asked, seed)
        found, unchecked = _examined(model, asked, repeats, seed)
    return conclude(found, Runs(repeats, CONFIDENCE, unchecked))


def _classic(model: nn.Module, batches: Sequence[Batch], seed: int) -> Localization:
    paths = layout_of(model).layers
    if not paths:
        raise LayersNotFoundError("the classical probes compare layers, and no stack of layers was found.")
    inputs = [_inputs(model, batch) for batch in batches]
    return conclude_classic(responses(model, inputs, len(paths), seed), SCALES, paths)


def _examined(
    model: nn.Module, batches: Sequence[Batch], repeats: int, seed: int
) -> tuple[list[Witnessed], tuple[str, ...]]:
    """What the checks say of every call of all runs, and what they could not check."""
    _keep_freed_memory()
    found: list[Witnessed] = []
    now = [0, 0]

    def tell(site: Site, judged: Judged, order: int) -> None:
        found.append(Witnessed(site, judged, now[0], now[1], order))

    observer = Observer(model, seed, tell)
    asked = [_inputs(model, batch) for batch in batches]
    for now[1], now[0] in itertools.product(range(repeats), range(len(batches))):
        with observer.watching(now[0]):
            model(**asked[now[0]])
    return found, tuple(f"{site.operator} at {site.path} ({why})" for site, why in observer.unchecked.items())


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


def _checked(batches: Sequence[Batch]) -> list[Batch]:
    if isinstance(batches, Mapping | Tensor) or not batches or not all(isinstance(b, Mapping) for b in batches):
        raise BadInputError("batches: expected a list of at least one dict of tensors, such as [{'input_ids': ids}].")
    return list(batches)


def _inputs(model: nn.Module, batch: Batch) -> dict[str, Any]:
    # A cache would make every run begin where the last one ended.
    more = {"use_cache": False} if "use_cache" not in batch and accepts(model, "use_cache") else {}
    return {**{name: value for name, value in batch.items() if name != "labels"}, **more}
