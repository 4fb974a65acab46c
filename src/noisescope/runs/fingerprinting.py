"""Finds the place at which a suspect system parts from a good one, by the fingerprints that noise leaves on the good.

The good system is a model, or a capture of one made elsewhere. Then the suspect's own machine makes the fingerprints:
a fault that is in all of its runs hardly shows in what noise adds. Conclusions are drawn in `diagnose.fingerprint`.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError
from noisescope.core.records import Site, noise
from noisescope.diagnose.comparison import Comparison
from noisescope.diagnose.fingerprint import (
    Floats,
    Seen,
    conclude_fingerprint,
    pattern,
    pooled,
    presence,
    rise,
    scores_of,
)
from noisescope.diagnose.localization import Localization, Opinion
from noisescope.measure.calling import device_of
from noisescope.measure.capture_file import Capture, CaptureError, read_capture
from noisescope.measure.contrast import answer_to, coarser_of
from noisescope.measure.rounding import is_short, unit
from noisescope.runs.capturing import checked, cleans_of, dtype_of, inputs_hash, inputs_of, is_coarse, mask_of
from noisescope.runs.comparing import compare_models, compare_with
from noisescope.sweep.dithering import answer_of
from noisescope.sweep.evaluating import evaluating
from noisescope.sweep.injecting import inject
from noisescope.sweep.tapping import Tapping
from noisescope.sweep.tracing import Given, Trace, View, combinations, noisy_traces, places_of, trace_of

Batch = Mapping[str, Any]
_LEAST = 1e-30
# The random combinations in a capture are kept in float32.
_LINES_AGREE = 1e-6
_STRANGERS = "the reference and the model differ in their layers or widths: pass a healthy system of the same model."


@dataclass(frozen=True, eq=False)
class _Good:
    """The good system: itself, its trace, what is healthy at each border relative to the values, and how it was seen.

    `least` is given where it and the suspect compute alike: what is further apart than that is no rounding. Where it
    could run in the suspect's short dtype and in float32, `trace` is that of float32, and `rounded` are two traces of
    the short one that round in other places.
    """

    system: nn.Module
    trace: Trace
    healthy: Mapping[str, float]
    view: View | None
    least: float | None
    notes: tuple[str, ...] = ()
    rounded: tuple[Trace, Trace] | None = None


@dataclass(frozen=True, eq=False)
class Library:
    """The fingerprints of a good system on some batches, with all that is needed to hold a suspect against them."""

    batches: Sequence[Batch]
    good: _Good
    keys: tuple[str, ...]
    places: tuple[Site, ...]
    prints: Floats
    groups: Floats
    rising: float | None = None

    def scores(self, found: Floats) -> Floats:
        """How alike a suspect's pattern is to the fingerprint of each place."""
        return scores_of(found, self.prints, pools=self.rising is not None)

    def pattern_of(self, model: nn.Module) -> Floats:
        """Where and how far a suspect is from the good system."""
        with torch.no_grad(), evaluating(model):
            mine = trace_of(model, _given(model, self.batches), self.good.view)
        if any(key not in _common(self.good, mine) for key in self.keys):
            raise BadInputError(_STRANGERS)
        return _pattern(self.good, self.good.trace, mine, self.keys, self.groups, is_print=False)


def locate_by_fingerprint(model: nn.Module, batches: Sequence[Batch], reference: Any, seed: int) -> Localization:
    """The place whose fingerprint is most like the divergence of `model` from the reference."""
    asked = checked(batches)
    reference = reference if isinstance(reference, nn.Module) else _capture(reference)
    return judged_by(library_of(reference, model, asked, seed), reference, model, seed)


def judged_by(library: Library, reference: nn.Module | Capture, model: nn.Module, seed: int) -> Localization:
    """The same with fingerprints that are there; those of a capture belong to one suspect alone."""
    suspect = library.pattern_of(model)
    compared = _compared(reference, model, library.batches)
    seen = replace(_seen(compared, library.good), rising=library.rising)
    return conclude_fingerprint(suspect, library.prints, library.places, library.groups, seen, seed)


