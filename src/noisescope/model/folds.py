"""Finds where a factor per channel can move from one module into the linear layers behind it without any change.

A fold divides the output channels of its writer, a norm or a linear layer, and multiplies the input columns of its
readers. Names decide nothing: every fold is tried on a sample with powers of two, by which a product is exact, and is
none if a bit of the answer changes. No weight is changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from noisescope.core.layout import Layout
from noisescope.model.layout import layout_of
from noisescope.model.linears import linear_groups
from noisescope.model.probing import Probe

PLAIN, ONE_PLUS = "plain", "one plus"
# The gain that a weight of a norm stands for, and the weight of a gain.
GAINS: Mapping[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = MappingProxyType(
    {PLAIN: (lambda weight: weight, lambda gain: gain), ONE_PLUS: (lambda weight: weight + 1, lambda gain: gain - 1)}
)
NO_WRITER = "what it reads is neither a norm's output nor in proportion to a linear layer's"
Rows = Sequence[int]


@dataclass(frozen=True)
class Fold:
    """A writer, its readers, and for each input column of those the output channel of the writer that it comes from.

    `gain` is a key of GAINS for a norm; empty for a linear layer.
    """

    layer: int | None
    writer: str
    readers: tuple[str, ...]
    channels: tuple[int, ...]
    gain: str = ""


@dataclass(frozen=True)
class Folds:
    """The folds in the order of the model, and by path why other linear layers of the stack have none."""

    folds: tuple[Fold, ...]
    without: Mapping[str, str]


def folds_of(model: nn.Module, batch: Mapping[str, Tensor] | None = None) -> Folds:
    """Every fold of a model in eval mode."""
    paths = [linear.path for group in linear_groups(model, batch).groups for linear in group.linears]
    probe, layout = Probe(model, paths, batch), layout_of(model)
    found = list(_from_norms(probe, layout))
    read = {reader for fold in found for reader in fold.readers}
    found += _from_linears(probe, layout, [path for path in paths if path not in read])
    sound = _sound(probe, found)
    without = dict.fromkeys(paths, NO_WRITER)
    for fold in found:
        without.update(dict.fromkeys(fold.readers, f"something else reads what {fold.writer} gives"))
    for fold in sound:
        for reader in fold.readers:
            del without[reader]
    return Folds(tuple(sorted(sound, key=lambda fold: paths.index(fold.readers[0]))), without)


def _sound(probe: Probe, folds: Sequence[Fold]) -> list[Fold]:
    """Those that change no bit of the answer; tried together first, and one by one only if that fails."""
    return list(folds) if _stays(probe, folds) else [fold for fold in folds if _stays(probe, [fold])]


def _stays(probe: Probe, folds: Sequence[Fold]) -> bool:
    outputs: dict[str, Tensor] = {}
    inputs: dict[str, Tensor] = {}
    for fold in folds:
        channels = list(fold.channels)
        factors = _factors(len(channels) if fold.gain else probe.rows(fold.writer))
        # Other channels of the writer go elsewhere: queries and keys, where values are folded.
        outputs[fold.writer] = torch.ones_like(factors).index_put_((torch.tensor(channels),), 1 / factors[channels])
        inputs |= dict.fromkeys(fold.readers, factors[channels])
    return probe.stays(outputs, inputs)


def _factors(count: int) -> Tensor:
    """Powers of two from 1/4 to 4 in no order of their own."""
    return 2.0 ** ((torch.arange(count, dtype=torch.float64) * 7 + 3) % 5 - 2)


def _from_norms(probe: Probe, layout: Layout) -> Iterator[Fold]:
    for path, (given, made) in probe.made.items():
        readers = tuple(reader for reader, seen in probe.given.items() if _is_same(seen, made))
        gain = _gain(probe.model.get_submodule(path), given, made) if readers else None
        if gain is not None:
            yield Fold(layout.layer_of(readers[0])[0], path, readers, tuple(range(made.shape[-1])), gain)


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same memory with the same channels."""
    return (one.data_ptr(), one.numel(), one.shape[-1]) == (other.data_ptr(), other.numel(), other.shape[-1])


def _gain(module: nn.Module, given: Tensor, made: Tensor) -> str | None:
    """How the weight has to be read so that a divided gain gives a divided output; None if no way does."""
    factors = _factors(made.shape[-1]).to(made.device)
    limit = 32 * torch.finfo(made.dtype).eps
    for gain in GAINS:
        with torch.no_grad():
            out = functional_call(module, divided(module, gain, factors), (given,))
        if torch.allclose(out.double() * factors, made.double(), rtol=limit, atol=limit * float(made.abs().max())):
            return gain
    return None


