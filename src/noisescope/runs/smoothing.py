"""Smooths a model for int8 and keeps it as a checkpoint: what `noisescope smooth` does once the model is loaded.

Three parts of the samples are never mixed: from one come the factors, on the next it is chosen what is folded, on the
last the cost before and after is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError, SelfCheckError, unknown_name
from noisescope.core.smoothing import ACTIVATIONS, TENSOR, Cost, Smoothed, Smoothing
from noisescope.measure.batches import Batch, Samples, Settings, prepare
from noisescope.measure.calling import device_of, is_causal, logits_of
from noisescope.measure.scoring import Clean, clean_run, evaluate, run
from noisescope.measure.statistics import DEFAULT, Interval, difference, mean_interval
from noisescope.measure.workload import Workload
from noisescope.model.folds import Fold, Folds, folds_of
from noisescope.model.layout import layout_of
from noisescope.model.linears import linear_groups
from noisescope.model.placement import is_spread
from noisescope.model.sample import sample_batch
from noisescope.prescribe.eight_bits import eight_bits, input_peaks
from noisescope.prescribe.smoothing import (
    ALPHAS,
    Candidate,
    Tried,
    candidates_of,
    factors_by_reader,
    fold_in,
    try_all,
)
from noisescope.runs.observing import Inputs, tokens_of
from noisescope.sweep.evaluating import evaluating, without_cache
from noisescope.sweep.progress import Progress

# Less than this share of the error of int8 is not worth changing a layer for: channels without outliers, whose peaks
# differ by chance, profit by up to a fifth.
WORTH = 0.25
# The errors of all candidates are computed on so many tokens, each about as dear as a forward.
TOKENS = 512
LEAST = 8
# Rounding of weights of the form 1 + w, and of what follows from it in all layers.
ROUNDINGS = 64
Chosen = Sequence[tuple[Fold, Candidate]]


@dataclass(frozen=True)
class SmoothingWanted:
    """What is asked: one alpha for all folds or None to search it, and what shares a scale of activations."""

    alpha: float | None = None
    activations: str = TENSOR

    def __post_init__(self) -> None:
        if self.activations not in ACTIVATIONS:
            raise unknown_name("scale of activations", self.activations, ACTIVATIONS)
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise BadInputError(f"alpha {self.alpha!r}: expected a share from 0 to 1, or search.")

    @property
    def alphas(self) -> tuple[float, ...]:
        """Those that are tried."""
        return ALPHAS if self.alpha is None else (self.alpha,)


@dataclass(frozen=True)
class Parts:
    """Half of the samples for factors, a quarter to choose by, a quarter to judge on."""

    samples: Samples

    def __post_init__(self) -> None:
        if len(self.samples) < LEAST:
            raise BadInputError(
                f"{len(self.samples)} samples: expected {LEAST} or more: half for the factors, a quarter to choose by, "
                "a quarter to judge on."
            )

    @property
    def marks(self) -> tuple[int, int, int]:
        """Where the second part begins, where the third does, and the end."""
        count = len(self.samples)
        return count // 2, count - count // 4, count

    def inputs(self, model: nn.Module, start: int, stop: int, limit: float = math.inf) -> list[Inputs]:
        """The batches of a part, up to the one that reaches the limit of tokens."""
        kept: list[Inputs] = []
        for batch in self.samples.batches(start, stop, device_of(model)):
            if sum(map(tokens_of, kept)) >= limit:
                break
            kept.append(batch.inputs)
        return kept


def samples_of(model: nn.Module, tokenizer: Any, workload: Workload) -> Samples:
    """The workload under KL to the model's own answers; under the shift of embeddings for one without such answers."""
    row = sample_batch(model)
    with torch.no_grad(), evaluating(model):
        try:
            causal = logits_of(model(**row)) is not None and is_causal(model, row)
        except BadInputError:
            causal = False
    return prepare(workload, tokenizer, "kl_to_clean" if causal else "embedding_shift", Settings.of(model))


@dataclass(frozen=True)
class Ground:
    """What all steps share: the model, its linear layers in int8, and how large their inputs get."""

    model: nn.Module
    parts: Parts
    activations: str
    peaks: Mapping[str, Tensor]

    def costs(self, start: int, stop: int, clean: Clean, chosen: Chosen = ()) -> tuple[float, ...]:
        """Harm of int8 on each sample of a part, with factors as if they were folded in."""
        with eight_bits(self.model, self.peaks, self.activations, factors_by_reader(chosen)):
            return evaluate(self.model, self.parts.samples, start, stop, clean=clean).values


def smooth(model: nn.Module, samples: Samples, wanted: SmoothingWanted, stream: Any = None) -> Smoothing:
    """Fold into the model what makes it cheaper in int8, or nothing."""
    if is_spread(model):
        raise BadInputError("the model lies on several devices; its weights are changed in place. Name one --device.")
    parts = Parts(samples)
    with evaluating(model), without_cache(model):
        found = folds_of(model)
        ground = Ground(model, parts, wanted.activations, _peaks(model, parts, stream))
        tried = _tried(ground, found, wanted, stream)
        chosen = _chosen(ground, [one for one in tried if _is_worth(one)], stream)
        return _judged(ground, Trials(tried, found, wanted), chosen, stream)


def _peaks(model: nn.Module, parts: Parts, stream: Any) -> dict[str, Tensor]:
    paths = [linear.path for group in linear_groups(model).groups for linear in group.linears]
    with Progress("activations", stream, "batches") as progress:
        return input_peaks(model, paths, progress.over(parts.inputs(model, 0, parts.marks[0])))


