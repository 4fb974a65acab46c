"""Scores what a model gives on prepared batches: one value per sample, and how many of its positions were not finite.

It injects nothing and knows no statistics. Logits are judged in float32 (float64 if they are float64) and sums are
kept in float64. A position whose distribution does not exist, because a logit is NaN or +inf or all are -inf, is
counted and gets the worst value there is: CEILING nats of nll or KL, no agreement, the farthest embedding; a sample
with such a position has answered wrongly. CEILING also bounds finite nll and KL, so that nothing is worse than broken.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from noisescope.core.errors import BadInputError
from noisescope.measure.batches import Batch, Piece, Prepared
from noisescope.measure.calling import Model, device_of, hidden_of, logits_of, require_causal
from noisescope.measure.generation import Generated, answered, generate, stop_tokens
from noisescope.measure.workload import Choice

# exp(-100) is below every positive float32: less likely than the softmax of a float32 can say.
CEILING = 100.0
FARTHEST = 2.0
# Logits that are worked on at a time: 32 MiB of float32.
CHUNK = 1 << 23
MEMORY = 1 << 30


@dataclass(frozen=True)
class Scores:
    """One value per sample of a slice, and per sample the number of positions whose logits were not finite."""

    values: tuple[float, ...]
    broken: tuple[int, ...]


@dataclass(frozen=True)
class Mark:
    """What one scored stretch of a row, or one row, came to."""

    sample: int
    choice: int
    value: float
    broken: int


@dataclass(frozen=True, eq=False)
class Clean:
    """The clean run on a slice: its scores, and of each batch what a metric against clean compares with."""

    key: str
    start: int
    stop: int
    scores: Scores
    references: tuple[Tensor | None, ...]


def evaluate(
    model: Model, prepared: Prepared, start: int = 0, stop: int | None = None, clean: Clean | None = None
) -> Scores:
    """The scores of a model, as it now is, on a slice of a workload."""
    batches = prepared.batches(start, stop, device_of(model))
    references = _references(prepared, (start, start + len(prepared.workload.part(start, stop))), clean)
    marks: list[Mark] = []
    for batch, reference in zip(batches, references or [None] * len(batches), strict=True):
        marks += judge(prepared, batch, run(model, prepared, batch), reference)
    return collect(prepared, marks)


def clean_run(model: Model, prepared: Prepared, start: int = 0, stop: int | None = None, memory: int = MEMORY) -> Clean:
    """Run the model with nothing injected, score it, and keep, exactly, what later runs are compared with.

    What exceeds `memory` bytes is kept in a temporary file, which disappears with the last use of it.
    """
    batches = prepared.batches(start, stop, device_of(model))
    if prepared.view in ("answer", "choices"):
        require_causal(model, max(batches, key=lambda batch: max(batch.lengths)).inputs)
    store, marks, references = _Store(memory), list[Mark](), list[Tensor | None]()
    for batch in batches:
        seen = run(model, prepared, batch)
        reference = refer(prepared, batch, seen)
        marks += judge(prepared, batch, seen, reference)
        references.append(None if reference is None else store.keep(reference))
    end = start + len(prepared.workload.part(start, stop))
    return Clean(prepared.key, start, end, collect(prepared, marks), tuple(references))


def run(model: Model, prepared: Prepared, batch: Batch) -> Tensor | Generated:
    """What the model gives on a batch, as far as the metric looks at it: logits, embeddings, or new tokens."""
    with torch.no_grad():
        if prepared.view == "generation":
            stops = stop_tokens(model, prepared.tokenizer)
            return generate(model, batch, prepared.settings, stops)
        if prepared.view == "whole":
            return _embedding(hidden_of(model, batch.inputs), batch.inputs["attention_mask"])
        return logits_of(model(**batch.inputs))


def refer(prepared: Prepared, batch: Batch, seen: Tensor | Generated) -> Tensor | None:
    """What of a clean run on a batch has to be kept for the metric; None for one that compares with nothing."""
    if not prepared.metric.against_clean or not isinstance(seen, Tensor):
        return None
    if prepared.view == "whole":
        kept, fine = seen, seen.isfinite().all(-1)
    else:
        kept = seen[batch.rows, batch.positions]
        fine = torch.cat([part.logsumexp(-1) for part in kept.split(_rows(kept))]).isfinite()
    if not fine.all():
        raise BadInputError(
            f"{prepared.workload.name}: the clean run is not finite at {int((~fine).sum())} of {len(fine)} positions, "
            f"so nothing can be compared with it; expected a healthy model. Load it in float32, or measure accuracy."
        )
    return kept.argmax(-1) if prepared.metric.name == "top1_agreement" else kept


def judge(prepared: Prepared, batch: Batch, seen: Tensor | Generated, reference: Tensor | None) -> list[Mark]:
    """What a run on a batch came to, stretch by stretch."""
    if isinstance(seen, Generated):
        return [Mark(i, 0, *one) for i, one in zip(batch.samples, answered(prepared, batch, seen), strict=True)]
    if prepared.view == "whole":
        return _moved(batch, seen, reference)
    values, broken = _at_positions(prepared.metric.name, seen, batch, reference)
    sums = torch.zeros(len(batch.pieces), dtype=torch.float64).index_add_(0, batch.owner.cpu(), values)
    counts = torch.zeros(len(batch.pieces), dtype=torch.long).index_add_(0, batch.owner.cpu(), broken.long())
    return [
        Mark(piece.sample, piece.choice, total / _divisor(prepared, piece), count)
        for piece, total, count in zip(batch.pieces, sums.tolist(), counts.tolist(), strict=True)
    ]


def _divisor(prepared: Prepared, piece: Piece) -> int:
    """Per token; choices differ in length, and what a token is differs between models: per byte, or not at all."""
    if prepared.view != "choices":
        return len(piece.targets)
    return piece.size if prepared.metric.name == "accuracy" else 1


def collect(prepared: Prepared, marks: Iterable[Mark]) -> Scores:
    """The marks of all batches of a slice as one value per sample, in the order of the samples."""
    of: dict[int, dict[int, Mark]] = {}
    for mark in marks:
        of.setdefault(mark.sample, {})[mark.choice] = mark
    values = [_value(prepared, sample, of[sample]) for sample in sorted(of)]
    return Scores(tuple(values), tuple(sum(mark.broken for mark in of[sample].values()) for sample in sorted(of)))


def _value(prepared: Prepared, sample: int, marks: Mapping[int, Mark]) -> float:
    if prepared.view != "choices":
        value = next(iter(marks.values())).value
        return math.exp(value) if prepared.metric.geometric else value
    item = prepared.workload.items[sample]
    if not isinstance(item, Choice) or any(mark.broken for mark in marks.values()):
        return 0.0
    # Equal is not right: a model that says the same of everything knows nothing.
    return float(all(marks[item.answer].value < mark.value for i, mark in marks.items() if i != item.answer))


def _references(prepared: Prepared, span: tuple[int, int], clean: Clean | None) -> tuple[Tensor | None, ...]:
    if not prepared.metric.against_clean:
        return ()
    if clean is None or (clean.key, clean.start, clean.stop) != (prepared.key, *span):
        seen = "none" if clean is None else f"one of items {clean.start} to {clean.stop}, or of another preparation"
        raise BadInputError(
            f"{prepared.metric.name} compares with a clean run: {seen} was given; expected clean_run(...) of the same "
            f"preparation and items {span[0]} to {span[1]}."
        )
    return clean.references


def _rows(logits: Tensor) -> int:
    return max(1, CHUNK // logits.shape[-1])


def _at_positions(name: str, logits: Tensor, batch: Batch, reference: Tensor | None) -> tuple[Tensor, Tensor]:
    """The value at each scored position in float64, and whether its distribution is broken, on the CPU."""
    step, values, broken = _rows(logits), [], []
    for first in range(0, len(batch.targets), step):
        part = slice(first, first + step)
        rows = _judged(logits[batch.rows[part], batch.positions[part]])
        total = rows.logsumexp(-1)
        against = batch.targets[part] if reference is None else reference[part].to(rows.device)
        value = AT_POSITIONS.get(name, _nll)(rows, total, against).double()
        failed = ~total.isfinite()
        worst = 0.0 if name == "top1_agreement" else CEILING
        values.append(value.masked_fill(failed, worst).clamp(max=CEILING).cpu())
        broken.append(failed.cpu())
    return torch.cat(values), torch.cat(broken)


def _judged(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _nll(rows: Tensor, total: Tensor, targets: Tensor) -> Tensor:
    return total - rows.gather(-1, targets[:, None]).squeeze(-1)


def _agreement(rows: Tensor, total: Tensor, clean: Tensor) -> Tensor:
    return rows.argmax(-1) == clean


def _kl(rows: Tensor, total: Tensor, clean: Tensor) -> Tensor:
    """KL(p || q) from the logits of q and p.

    With d = q's logits - p's and m = E_p[d], it is log(1 + E_p[expm1(d - m)]): no large terms that cancel, so that it
    is exactly 0 for equal logits and good to 1e-3 down to 1e-9 in float32. Where that overflows, or logits are -inf,
    it is the plain difference in float64.
    """
    clean = _judged(clean)
    p = clean.softmax(-1)
    moved = (rows - clean).masked_fill(p == 0, 0.0)
    centred = moved - ((p * moved).sum(-1) / p.sum(-1))[:, None]
    stable = (p * centred.expm1()).sum(-1).log1p().clamp(min=0.0).double()
    # exp(80) is the last that float32 has room for, times a few thousand of its kind.
    steep = ~(centred.amax(-1) < 80.0)
    if steep.any():
        q_rows, p_rows = rows[steep].double(), clean[steep].double()
        logs = p_rows.log_softmax(-1), q_rows.log_softmax(-1)
        terms = (logs[0].exp() * (logs[0] - logs[1])).masked_fill(logs[0] == -math.inf, 0.0)
        stable[steep] = terms.sum(-1).clamp(min=0.0)
    return stable


AT_POSITIONS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = MappingProxyType(
    {"kl_to_clean": _kl, "top1_agreement": _agreement}
)


def _embedding(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean of the last hidden state over the tokens of each row, in float64."""
    kept = mask.bool()[:, :, None]
    return hidden.double().masked_fill(~kept, 0.0).sum(1) / kept.sum(1)