def library_of(reference: nn.Module | Capture, model: nn.Module, batches: Sequence[Batch], seed: int) -> Library:
    """The fingerprints of every place, made by noise in the reference, or in the suspect if that is a capture."""
    probed = reference if isinstance(reference, nn.Module) else model
    with torch.no_grad(), evaluating(model), evaluating(probed):
        if isinstance(reference, nn.Module):
            good, groups = _of_model(reference, model, batches, seed), _prompts(batches)
            base = good.trace
        else:
            good = _of_capture(reference, model, batches)
            base = trace_of(model, _given(model, batches), good.view)
            good = replace(good, least=_LINES_AGREE if _has_equal_layers(good, base, model) else None)
            groups = np.arange(len(next(iter(base.values.values()))), dtype=np.float64)
        keys = _common(good, base)
        places = places_of(good.system, keys)
        noisy = noisy_traces(good.system, _given(good.system, batches), places, _far_from(seed), good.view)
        prints = np.stack([_pattern(good, base, trace, keys, groups, is_print=True) for trace in noisy])
    return Library(batches, good, tuple(keys), tuple(places), prints, groups, _rising(good, keys))


def _pattern(good: _Good, one: Trace, other: Trace, keys: Sequence[str], groups: Floats, *, is_print: bool) -> Floats:
    divergence, prompts = _apart(one, other, keys), groups if good.view is None else None
    if good.least is not None:
        return presence(divergence, good.least, prompts)
    if good.rounded is not None:
        usual = _apart(good.trace, good.rounded[0], keys)
        # Noise was put into float32, which does not round as the suspect does.
        return rise(np.hypot(divergence, usual) if is_print else divergence, usual)
    return pattern(divergence, np.array([good.healthy[key] for key in keys]), prompts)


def _rising(good: _Good, keys: Sequence[str]) -> float | None:
    """The largest rise between two healthy systems that round in other places."""
    if good.least is not None or good.rounded is None:
        return None
    one, other = (_apart(good.trace, trace, keys) for trace in good.rounded)
    return float(np.abs(pooled(rise(other, one))).max())


def _far_from(seed: int) -> int:
    """Where the seeds of the probes begin."""
    return 7_000_003 + 1000 * seed


def _given(model: nn.Module, batches: Sequence[Batch]) -> list[Given]:
    return [(inputs_of(model, batch), mask_of(batch)) for batch in batches]


def _of_model(reference: nn.Module, model: nn.Module, batches: Sequence[Batch], seed: int) -> _Good:
    alike = _compute_alike(reference, model)
    if not alike and is_short(dtype_of(model)):
        return _in_both_dtypes(reference, dtype_of(model), batches, seed)
    name = coarser_of(*(str(dtype_of(m)).removeprefix("torch.") for m in (reference, model)))
    trace = trace_of(reference, _given(reference, batches))
    tapping = Tapping(reference, coarse=True)
    answers = answer_of(tapping, cleans_of(tapping, batches), name)
    sizes = {key: float(rows.square().sum(1).mean().sqrt().clamp(min=_LEAST)) for key, rows in trace.values.items()}
    healthy = {key: _healthy(float(answers[key].double().norm()) / sizes[key], name) for key in answers}
    return _Good(reference, trace, healthy, None, 0.0 if alike else None)


def _in_both_dtypes(reference: nn.Module, dtype: torch.dtype, batches: Sequence[Batch], seed: int) -> _Good:
    """The good system in float32, and what rounding to a short dtype does to it: twice, the second time elsewhere."""
    fine, short = _cast(reference, torch.float32), _cast(reference, dtype)
    trace, once = (trace_of(system, _given(system, batches)) for system in (fine, short))
    nudge = inject(short, noise(scale=unit(dtype) / 4), layers=0, operators="linear", seed=_far_from(seed) - 1)
    nudge.strict = False
    with nudge:
        again = trace_of(short, _given(short, batches))
    return _Good(fine, trace, dict.fromkeys(trace.values, 0.0), None, None, rounded=(once, again))


def _cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    return model if dtype_of(model) == dtype else copy.deepcopy(model).to(dtype)