def _tried(ground: Ground, found: Folds, wanted: SmoothingWanted, stream: Any) -> list[Tried]:
    """Every fold with the errors of its candidates on the second part."""
    model, parts = ground.model, ground.parts
    tried = [Tried(fold, candidates_of(model, fold, ground.peaks, wanted.alphas)) for fold in found.folds]
    start, stop, _ = parts.marks
    with Progress("factors", stream, "batches") as progress:
        batches = progress.over(parts.inputs(model, start, stop, TOKENS))
        try_all(model, tried, ground.peaks, batches, ground.activations)
    return tried


def _is_worth(one: Tried) -> bool:
    return one.errors[one.best] <= (1 - WORTH) * one.errors[0]


def _chosen(ground: Ground, worth: Sequence[Tried], stream: Any) -> Chosen:
    """What is worth it in its own outputs, one kind of writer after the other, if it then costs the model less too."""
    kinds: dict[str, list[tuple[Fold, Candidate]]] = {}
    layers = layout_of(ground.model).layers
    for one in worth:
        fold = one.fold
        name = fold.writer if fold.layer is None else fold.writer.removeprefix(layers[fold.layer])
        kinds.setdefault(name, []).append((fold, one.candidates[one.best]))
    kept: Chosen = ()
    start, stop, _ = ground.parts.marks
    with Progress("choice", stream, "kinds of fold") as progress:
        every = progress.over(list(kinds.values()))
        clean = clean_run(ground.model, ground.parts.samples, start, stop)
        least = fmean(ground.costs(start, stop, clean))
        for more in every:
            cost = fmean(ground.costs(start, stop, clean, (*kept, *more)))
            if cost < least:
                kept, least = (*kept, *more), cost
    return kept


@dataclass(frozen=True)
class Trials:
    """What was found and tried of what was asked for."""

    tried: Sequence[Tried]
    found: Folds
    wanted: SmoothingWanted


def _judged(ground: Ground, trials: Trials, chosen: Chosen, stream: Any) -> Smoothing:
    """The record, after the choice is folded in; it is not where the last part is no cheaper by it."""
    samples, (_, start, stop) = ground.parts.samples, ground.parts.marks
    remark, moved = "", 0.0
    with Progress("measurement", stream, "parts") as progress:
        progress.expect(1)
        clean = clean_run(ground.model, samples, start, stop)
        before = after = ground.costs(start, stop, clean)
        if chosen and fmean(ground.costs(start, stop, clean, chosen)) >= fmean(before):
            remark, chosen = "measured on samples that it was not chosen by, it gained nothing: nothing is folded", ()
        if chosen:
            moved = _folded_in(ground, chosen)
            after = replace(ground, peaks=_smaller(ground.peaks, chosen)).costs(start, stop, clean)
        progress.advance()
    return Smoothing(
        alpha=trials.wanted.alpha,
        activations=ground.activations,
        metric=samples.metric.name,
        folds=tuple(_row(ground, one, chosen) for one in trials.tried),
        without=tuple(f"{path}: {why}" for path, why in trials.found.without.items()),
        before=_cost(mean_interval(before)),
        after=_cost(mean_interval(after)),
        change=_cost(difference(after, before)),
        samples=len(before),
        seen=start,
        linears=len(ground.peaks),
        moved=moved,
        remark=remark,
        confidence=DEFAULT.confidence,
    )


def _folded_in(ground: Ground, chosen: Chosen) -> float:
    """Fold for good; returns the largest change of an answer, as a share of the largest answer."""
    _, start, stop = ground.parts.marks
    batch = ground.parts.samples.batches(start, stop, device_of(ground.model))[0]
    own = _answer(ground, batch)
    for fold, by in chosen:
        fold_in(ground.model, fold, by.factors)
    moved = float((_answer(ground, batch) - own).abs().max() / own.abs().max())
    dtype = next(ground.model.parameters()).dtype
    if not moved <= ROUNDINGS * torch.finfo(dtype).eps:
        raise SelfCheckError(f"folding moved an answer by {moved:.2g} of the largest; please report this model.")
    return moved


def _answer(ground: Ground, batch: Batch) -> Tensor:
    seen = run(ground.model, ground.parts.samples, batch)
    return torch.as_tensor(seen).double()


def _smaller(peaks: Mapping[str, Tensor], chosen: Chosen) -> dict[str, Tensor]:
    by = factors_by_reader(chosen)
    return {path: largest / by[path].to(largest) if path in by else largest for path, largest in peaks.items()}


def _cost(seen: Interval) -> Cost:
    return Cost(seen.estimate, seen.low, seen.high)


def _row(ground: Ground, one: Tried, chosen: Chosen) -> Smoothed:
    fold, best = one.fold, one.candidates[one.best]
    is_kept = any(fold is other for other, _ in chosen)
    largest = ground.peaks[fold.readers[0]].cpu()
    less = largest / best.factors[list(fold.channels)]
    why = "the model in int8 costs no less with it"
    if not _is_worth(one):
        why = f"it lowers the error of int8 there by less than {WORTH:.0%}"
    return Smoothed(
        layer=fold.layer,
        writer=fold.writer,
        readers=fold.readers,
        alpha=best.alpha if is_kept else None,
        before=one.errors[0],
        after=one.errors[one.best],
        ratio=(_ratio(largest), _ratio(less)),
        why="" if is_kept else why,
    )


def _ratio(peaks: Tensor) -> float:
    """The largest over the median, of the channels that are used at all."""
    used = peaks[peaks > 0]
    return float(used.max() / used.median()) if len(used) else 1.0
