"""Scores what a model gives on prepared batches: one value per sample, and how many of its positions were not finite.

It injects nothing and knows no statistics. Logits are judged in float32 (float64 if they are float64) and sums are
kept in float64. A position whose distribution does not exist, because a logit is NaN or +inf or all are -inf, is
counted and gets the worst value there is: CEILING nats of nll or KL, no agreement, the farthest embedding; a sample
with such a position has answered wrongly. CEILING also bounds finite nll and KL, so that nothing is worse than broken.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from noisescope.core.errors import BadInputError
from noisescope.measure.batches import Batch, Samples, Stretch
from noisescope.measure.calling import Model, device_of, hidden_of, logits_at, require_causal
from noisescope.measure.generation import Generated, answered, generate
from noisescope.measure.workload import span

# exp(-100) is below every positive float32: less likely than the softmax of a float32 can say.
CEILING = 100.0
FARTHEST = 2.0
# A token of less than exp(-50) adds nothing that a float32 could tell.
FAINT = -50.0
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
    """What one scored stretch came to, or one row."""

    of: Stretch
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
    model: Model, samples: Samples, start: int = 0, stop: int | None = None, clean: Clean | None = None
) -> Scores:
    """The scores of a model, as it now is, on a slice of the samples."""
    batches = samples.batches(start, stop, device_of(model))
    references = _references(samples, span(samples, start, stop), clean)
    marks: list[Mark] = []
    for batch, reference in zip(batches, references or [None] * len(batches), strict=True):
        marks += judge(samples, batch, run(model, samples, batch), reference)
    return collect(samples, marks)


def clean_run(model: Model, samples: Samples, start: int = 0, stop: int | None = None, memory: int = MEMORY) -> Clean:
    """Run the model with nothing injected, score it, and keep, exactly, what later runs are compared with.

    What exceeds `memory` bytes is kept in a temporary file, which disappears with the last use of it.
    """
    batches = samples.batches(start, stop, device_of(model))
    if samples.view in ("answer", "choices"):
        require_causal(model, max(batches, key=lambda batch: max(batch.lengths)).inputs)
    store, marks, references = _Store(memory), list[Mark](), list[Tensor | None]()
    for batch in batches:
        seen = run(model, samples, batch)
        reference = refer(samples, seen)
        marks += judge(samples, batch, seen, reference)
        references.append(None if reference is None else store.keep(reference))
    return Clean(samples.key, *span(samples, start, stop), collect(samples, marks), tuple(references))


def run(model: Model, samples: Samples, batch: Batch) -> Tensor | Generated:
    """What the model gives on a batch, as far as the metric looks at it.

    That is the logits at the scored positions, the embeddings of the rows, or new tokens.
    """
    with torch.no_grad():
        if samples.view == "generation":
            return generate(model, batch, samples.settings, samples.tokenizer)
        if samples.view == "whole":
            return _embedding(hidden_of(model, batch.inputs), batch.inputs.get("attention_mask"))
        return logits_at(model, batch.inputs, batch.rows, batch.positions)


def refer(samples: Samples, seen: Tensor | Generated) -> Tensor | None:
    """What of a clean run on a batch has to be kept for the metric; None for one that compares with nothing."""
    if not samples.metric.against_clean or not isinstance(seen, Tensor):
        return None
    if samples.view == "whole":
        fine = seen.isfinite().all(-1)
    else:
        fine = torch.cat([_judged(part).logsumexp(-1) for part in seen.split(_rows(seen))]).isfinite()
    if not fine.all():
        raise BadInputError(
            f"{samples.name}: the clean run is not finite at {int((~fine).sum())} of {len(fine)} positions, "
            f"so nothing can be compared with it; expected a healthy model. Load it in float32, or measure accuracy."
        )
    return seen.argmax(-1) if samples.metric.name == "top1_agreement" else seen


def judge(samples: Samples, batch: Batch, seen: Tensor | Generated, reference: Tensor | None) -> list[Mark]:
    """What a run on a batch came to, stretch by stretch."""
    if isinstance(seen, Generated):
        marks = answered(samples.tokenizer, batch, seen)
        return [Mark(Stretch(sample), *mark) for sample, mark in zip(batch.samples, marks, strict=True)]
    if samples.metric.against_clean and reference is None:
        raise BadInputError(f"{samples.metric.name} compares with a clean run, and none was given.")
    against = batch.targets if reference is None else reference
    if samples.view == "whole":
        return _moved(batch, seen, against)
    values, broken = _at_positions(samples.metric.name, seen, against)
    owner, nothing = batch.owner.cpu(), torch.zeros(len(batch.stretches), dtype=torch.float64)
    sums, counts = nothing.index_add(0, owner, values), nothing.index_add(0, owner, broken.double())
    sizes = _sizes(samples, batch.stretches, owner)
    columns = zip(batch.stretches, (sums / sizes).tolist(), counts.tolist(), strict=True)
    return [Mark(stretch, value, int(count)) for stretch, value, count in columns]


def _sizes(samples: Samples, stretches: Sequence[Stretch], owner: Tensor) -> Tensor:
    """Per token; choices differ in length, and what a token is differs between models: per byte, or not at all."""
    if samples.view != "choices":
        return owner.bincount(minlength=len(stretches))
    return torch.tensor([stretch.size if samples.metric.name == "accuracy" else 1 for stretch in stretches])


def collect(samples: Samples, marks: Iterable[Mark]) -> Scores:
    """The marks of all batches of a slice as one value per sample, in the order of the samples."""
    of: dict[int, list[Mark]] = {}
    for mark in marks:
        of.setdefault(mark.of.sample, []).append(mark)
    ordered = [of[sample] for sample in sorted(of)]
    values = tuple(_value(samples, of_one) for of_one in ordered)
    return Scores(values, tuple(sum(mark.broken for mark in of_one) for of_one in ordered))


def _value(samples: Samples, marks: Sequence[Mark]) -> float:
    if samples.view != "choices":
        return math.exp(marks[0].value) if samples.metric.geometric else marks[0].value
    if any(mark.broken for mark in marks):
        return 0.0
    # Equal is not right: a model that says the same of everything knows nothing.
    right = next(mark.value for mark in marks if mark.of.right)
    return float(all(right < mark.value for mark in marks if not mark.of.right))


def _references(samples: Samples, within: tuple[int, int], clean: Clean | None) -> tuple[Tensor | None, ...]:
    if not samples.metric.against_clean:
        return ()
    if clean is None or (clean.key, clean.start, clean.stop) != (samples.key, *within):
        seen = "none" if clean is None else f"one of items {clean.start} to {clean.stop}, or of another preparation"
        raise BadInputError(
            f"{samples.metric.name} compares with a clean run: {seen} was given; expected clean_run(...) of the same "
            f"preparation and items {within[0]} to {within[1]}."
        )
    return clean.references


def _rows(logits: Tensor) -> int:
    return max(1, CHUNK // logits.shape[-1])


def _at_positions(name: str, logits: Tensor, against: Tensor) -> tuple[Tensor, Tensor]:
    """The value at each scored position in float64, and whether its distribution is broken, on the CPU."""
    step, values, broken = _rows(logits), [], []
    for some, beside in zip(logits.split(step), against.split(step), strict=True):
        rows = _judged(some)
        total = rows.logsumexp(-1)
        value = AT_POSITIONS.get(name, _nll)(rows, total, beside.to(rows.device)).double()
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
    is exactly 0 for equal logits and good to 1e-3 down to 1e-9 in float32. Where that overflows, where logits are -inf,
    or where q allows what p is too small to be written for, it is the plain difference in float64.
    """
    clean = _judged(clean)
    p = clean.softmax(-1)
    gone = p == 0
    moved = (rows - clean).masked_fill(gone, 0.0)
    centred = moved - ((p * moved).sum(-1) / p.sum(-1))[:, None]
    stable = (p * centred.expm1()).sum(-1).log1p().clamp(min=0.0).double()
    # exp(80) is the last that float32 has room for, times a few thousand of its kind.
    steep = ~(centred.amax(-1) < 80.0)
    if gone.any():
        steep |= (gone & (rows - total[:, None] > FAINT)).any(-1)
    if steep.any():
        q_rows, p_rows = rows[steep].double(), clean[steep].double()
        logs = p_rows.log_softmax(-1), q_rows.log_softmax(-1)
        terms = (logs[0].exp() * (logs[0] - logs[1])).masked_fill(logs[0] == -math.inf, 0.0)
        stable[steep] = terms.sum(-1).clamp(min=0.0)
    return stable


