"""Makes samples of batches of tensors that a user gives, for any torch module that is called with them as keywords.

It tokenises nothing and pads nothing. A row of a given batch is a sample, and rows of two batches never run together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from noisescope.core.codec import key_of
from noisescope.core.errors import BadInputError
from noisescope.measure.batches import Batch, Settings, Stretch
from noisescope.measure.calling import Model, device_of, hidden_of, is_causal, logits_of
from noisescope.measure.inputs import called_with, checked_batches
from noisescope.measure.metrics import USUAL, Metric, View, metric_for
from noisescope.measure.workload import span

SHAPE = "tensors"
# The label of a position that does not count, as torch and transformers have it.
IGNORED = -100
# A target that is not known: what is compared with the clean run needs none.
UNKNOWN = -1
NEED_TARGETS = ("nll", "perplexity")
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Part:
    """One given batch: what the model is called with, at which [row, position] it is scored, and what should follow.

    Tensors in `shared` are those of all rows; the others are cut by row.
    """

    inputs: Tensors
    shared: frozenset[str]
    scored: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.scored)

    def cut(self, start: int, stop: int) -> dict[str, Tensor]:
        """What the model is called with for some of the rows."""
        return {name: tensor if name in self.shared else tensor[start:stop] for name, tensor in self.inputs.items()}


@dataclass(frozen=True, eq=False)
class Given:
    """The rows of given batches, in order, under one metric. The key names the tensors and what of them is scored."""

    parts: tuple[Part, ...]
    metric: Metric
    key: str
    name: str = "the given batches"
    shape: str = SHAPE
    settings: Settings = field(default_factory=Settings)
    tokenizer: Any = None

    @property
    def view(self) -> View:
        """What of a row is scored."""
        return self.metric.views[self.shape]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def batches(self, start: int = 0, stop: int | None = None, device: torch.device | str = "cpu") -> list[Batch]:
        """The rows of a slice, each with those of its own batch alone."""
        return list(self._batches(*span(self, start, stop), device))

    def _batches(self, start: int, stop: int, device: torch.device | str) -> Iterator[Batch]:
        before = 0
        for part in self.parts:
            first, last = max(start - before, 0), min(stop - before, len(part))
            if first < last:
                yield _batch(part, first, last, before, device)
            before += len(part)


def _batch(part: Part, start: int, stop: int, before: int, device: torch.device | str) -> Batch:
    scored, targets = part.scored[start:stop], part.targets[start:stop]
    rows, positions = (column.to(device) for column in scored.nonzero(as_tuple=True))
    samples = tuple(range(before + start, before + stop))
    return Batch(
        inputs={name: tensor.to(device) for name, tensor in part.cut(start, stop).items()},
        samples=samples,
        lengths=tuple(scored.sum(1).tolist()),
        answers=("",) * len(samples),
        ends=((),) * len(samples),
        stretches=tuple(map(Stretch, samples)),
        rows=rows,
        positions=positions,
        targets=targets[scored].to(device),
        owner=rows,
    )


def given(model: Model, batches: Iterable[Tensors], metric: str | None = None) -> Given:
    """The rows of batches as samples for a model, which runs on a row of each kind of batch to show what it gives.

    Scored are the positions with a label other than -100, else those of a causal model that foretell a token, else
    all that are not masked. `metric` None takes top1_agreement, or embedding_shift for a model without logits. The
    model has to be in eval mode.
    """
    checked = [_checked(number, batch) for number, batch in enumerate(checked_batches(batches, model), start=1)]
    looks = _Looks(model)
    if metric is None:
        metric = USUAL[SHAPE] if looks.at(1, checked[0]).classes else "embedding_shift"
    chosen = metric_for(metric, SHAPE)
    parts = tuple(looks.part(number, rows, chosen) for number, rows in enumerate(checked, start=1))
    return Given(parts, chosen, key_of((metric, [_content(part) for part in parts])))


@dataclass(frozen=True, eq=False)
class _Rows:
    """The tensors of a batch, and which of them are not by row."""

    tensors: Tensors
    count: int
    shared: frozenset[str]

    def one(self, row: int, *, without: str = "") -> dict[str, Tensor]:
        named = {name: tensor for name, tensor in self.tensors.items() if name != without}
        return {n: tensor if n in self.shared else tensor[row : row + 1] for n, tensor in named.items()}

    def tokens(self, positions: int) -> tuple[Tensor, Tensor] | None:
        """The token at each [row, position], UNKNOWN if it came as an embedding, and whether it is there."""
        ids = self.tensors.get("input_ids")
        if ids is None and "inputs_embeds" in self.tensors:
            ids = torch.full(self.tensors["inputs_embeds"].shape[:2], UNKNOWN)
        # With a decoder of its own, a model's logits are not those of these tokens.
        if ids is None or "decoder_input_ids" in self.tensors or ids.shape != (self.count, positions):
            return None
        mask = self.tensors.get("attention_mask")
        there = mask.bool().cpu() if mask is not None and mask.shape == ids.shape else torch.ones(ids.shape).bool()
        return ids.cpu().long(), there


def _checked(number: int, batch: Tensors) -> _Rows:
    count = max(len(tensor) for tensor in batch.values() if tensor.ndim)
    shared = frozenset(name for name, tensor in batch.items() if not tensor.ndim or len(tensor) == 1 != count)
    odd = {name: tuple(batch[name].shape) for name in batch.keys() - shared if len(batch[name]) != count}
    if odd:
        raise BadInputError(f"batch {number} of {count} rows holds {odd}; expected the same number of rows in each.")
    return _Rows({name: batch[name] for name in sorted(batch)}, count, shared)


@dataclass(frozen=True, eq=False)
class _Look:
    """How many positions and classes a model gives logits for, and whether it has to be called with the labels."""

    positions: int
    classes: int
    with_labels: bool


class _Looks:
    """Runs a model on one row of each kind of batch."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.device = device_of(model)
        self._seen: dict[Any, _Look] = {}
        self._causal: bool | None = None

    def at(self, number: int, rows: _Rows) -> _Look:
        """What the model gives for a row of this batch."""
        kind = tuple((name, tensor.dtype, tensor.shape[1:]) for name, tensor in rows.tensors.items())
        if kind not in self._seen:
            with called_with(number, rows.tensors):
                self._seen[kind] = self._look(rows)
        return self._seen[kind]

    def _look(self, rows: _Rows) -> _Look:
        if "labels" in rows.tensors:
            try:
                return _Look(*self._sizes(rows.one(0, without="labels")), with_labels=False)
            except (TypeError, ValueError):
                return _Look(*self._sizes(rows.one(0)), with_labels=True)
        return _Look(*self._sizes(rows.one(0)), with_labels=False)

    def _sizes(self, inputs: Tensors) -> tuple[int, int]:
        """The positions and classes of the logits for one row; 0 and 0 if there are none."""
        with torch.no_grad():
            output = self.model(**self._there(inputs))
        try:
            _, positions, classes = logits_of(output).shape
        except BadInputError:
            return 0, 0
        return positions, classes

    def _there(self, inputs: Tensors) -> dict[str, Tensor]:
        return {name: tensor.to(self.device) for name, tensor in inputs.items()}

    def part(self, number: int, rows: _Rows, metric: Metric) -> Part:
        """A batch with what of it is scored."""
        look = self.at(number, rows)
        inputs = {name: t for name, t in rows.tensors.items() if name != "labels" or look.with_labels}
        if metric.views[SHAPE] == "whole":
            with torch.no_grad():
                hidden_of(self.model, self._there({name: t for name, t in rows.one(0).items() if name in inputs}))
            nothing = torch.zeros(rows.count, 0, dtype=torch.bool)
            return Part(inputs, rows.shared, nothing, nothing.long())
        if look.classes < 2:
            seen = "no logits" if not look.classes else "logits of one class, which are always equally likely"
            raise BadInputError(f"{metric.name} of batch {number}: the model gives {seen}; take embedding_shift.")
        targets = self._targets(rows, look)
        scored = targets != IGNORED
        _check_targets(number, metric, scored, targets, look.classes)
        return Part(inputs, rows.shared, scored, targets)

    def _targets(self, rows: _Rows, look: _Look) -> Tensor:
        """What the logits at [row, position] should foretell: a class, IGNORED, or UNKNOWN."""
        positions = look.positions
        labels, found = _labels(rows, positions), None if look.with_labels else rows.tokens(positions)
        tokens, there = found or (None, torch.ones(rows.count, positions, dtype=torch.bool))
        if tokens is not None and positions > 1 and self._is_causal(rows, there):
            following = tokens.masked_fill(~there, IGNORED) if labels is None else labels
            # Behind the last position nothing follows, and padding foretells nothing.
            last = torch.tensor([positions - 1])
            return following.roll(-1, 1).index_fill(1, last, IGNORED).masked_fill(~there, IGNORED)
        if labels is not None:
            return labels
        return torch.full((rows.count, positions), UNKNOWN).masked_fill(~there, IGNORED)

    def _is_causal(self, rows: _Rows, there: Tensor) -> bool:
        """Whether logits foretell what follows; it is the model's own, so that one row of one batch tells it."""
        longest = int(there.sum(1).argmax())
        if there[longest].sum() < 2:
            return True
        if self._causal is None:
            self._causal = is_causal(self.model, self._there(rows.one(longest, without="labels")))
        return self._causal


