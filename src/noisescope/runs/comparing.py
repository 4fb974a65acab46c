"""Compares two systems: two captures, or two models in this process. What `noisescope.compare` does.

Two models run together, each operator of the second on the inputs of the first. Conclusions are drawn in
`noisescope.diagnose.comparison`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError
from noisescope.core.records import is_number
from noisescope.diagnose.comparison import Comparison, Question, Side, conclude, key_of
from noisescope.measure.capture_file import Capture, CaptureError, Manifest, read_capture, require_match
from noisescope.measure.contrast import coarser_of, contrasts, unmatched
from noisescope.measure.sketch import Sketcher
from noisescope.runs.capturing import Keeping, captured, checked, cleans_of, closed, mask_of, runner
from noisescope.sweep.dithering import Values, answer_of, values_of
from noisescope.sweep.evaluating import evaluating
from noisescope.sweep.laying import Laid
from noisescope.sweep.tapping import Tap, Tapping

Batch = Mapping[str, Any]
MAX_MAPE = 0.05
# A coarser system has fewer places, but nearly all of them in common with the other.
_COMMON = 0.5


def compare(
    path_a: str | Path, path_b: str | Path, *, max_mape: float = MAX_MAPE, layers: Collection[int] | None = None
) -> Comparison:
    """Compare two captures; the first is the reference. `layers` limits what is looked at."""
    one, other = read_capture(path_a), read_capture(path_b)
    require_match(one.manifest, other.manifest, (str(path_a), str(path_b)))
    return _concluded(one, other, _limit(max_mape), layers)


def compare_with(reference: Capture, other: nn.Module, batches: Sequence[Batch]) -> Comparison:
    """Compare a model that runs here with a capture of a healthy one."""
    keeping = Keeping(seed=reference.manifest.seed, megabytes=float("inf"), dither=False)
    two = captured(other, checked(batches), keeping)
    require_match(reference.manifest, two.manifest, (reference.origin, two.origin))
    return _concluded(reference, two, MAX_MAPE, None)


def compare_models(
    reference: nn.Module,
    other: nn.Module,
    batches: Sequence[Batch],
    *,
    max_mape: float = MAX_MAPE,
    layers: Collection[int] | None = None,
    names: tuple[str, str] = ("reference", "other"),
) -> Comparison:
    """Compare two models on the same batches, and tell the error of each operator from what it inherits."""
    limit, asked = _limit(max_mape), checked(batches)
    keeping = Keeping(megabytes=float("inf"))
    one = captured(reference, asked, keeping, name=names[0])
    two = captured(other, asked, replace(keeping, dither=False), name=names[1])
    why = closed(reference) or closed(other)
    if why:
        return _concluded(one, two, limit, layers, notes=(why,))
    dtype = coarser_of(one.manifest.dtype, two.manifest.dtype)
    return _concluded(one, two, limit, layers, local=_shadow(reference, other, asked, (one, two), dtype))


def _shadow(
    reference: nn.Module, other: nn.Module, batches: Sequence[Batch], both: tuple[Capture, Capture], dtype: torch.dtype
) -> tuple[Capture, Capture]:
    """What each operator of the other makes of the reference's inputs; the reference with its answer to those alone."""
    one, two = both
    first, second = Tapping(reference), Tapping(other)
    made = _Made(one.manifest.seed)
    answers: dict[str, Tensor] = {}
    with evaluating(reference, other), torch.no_grad():
        for batch in batches:
            mask = mask_of(batch)
            right = values_of(first, runner(reference, batch), mask)
            made.begin(right)
            with second.watching(made, mask):
                runner(other, batch)()
        answers = answer_of(first, cleans_of(first, batches), dtype, forced=True)
    name = str(dtype).removeprefix("torch.")
    sketches = {key: sketcher.result() for key, sketcher in made.sketchers.items()}
    taps = tuple(
        replace(entry, count=sketches[entry.key].count, mark=sketches[entry.key].mark)
        for entry in two.manifest.taps
        if entry.key in sketches
    )
    own = Capture(replace(two.manifest, taps=taps, dithers=()), sketches)
    return replace(one, answers={name: answers}), own


@dataclass
class _Made:
    """What the other's operators make, each tap going on with the reference's values."""

    seed: int
    sketchers: dict[str, Sketcher] = field(default_factory=dict)
    right: Values = field(default_factory=dict)
    _calls: dict[str, int] = field(default_factory=dict)

    def begin(self, right: Values) -> None:
        """Of the next batch, what the reference's taps had."""
        self.right = right
        self._calls.clear()

    def __call__(self, tap: Tap, given: Laid) -> Tensor | None:
        rows, call = given.rows, self._calls.get(tap.key, 0)
        self._calls[tap.key] = call + 1
        self.sketchers.setdefault(tap.key, Sketcher(self.seed)).update(rows)
        known = self.right.get(tap.key, ())
        if call >= len(known) or known[call].shape != rows.shape:
            return None
        return given.put(known[call])


def _concluded(
    one: Capture,
    two: Capture,
    limit: float,
    layers: Collection[int] | None,
    *,
    local: tuple[Capture, Capture] | None = None,
    notes: tuple[str, ...] = (),
) -> Comparison:
    every = list(contrasts(one, two))
    common = sum(contrast.figures is not None for contrast in every)
    least = min(len(one.manifest.taps), len(two.manifest.taps))
    if common < _COMMON * least or not common:
        raise CaptureError(
            f"the two have {common} of {least} places in common, too few to be two systems of one model; what is "
            "compared needs the same module paths and shapes."
        )
    chosen = None if layers is None else _layers(layers, len(one.manifest.layers))
    missing, more = unmatched(one, two)
    question = Question(
        side_of(one.manifest), side_of(two.manifest), limit, chosen, missing, more, (*notes, *_remarks(one, two))
    )
    own = None if local is None else {key_of(contrast): contrast for contrast in contrasts(*local)}
    return conclude(question, every, own)


def _remarks(one: Capture, two: Capture) -> tuple[str, ...]:
    found = []
    if not one.answers:
        found.append("The reference holds no answer to its last bit: tolerances come from the dtype alone, too strict.")
    if one.manifest.device != two.manifest.device:
        found.append(f"Devices: {one.manifest.device} and {two.manifest.device}.")
    return tuple(found)


def side_of(manifest: Manifest) -> Side:
    """Who a capture is of."""
    return Side(manifest.name, manifest.model, manifest.device, manifest.dtype, manifest.system)


def _layers(layers: Collection[int], count: int) -> tuple[int, ...]:
    strange = [layer for layer in layers if isinstance(layer, bool) or layer not in range(count)]
    if strange or not layers:
        raise BadInputError(f"layers {sorted(layers)}: expected some of 0 to {count - 1}.")
    return tuple(sorted(layers))


def _limit(max_mape: float) -> float:
    if not is_number(max_mape) or not max_mape > 0:
        raise BadInputError(f"max_mape {max_mape!r}: expected a mean relative error above 0, such as 0.05.")
    return float(max_mape)