AT_POSITIONS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = MappingProxyType(
    {"kl_to_clean": _kl, "top1_agreement": _agreement}
)


def _embedding(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of the last hidden state over the tokens of each row, or over all of it if it is not by token."""
    if mask is None or mask.shape != hidden.shape[:2]:
        return hidden.double().mean(1)
    kept = mask.bool()[:, :, None]
    return hidden.double().masked_fill(~kept, 0.0).sum(1) / kept.sum(1)


def _moved(batch: Batch, seen: Tensor, reference: Tensor) -> list[Mark]:
    # 1 - cos(a, b) = |a/|a| - b/|b||^2 / 2, which is exactly 0 for equal vectors.
    one, other = F.normalize(seen.cpu(), dim=-1), F.normalize(reference.cpu(), dim=-1)
    far = (one - other).square().sum(-1) / 2
    failed = ~seen.isfinite().all(-1).cpu()
    values = far.masked_fill(failed, FARTHEST).clamp(max=FARTHEST)
    columns = zip(batch.samples, values.tolist(), failed.tolist(), strict=True)
    return [Mark(Stretch(sample), value, int(bad)) for sample, value, bad in columns]


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
                # Written before it is mapped: on a full disk a write through the map would kill the process.
                file.write(kept.view(-1).view(torch.uint8).numpy().data)
                file.flush()
                mapped = np.memmap(file, dtype=np.uint8, mode="c", shape=(kept.nbytes,))
        except OSError as problem:
            raise BadInputError(
                f"{kept.nbytes >> 20} MiB of clean logits cannot be kept in {tempfile.gettempdir()} ({problem}); "
                "expected room for them. Name another folder in TMPDIR, take fewer items, or measure nll."
            ) from problem
        return torch.from_numpy(mapped).view(kept.dtype).view(kept.shape)
