"""Up to which scale the law that screening predicts with holds here: the groups it calls worst, injected at 3 scales.

It predicts nothing, and a diagnosis that is not screened has no use for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from noisescope.core.codec import key_of
from noisescope.core.records import Finding
from noisescope.diagnose.setting import elementary
from noisescope.measure.batches import Samples
from noisescope.measure.calling import device_of
from noisescope.measure.profile import Profile
from noisescope.measure.statistics import FloatArray
from noisescope.measure.validity import conclude_validity, judge_validity
from noisescope.runs.observing import Inputs, tokens_of
from noisescope.sweep.progress import Progress
from noisescope.sweep.response import Group, Responses, name_of
from noisescope.sweep.store import Arrays, Store

# Below, at and above the scale that is asked about, as shares of it.
_SCALES = (0.4, 1.0, 2.0)
_SEEDS = (0, 1)
_GROUPS = 3
# Of the samples a sixteenth is looked at, so that all of it costs little beside the trials.
_SHARE, _FEWEST, _MOST = 16, 2, 8


@dataclass(frozen=True)
class LawCheck:
    """The worst predicted group of each of the operators that are worst, on the first samples, around one scale."""

    samples: Samples
    profile: Profile
    scale: float
    layers: int

    @property
    def scales(self) -> tuple[float, ...]:
        return tuple(share * self.scale for share in _SCALES)

    @property
    def groups(self) -> tuple[Group, ...]:
        """At most three, of different operators, the worst first."""
        harm = self.profile.harm
        inside = [key for key in harm if key[0] is not None and elementary((key[1],)) and harm[key] > 0.0]
        found: dict[str, Group] = {}
        for key in sorted(inside, key=lambda key: (-harm[key], str(key))):
            found.setdefault(key[1], key)
        return tuple(found.values())[:_GROUPS]

    def inputs(self, model: nn.Module) -> list[Inputs]:
        """What is run."""
        count = min(_MOST, max(_FEWEST, len(self.samples) // _SHARE))
        return [batch.inputs for batch in self.samples.batches(0, count, device_of(model))]

    def tokens(self, model: nn.Module) -> float:
        """How many tokens go through the whole model: once clean, and for all other runs from their layer on."""
        runs = len(_SCALES) * len(_SEEDS)
        passes = 1.0 + sum(runs * (self.layers - (layer or 0)) / self.layers for layer, _ in self.groups)
        return passes * sum(map(tokens_of, self.inputs(model)))

    def in_order(self, arrays: Arrays) -> list[FloatArray]:
        """The responses of each group: a row for each scale."""
        found = [arrays[str(number)].astype(np.float64) for number in range(len(self.groups))]
        if any(one.ndim != 2 or len(one) != len(_SCALES) for one in found):
            raise ValueError(f"expected responses at {len(_SCALES)} scales")
        return found


def law_finding(check: LawCheck, model: nn.Module, store: Store, progress: Progress) -> tuple[Finding, ...]:
    """What was found, from the folder or by injection; nothing where no group answers with harm that is a number."""
    key = key_of(("law", check.samples.key, check.groups, check.scales, _SEEDS, _SHARE))
    answers = store.kept("law", key, check.in_order)
    if answers is None:
        with progress:
            arrays = _respond(check, model, progress)
        store.keep("law", key, arrays)
        answers = check.in_order(arrays)
    found = [
        judge_validity(name_of(group), check.scales, responses)
        for group, responses in zip(check.groups, answers, strict=True)
        if bool(np.isfinite(responses).all()) and bool((responses.mean(axis=1) > 0.0).all())
    ]
    return (conclude_validity(found, check.scale),) if found else ()


def _respond(check: LawCheck, model: nn.Module, progress: Progress) -> dict[str, FloatArray]:
    responses = Responses(model, check.inputs(model))
    groups = progress.over(check.groups)
    return {str(number): responses.of_group(group, check.scales, _SEEDS) for number, group in enumerate(groups)}
