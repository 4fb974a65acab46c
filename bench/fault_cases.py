"""The cases of the bench of faults: plain dicts that say what is planted where. They run nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fault_subjects import DTYPES, REAL, SMALL, chance
from strange_faults import STRANGE
from torch import nn

import noisescope as ns
from noisescope.core.vocabulary import FAULT_KINDS, KINDS

Case = dict[str, Any]
MAGNITUDES = (0.3, 0.05)
SPARSITY = (1.0, 0.1, 0.01)
HELD = ("linear", "rms_norm", "layer_norm", "silu", "gelu")
FORWARD_ONLY = ("spike", "noise", "offset", "gain_drift", "saturation", "dead_zone")


def planted(model: Any) -> Iterator[Case]:
    """Every fault of the engine in every operator of every layer, and outside the layers."""
    places = dict.fromkeys((site.layer, site.operator) for site in ns.sites(model))
    for (layer, operator), kind, share, size in itertools.product(places, FAULT_KINDS, SPARSITY, MAGNITUDES):
        if operator in KINDS[kind].operators:
            yield {"kind": kind, "magnitude": size, "fraction": share, "layer": layer, "operator": operator}


def in_channels(model: Any) -> Iterator[Case]:
    """Faults of one channel, which has to be named."""
    here = {site.operator for site in ns.sites(model)}
    for layer, kind, operator in itertools.product(_layers(model), FAULT_KINDS, HELD):
        if operator in KINDS[kind].operators and operator in here:
            channel = int(chance(layer, kind, operator) * 32)
            yield {"kind": kind, "magnitude": 0.3, "channel": channel, "layer": layer, "operator": operator}


def strange(model: Any) -> Iterator[Case]:
    """Faults that the engine does not know, on modules of every layer, on embeddings and on what comes behind."""
    paths = {site.path for site in ns.sites(model)}
    whole = {path.rpartition(".")[0] for path in paths if any(c.isdigit() for c in path)}
    tables = {path for path, module in model.named_modules() if isinstance(module, nn.Embedding)}
    modules = {path for path, _ in model.named_modules()} - {""}
    for path, kind in itertools.product(sorted((paths | whole | tables) & modules), STRANGE):
        yield {"kind": kind, "path": path}


def several(model: Any) -> Iterator[Case]:
    """Two or three faults at once, in different operators or layers, all of which have to be listed."""
    places = list(dict.fromkeys((site.layer, site.operator) for site in ns.sites(model) if site.layer is not None))
    for number in range(200):
        count = 2 + number % 2
        order = sorted(places, key=lambda place: chance("several", number, place))[:count]
        kinds = sorted(FORWARD_ONLY, key=lambda kind: chance("several", number, kind))[:count]
        yield {"several": [[*place, kind] for place, kind in zip(order, kinds, strict=True)], "magnitude": 0.3}


def intermittent(model: Any) -> Iterator[Case]:
    """Faults that the engine does not know, which fire in one call in ten."""
    for case in strange(model):
        yield {**case, "rate": 0.1}


# With every group its share of the drawn cases.
GROUPS: dict[str, tuple[Callable[[Any], Iterator[Case]], float]] = {
    "planted": (planted, 0.55),
    "channel": (in_channels, 0.15),
    "strange": (strange, 0.15),
    "several": (several, 0.075),
    "intermittent": (intermittent, 0.075),
}


def drawn(cases: Iterable[Case], count: int, seed: int) -> list[Case]:
    """So many of the cases by chance. More of the same seed begin with the same ones."""
    return sorted(cases, key=lambda case: chance(seed, sorted(case.items())))[:count]


def _layers(model: Any) -> list[int]:
    return sorted({site.layer for site in ns.sites(model) if site.layer is not None})


def healthy() -> Iterator[Case]:
    """Models without a fault, the odd ones among them."""
    for name, dtype, attention, seed in itertools.product(SMALL, DTYPES, ("sdpa", "eager"), (5, 6)):
        yield {"group": "healthy", "model": name, "dtype": dtype, "attention": attention, "seed": seed}
    for name, dtype, seed in itertools.product(REAL, DTYPES, (5, 6, 7)):
        yield {"group": "healthy", "model": name, "dtype": dtype, "attention": "sdpa", "seed": seed}
