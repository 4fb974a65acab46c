"""Where a fault test strikes in a model at hand: its sites by name, or the operator that makes the channels it names.

It leaves nothing in the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError
from noisescope.core.records import Injection, Site, fault
from noisescope.diagnose.fault_tests import FaultCase, Located
from noisescope.diagnose.localization import Localization, Suspect
from noisescope.inject.where import first_tensor
from noisescope.sweep.evaluating import evaluating, without_cache
from noisescope.sweep.injecting import Injecting

Inputs = Mapping[str, Any]


def injection_of(case: FaultCase, model: nn.Module, sites: Sequence[Site], inputs: Inputs) -> Injection:
    """The fault of a case as an injection into this model; a place that the model does not have is refused."""
    if not case.path:
        return case.injection()
    site = _output_site(case, sites) if case.side == "output" else _input_site(case, model, sites, inputs)
    placed = Injection.of(case.corruption, layers=[site.layer], operators=site.operator)
    return replace(placed, paths=(site.path,))


def _output_site(case: FaultCase, sites: Sequence[Site]) -> Site:
    found = next((site for site in sites if site.path == case.path), None)
    if found is None:
        raise BadInputError(f"{case.path}: this model runs no operator there, so nothing can be planted at its output.")
    return found


def _input_site(case: FaultCase, model: nn.Module, sites: Sequence[Site], inputs: Inputs) -> Site:
    """The last site before the module whose channels, when disturbed, disturb these at its input and no others."""
    own = next((place for place, site in enumerate(sites) if site.path == case.path), None)
    if own is None:
        raise BadInputError(f"{case.path}: this model runs no operator there, so its input is not known.")
    before = [site for site in sites[:own] if site.layer == sites[own].layer and site.path != case.path]
    with evaluating(model), without_cache(model), torch.no_grad():
        healthy = _input_of(model, case.path, inputs)
        for site in reversed(before):
            if _moved(case, model, site, inputs, healthy) == set(case.channels or ()):
                return site
    raise BadInputError(
        f"{case.path}: no single operator of its layer makes channel{'' if len(case.channels or ()) == 1 else 's'} "
        f"{', '.join(map(str, case.channels or ()))} of its input alone, so nothing can be planted there."
    )


def _moved(case: FaultCase, model: nn.Module, site: Site, inputs: Inputs, healthy: Tensor) -> set[int]:
    """The channels at the input of the module that differ when those of the same number at a site are shifted."""
    shift = Injection.of(
        fault("offset", 1.0, channels=case.channels or ()), layers=[site.layer], operators=site.operator
    )
    try:
        with Injecting(model, replace(shift, paths=(site.path,)), strict=False):
            seen = _input_of(model, case.path, inputs)
    except BadInputError:
        return set()  # the site has fewer channels
    differs = (seen != healthy).reshape(-1, seen.shape[-1]).any(0)
    return set(differs.nonzero().flatten().tolist())


def _input_of(model: nn.Module, path: str, inputs: Inputs) -> Tensor:
    held: list[Tensor] = []
    with _hearing(model.get_submodule(path), held):
        model(**inputs)
    return held[0]


@contextmanager
def _hearing(module: nn.Module, held: list[Tensor]) -> Iterator[None]:
    def hear(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = first_tensor(args, kwargs)
        if given is not None:
            held.append(given.detach().clone())

    handle = module.register_forward_pre_hook(hear, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def located_in(found: Localization, injection: Injection) -> Located:
    """Whether the suspects of a localisation stand where a fault was planted."""
    there = [_stands(suspect, injection) for suspect in found.suspects]
    rank = there.index(True) + 1 if True in there else None
    return Located(found.verdict, rank, len(there), there.count(False))


def _stands(suspect: Suspect, injection: Injection) -> bool:
    in_layer = injection.layers is None or suspect.layer in injection.layers
    of_kind = injection.operators is None or suspect.operator in injection.operators
    return in_layer and of_kind and (injection.paths is None or suspect.path in injection.paths)


def words_of(injection: Injection) -> str:
    """Where that is, for a person; empty where the case says it itself."""
    if injection.paths is None:
        return ""
    return f"{', '.join(injection.operators or ())} at {', '.join(injection.paths)}"