def _moved(batch: Batch, seen: Tensor, reference: Tensor | None) -> list[Mark]:
    if reference is None:
        raise BadInputError("embedding_shift compares with a clean run, and none was given.")
    # 1 - cos(a, b) = |a/|a| - b/|b||^2 / 2, which is exactly 0 for equal vectors.
    one, other = F.normalize(seen.cpu(), dim=-1), F.normalize(reference.cpu(), dim=-1)
    far = (one - other).square().sum(-1) / 2
    failed = ~seen.isfinite().all(-1).cpu()
    values = far.masked_fill(failed, FARTHEST).clamp(max=FARTHEST)
    return [Mark(i, 0, v, int(f)) for i, v, f in zip(batch.samples, values.tolist(), failed.tolist(), strict=True)]


class _Store:
    """Keeps tensors in memory up to a number of bytes, and from there on in a temporary file each."""

    def __init__(self, memory: int) -> None:
        self.room = memory

    def keep(self, tensor: Tensor) -> Tensor:
        kept = tensor.detach().cpu().contiguous()
        self.room -= kept.nbytes
        if self.room >= 0:
            return kept
        try:
            with tempfile.TemporaryFile() as file:
                file.truncate(kept.nbytes)
                mapped = np.memmap(file, dtype=np.uint8, mode="r+", shape=(kept.nbytes,))
                mapped[:] = kept.view(-1).view(torch.uint8).numpy()
        except OSError as problem:
            raise BadInputError(
                f"{kept.nbytes >> 20} MiB of clean logits cannot be kept in {tempfile.gettempdir()} ({problem}); "
                "expected room for them. Name another folder in TMPDIR, take fewer items, or measure nll."
            ) from problem
        return torch.from_numpy(mapped).view(kept.dtype).view(kept.shape)
