"""Traces what passes the borders of a model's layers: as the model is, and with noise where each of them begins.

A trace holds, at every border in the order of the run, either all tokens or a few random combinations of them, which
is what a capture has. It compares nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.records import Site, noise
from noisescope.measure.sketch import hashes, signs
from noisescope.sweep.dithering import values_of
from noisescope.sweep.injecting import inject
from noisescope.sweep.tapping import Tapping

PROBE = 0.05
ENDING = ":output"
# One batch: what the model is called with, and which of its tokens are not padding.
Given = tuple[Mapping[str, Any], Tensor | None]
# Of the rows of a tap, what is kept.
View = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Trace:
    """What each border showed, as [entry, channel], and the size of the values there, one for each entry."""

    values: Mapping[str, Tensor]
    sizes: Mapping[str, Tensor]


def trace_of(model: nn.Module, given: Sequence[Given], view: View | None = None) -> Trace:
    """One run over all batches. Without a view, every token is an entry."""
    tapping = Tapping(model, coarse=True)
    found: dict[str, list[Tensor]] = {}
    for inputs, mask in given:

        def run(inputs: Mapping[str, Any] = inputs) -> None:
            model(**inputs)

        for key, rows in values_of(tapping, run, mask).items():
            found.setdefault(key, []).append(torch.cat(rows).float().cpu())
    whole = {key: torch.cat(rows) for key, rows in found.items()}
    if view is None:
        return Trace(whole, {key: rows.norm(dim=1) for key, rows in whole.items()})
    values = {key: view(rows) for key, rows in whole.items()}
    return Trace(values, {key: rows.norm().expand(len(values[key])) for key, rows in whole.items()})


def combinations(seed: int, lines: int) -> View:
    """The view that a capture has: sums over all rows with the random signs that belong to its seed."""

    def view(rows: Tensor) -> Tensor:
        return signs(hashes(seed, 0, len(rows)), lines) @ rows.double()

    return view


def places_of(model: nn.Module, keys: Sequence[str]) -> list[Site]:
    """Every layer, and every module outside of them that is seen, in the order of the run."""
    layout = Tapping(model, coarse=True).layout
    found = []
    for path in (key.removesuffix(ENDING) for key in keys if key.endswith(ENDING)):
        layer = layout.layer_of(path)[0]
        found.append(Site(layer, "module" if layer is None else "layer", path))
    return found


def noisy_traces(
    model: nn.Module, given: Sequence[Given], places: Sequence[Site], seed: int, view: View | None
) -> Iterator[Trace]:
    """For every place, a trace with noise in it."""
    for number, place in enumerate(places):
        with _noise(model, place, seed + number):
            yield trace_of(model, given, view)


def _noise(model: nn.Module, place: Site, seed: int) -> AbstractContextManager[object]:
    if place.layer is None:
        return _spoiled(model.get_submodule(place.path), seed)
    spoiling = inject(model, noise(scale=PROBE), layers=place.layer, operators="linear", seed=seed)
    spoiling.strict = False
    return spoiling


@contextmanager
def _spoiled(module: nn.Module, seed: int) -> Iterator[None]:
    """A module outside the layers, such as an embedding, that is no operator of the engine."""
    drawn = torch.Generator().manual_seed(seed)

    def hook(_module: nn.Module, _args: object, out: object) -> object:
        if not isinstance(out, Tensor) or not out.is_floating_point():
            return out
        return out * (1 + PROBE * torch.randn(out.shape, generator=drawn)).to(out)

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