def divided(module: nn.Module, gain: str, factors: Tensor) -> dict[str, Tensor]:
    """The parameters with which a norm gives its output divided by these factors, in their own dtype."""
    of_weight, of_gain = GAINS[gain]
    own = {name: weight.detach() for name, weight in module.named_parameters(recurse=False)}
    found = {name: weight.double() / factors for name, weight in own.items()}
    found["weight"] = of_gain(of_weight(own["weight"].double()) / factors)
    return {name: weight.to(own[name].dtype) for name, weight in found.items()}


def _from_linears(probe: Probe, layout: Layout, readers: Sequence[str]) -> Iterator[Fold]:
    """Folds from a linear layer through what lies between into another one of the same layer of the model."""
    found: dict[str, tuple[str, Rows]] = {}
    for writers in _namesakes(probe, layout):
        for choose in ROWS:
            left = {path: writers.get(layout.layer_of(path)[0]) for path in readers if path not in found}
            found |= _in_proportion(probe, left, choose)
    for path, channels in _channels(probe, found).items():
        yield Fold(layout.layer_of(path)[0], found[path][0], (path,), channels)


def _namesakes(probe: Probe, layout: Layout) -> list[dict[int | None, str]]:
    """The linear layers of one name, by layer of the model: they are tried in one run."""
    found: dict[str, dict[int | None, str]] = {}
    for path in probe.given:
        layer = layout.layer_of(path)[0]
        name = path if layer is None else path.removeprefix(layout.layers[layer])
        found.setdefault(name, {})[layer] = path
    return list(found.values())


def _all(rows: int, columns: int, config: Any) -> Rows:
    return range(rows)


def _last_half(rows: int, columns: int, config: Any) -> Rows:
    return range(columns, rows) if rows == 2 * columns else ()


def _values_last(rows: int, columns: int, config: Any) -> Rows:
    """Behind all queries, of as many channels as are read, and the keys."""
    return range(rows - (rows - columns) // 2, rows) if columns < rows <= 3 * columns else ()


def _values_by_head(rows: int, columns: int, config: Any) -> Rows:
    """The last third of each head."""
    heads = getattr(config, "num_attention_heads", None) or 0
    if rows != 3 * columns or not heads or columns % heads:
        return ()
    size = columns // heads
    return [row for row in range(rows) if row % (3 * size) >= 2 * size]


# Which rows of a linear layer may go on in proportion, by its rows, the columns of the reader, and the configuration.
ROWS: Sequence[Callable[[int, int, Any], Rows]] = (_all, _last_half, _values_last, _values_by_head)


def _in_proportion(
    probe: Probe, writers: Mapping[str, str | None], choose: Callable[[int, int, Any], Rows]
) -> dict[str, tuple[str, Rows]]:
    """The readers of which every channel doubles with the chosen rows of a writer."""
    model: Any = probe.model
    config = getattr(model, "config", None)
    tried: dict[str, tuple[str, Rows]] = {}
    for path, writer in writers.items():
        if writer is not None and writer != path:
            rows = choose(probe.rows(writer), probe.columns(path), config)
            tried |= {path: (writer, rows)} if rows else {}
    # Rows of one writer that are chosen for several readers are the same or exclude each other.
    answers = probe.doubling(dict(tried.values())) if tried else {}
    return {path: pair for path, pair in tried.items() if _doubles(answers[path].doubled, answers[path].same)}


def _doubles(doubled: Tensor, same: Tensor) -> bool:
    return bool(doubled.all()) and not bool(same.all())


def _channels(probe: Probe, found: Mapping[str, tuple[str, Rows]]) -> dict[str, tuple[int, ...]]:
    """The row of the writer that each column comes from: rows show their numbers in binary, one digit a run."""
    digits = max((len(rows) - 1 for _, rows in found.values()), default=0).bit_length()
    numbers = {path: torch.zeros(probe.columns(path), dtype=torch.long) for path in found}
    silent, unclear = {path: torch.zeros(probe.columns(path), dtype=torch.bool) for path in found}, set()
    for digit in range(digits):
        marked = {writer: [row for at, row in enumerate(rows) if at >> digit & 1] for writer, rows in found.values()}
        answers = probe.doubling(marked)
        for path in found:
            doubled, same = answers[path]
            numbers[path] += (doubled & ~same).long() << digit
            silent[path] |= doubled & same
            unclear |= set() if bool((doubled | same).all()) else {path}
    named = {path: _rows_of(numbers[path], silent[path], found[path][1]) for path in found if path not in unclear}
    return {path: rows for path, rows in named.items() if rows}


def _rows_of(numbers: Tensor, silent: Tensor, rows: Rows) -> tuple[int, ...]:
    """The rows of these numbers. Columns that were 0 throughout say nothing; they are in order if all others are."""
    order = torch.arange(len(numbers))
    if bool(silent.any()):
        is_ordered = len(rows) == len(numbers) and torch.equal(numbers[~silent], order[~silent])
        numbers = order if is_ordered else order + len(rows)
    return tuple(rows[number] for number in numbers.tolist()) if int(numbers.max()) < len(rows) else ()