def _compute_alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models run the same kernels on one machine, so that healthy ones agree to the last bit."""
    kinds = [
        (device_of(m).type, dtype_of(m), is_coarse(m), getattr(getattr(m, "config", None), "_attn_implementation", ""))
        for m in (one, other)
    ]
    return kinds[0] == kinds[1]


def _healthy(answer: float, dtype: torch.dtype) -> float:
    """What carries on from before, and the rounding of the value itself, relative to the size of the values."""
    return math.hypot(answer, torch.finfo(dtype).eps)


def _of_capture(capture: Capture, model: nn.Module, batches: Sequence[Batch]) -> _Good:
    if capture.manifest.inputs != inputs_hash(batches):
        raise CaptureError(
            f"{capture.origin}: made from other inputs ({capture.manifest.tokens} tokens) than those given here; "
            "capture with the same --data and --samples, or pass the same batches."
        )
    dtype = coarser_of(capture.manifest.dtype, str(dtype_of(model)).removeprefix("torch."))
    values, sizes, healthy = {}, {}, {}
    for key, sketch in capture.sketches.items():
        size = sketch.figure("squares").sum().sqrt()
        values[key] = sketch.lines.double()
        sizes[key] = size.expand(len(sketch.lines))
        own = answer_to(capture, key, dtype).double().norm() * sketch.count**0.5
        healthy[key] = _healthy(float(own / size.clamp(min=_LEAST)), dtype)
    lines = next(iter(values.values())).shape[0]
    note = "The reference is a capture: the fingerprints were made by noise on the suspect system itself."
    return _Good(model, Trace(values, sizes), healthy, combinations(capture.manifest.seed, lines), None, (note,))


def _has_equal_layers(good: _Good, mine: Trace, model: nn.Module) -> bool:
    """Whether a layer gave on both machines what the other gave: then they compute alike."""
    keys = _common(good, mine)
    layers = [i for i, place in enumerate(places_of(model, keys)) if place.layer is not None]
    return bool((_apart(good.trace, mine, keys)[layers].max(1) <= _LINES_AGREE).any())


def _capture(reference: Any) -> Capture:
    if isinstance(reference, Capture):
        return reference
    if isinstance(reference, str | Path):
        return read_capture(reference)
    seen = "None" if reference is None else type(reference).__name__
    raise BadInputError(f"reference {seen}: expected a healthy model, or the path of a capture of one.")


def _common(good: _Good, mine: Trace) -> list[str]:
    """The borders that both have, with the same entries: positions alone, say, are no tokens."""
    theirs = good.trace.values
    fits = [k for k, x in mine.values.items() if k in good.healthy and k in theirs and theirs[k].shape == x.shape]
    if not fits:
        raise BadInputError(_STRANGERS)
    usual = Counter(len(theirs[key]) for key in fits).most_common(1)[0][0]
    return [key for key in fits if len(theirs[key]) == usual]


def _apart(one: Trace, other: Trace, keys: Sequence[str]) -> Floats:
    """How far two traces are apart at every border and entry, relative to the size of the values of the first."""
    rows = []
    for key in keys:
        gap = (one.values[key] - other.values[key]).nan_to_num(nan=torch.inf, posinf=torch.inf).norm(dim=1)
        rows.append((gap / one.sizes[key].clamp(min=_LEAST)).clamp(max=1e6))
    return torch.stack(rows).numpy().astype(np.float64)


def _prompts(batches: Sequence[Batch]) -> Floats:
    """Of every token that is no padding, the number of its prompt."""
    found: list[Tensor] = []
    count = 0
    for batch in batches:
        mask = mask_of(batch)
        shape = mask.shape if mask is not None else next(x.shape for x in batch.values() if isinstance(x, Tensor))
        number = torch.arange(shape[0])[:, None].expand(shape[0], shape[1]) + count
        found.append(number.reshape(-1) if mask is None else number[mask.bool().cpu()])
        count += shape[0]
    return torch.cat(found).numpy().astype(np.float64)


def _compared(reference: nn.Module | Capture, model: nn.Module, batches: Sequence[Batch]) -> Comparison:
    if isinstance(reference, nn.Module):
        return compare_models(reference, model, batches)
    return compare_with(reference, model, batches)


def _seen(found: Comparison, good: _Good) -> Seen:
    """What the comparison of activations says: the first operator whose own error leaves the healthy band."""
    compared = [row for row in found.rows if row.figures is not None]
    first = next(iter(found.suspects), found.first_divergent)
    opinion = None
    if first is not None:
        words = f"{first.place} is the first whose own error leaves the healthy band, {first.excess:.3g} times over it"
        words += f"; {first.symptom}." if first.symptom else "."
        opinion = Opinion(first.layer, first.operator, first.path, words)
    leaves = found.first_divergent is not None
    identical = all(row.contrast.identical for row in compared)
    return Seen(leaves, identical, good.least is not None, opinion, (*good.notes, found.how))