def _labels(rows: _Rows, positions: int) -> Tensor | None:
    """The labels [row, position], if there is one class for each position."""
    labels = rows.tensors.get("labels")
    if labels is None or labels.is_floating_point() or "labels" in rows.shared:
        return None
    labels = labels[:, None] if labels.ndim == 1 else labels
    return labels.cpu().long() if labels.shape == (rows.count, positions) else None


def _check_targets(number: int, metric: Metric, scored: Tensor, targets: Tensor, classes: int) -> None:
    bare = (~scored.any(1)).nonzero().flatten().tolist()
    if bare:
        raise BadInputError(f"batch {number}, row {bare[0] + 1}: nothing to score; expected two tokens or a label.")
    if metric.name in NEED_TARGETS and (targets == UNKNOWN).any():
        raise BadInputError(
            f"{metric.name} of batch {number}: it is not known what the model should say; expected labels, or the "
            "input_ids of a causal language model. kl_to_clean and top1_agreement need neither."
        )
    strange = targets[scored & ((targets < UNKNOWN) | (targets >= classes))]
    if len(strange):
        raise BadInputError(f"batch {number}: label {int(strange[0])}; expected 0 to {classes - 1}, or {IGNORED}.")


def _content(part: Part) -> str:
    """A hash of the tensors of a batch and of what of them is scored."""
    seen = hashlib.sha256()
    for name, tensor in [*part.inputs.items(), ("scored", part.scored), ("targets", part.targets)]:
        seen.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {name in part.shared};".encode())
        seen.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return seen.hexdigest()
