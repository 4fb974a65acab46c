"""Makes the precision map of the model of a run folder: predicts, chooses, applies it for a while and measures.

The prediction is kept in the folder, so that another target costs no new one. It changes no weight for good.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.core.precision import Choice, Group, Measured, Option, PrecisionMap, WeightFormat
from noisescope.diagnose.harm import yardstick
from noisescope.diagnose.whole import Diagnosis
from noisescope.diagnose.window import WindowResult
from noisescope.inject.weights import rounded
from noisescope.measure.batches import Samples, Settings, prepare
from noisescope.measure.calling import device_of
from noisescope.measure.scoring import Clean, clean_run, evaluate
from noisescope.measure.statistics import DEFAULT, difference, mean_interval
from noisescope.measure.verdicts import UNDECIDED
from noisescope.measure.workload import Workload
from noisescope.model.linears import Linears, linear_groups
from noisescope.model.load import load
from noisescope.prescribe.allocation import by_thresholds, exact, shortfall, spread
from noisescope.prescribe.applying import rounded_weights
from noisescope.prescribe.recipes import reader_notes, recipes
from noisescope.report.writing import write_file
from noisescope.runs.kept_keys import DIAGNOSIS, TOKENS, weights_key
from noisescope.runs.observing import tokens_of
from noisescope.sweep.evaluating import evaluating, without_cache
from noisescope.sweep.progress import Progress
from noisescope.sweep.store import Arrays, Store
from noisescope.sweep.weight_screening import screen_weights

RULES = ("exact", "thresholds")
METRIC = "kl_to_clean"
THIS, EVENLY = "this map", "evenly mixed"
FOLDER = "precision"
# Where in its band the loss of a window is taken to be that was not measured.
_MIDDLES = {"robust": 0.025, "moderate": 0.075, "high": 0.125, "critical": 0.20, UNDECIDED: 0.10}
Harms = dict[tuple[str, str], tuple[float, float]]


@dataclass(frozen=True)
class BitsWanted:
    """What a map is asked to be. `apart`: linear layers that read one input may get different formats."""

    target: float = 6.0
    formats: tuple[WeightFormat, ...] = tuple(map(WeightFormat.of, ("int4", "int8", "bf16")))
    rule: str = "exact"
    apart: bool = False
    draws: int = 2
    measure: bool = True

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise unknown_name("rule", self.rule, RULES)
        names = [form.name for form in self.formats]
        if len(set(names)) < max(1, len(names)):
            raise BadInputError(f"formats {', '.join(names) or '(none)'}: expected one or more, each once.")


@dataclass(frozen=True)
class Halves:
    """The first samples, that a prediction is made from, and those behind them, that it is judged on."""

    samples: Samples
    middle: int

    @classmethod
    def of(cls, samples: Samples) -> Halves:
        if len(samples) < 4:
            raise BadInputError(
                f"{len(samples)} samples: expected 4 or more, half to predict from and half to judge on."
            )
        return cls(samples, len(samples) // 2)

    def inputs(self, model: nn.Module) -> list[Mapping[str, Tensor]]:
        """The batches of the first half, up to as many tokens as a screening looks at."""
        batches = [batch.inputs for batch in self.samples.batches(0, self.middle, device_of(model))]
        seen = 0
        kept: list[Mapping[str, Tensor]] = []
        for batch in batches:
            if seen >= TOKENS:
                break
            kept.append(batch)
            seen += tokens_of(batch)
        return kept


def bits_desk(
    store: Store, source: str, load_options: Mapping[str, Any], workload: Workload
) -> tuple[nn.Module, Samples]:
    """The model of a run folder, seen to be the same, and samples to predict from and to judge on."""
    options = dict(load_options)
    # A run folder notes in which type it was loaded, not whether that was asked for.
    options["dtype"] = options.get("dtype") or dict(store.about.settings).get("dtype")
    loaded = load(source, **options)
    if store.about.model not in ("", loaded.fingerprint):
        raise BadInputError(
            f"{source} is not the model of {store.folder} (fingerprint {loaded.fingerprint}, expected "
            f"{store.about.model}): a map for one model says nothing of another. Name the model of that run."
        )
    return loaded.model, prepare(workload, loaded.tokenizer, METRIC, Settings.of(loaded.model))


def precision_map(
    model: nn.Module, samples: Samples, wanted: BitsWanted, store: Store, stream: Any = None
) -> PrecisionMap:
    """The map, measured if that is wanted."""
    halves = Halves.of(samples)
    linears = linear_groups(model, apart=wanted.apart)
    if not linears.groups:
        raise BadInputError("the model's stack of layers holds no linear layer of its own; there is nothing to choose.")
    harms = _harms(model, halves, linears, wanted, store, Progress("prediction", stream, "batches"))
    tables = [options_of(group, wanted.formats, harms) for group in linears.groups]
    budget = int(wanted.target * sum(group.weights for group in linears.groups))
    chosen = _choose(linears.groups, tables, budget, wanted, store)
    found = PrecisionMap(
        target=wanted.target,
        rule=wanted.rule,
        choices=_choices(linears.groups, tables, chosen),
        tokens=sum(map(tokens_of, halves.inputs(model))),
        draws=wanted.draws,
        remark=shortfall(tables, chosen, budget),
        left_out=linears.left_out,
    )
    if not wanted.measure:
        return found
    evenly = replace(found, choices=_choices(linears.groups, tables, spread(tables, budget)))
    return measured(model, halves, found, {EVENLY: evenly}, Progress("measurement", stream, "maps"))


def _harms(
    model: nn.Module, halves: Halves, linears: Linears, wanted: BitsWanted, store: Store, progress: Progress
) -> Harms:
    """Harm and its error of every linear layer in every format, from the folder or from backward passes."""
    modules = {linear.path: model.get_submodule(linear.path) for group in linears.groups for linear in group.linears}
    paths = sorted(modules)
    keys = {form: weights_key(halves.samples.key, form, wanted.draws, tuple(paths)) for form in wanted.formats}
    read = partial(_harms_of, paths)
    kept = {form: store.kept(_kept_name(form), key, read) for form, key in keys.items()}
    missing = {form: partial(rounded, form=form) for form, held in kept.items() if held is None}
    if missing:
        with progress:
            profile = screen_weights(
                model,
                progress.over(halves.inputs(model)),
                modules,
                {form.name: rounding for form, rounding in missing.items()},
                draws=wanted.draws,
            )
        for form in missing:
            both = [profile.predictions[path, form.name] for path in paths]
            arrays = {"harm": np.array([p.harm for p in both]), "error": np.array([p.error for p in both])}
            store.keep(_kept_name(form), keys[form], arrays)
            kept[form] = _harms_of(paths, arrays)
    return {(path, form.name): pair for form, held in kept.items() for path, pair in (held or {}).items()}


def _harms_of(paths: Sequence[str], arrays: Arrays) -> dict[str, tuple[float, float]]:
    """Harm and error of each linear layer in one format."""
    pairs = zip(arrays["harm"].tolist(), arrays["error"].tolist(), strict=True)
    return {path: (float(harm), float(error)) for path, (harm, error) in zip(paths, pairs, strict=True)}


def _kept_name(form: WeightFormat) -> str:
    return f"weights-{form.name.replace(':', '-')}"


def options_of(group: Group, formats: Sequence[WeightFormat], harms: Harms) -> tuple[Option, ...]:
    """What a group could get: its members' harms add up, for their roundings are independent."""
    found = []
    for form in formats:
        both = [harms[linear.path, form.name] for linear in group.linears]
        error = float(np.hypot.reduce([error for _, error in both]))
        found.append(Option(form.name, group.size(form), sum(harm for harm, _ in both), error))
    return tuple(found)


def _choices(groups: Sequence[Group], tables: Sequence[Sequence[Option]], chosen: Sequence[int]) -> tuple[Choice, ...]:
    return tuple(
        Choice(group, table[index].format, tuple(table))
        for group, table, index in zip(groups, tables, chosen, strict=True)
    )


def _choose(
    groups: Sequence[Group], tables: Sequence[Sequence[Option]], budget: int, wanted: BitsWanted, store: Store
) -> list[int]:
    if wanted.rule == "exact":
        return exact(tables, budget)
    return by_thresholds(groups, tables, budget, layer_losses(store, {group.layer for group in groups}))


def layer_losses(store: Store, layers: Collection[int | None]) -> dict[int | None, float]:
    """What noise in each layer costs as a share of the score, from the windows of the diagnosis in the folder.

    A layer alone costs no more than a window with it, so the least of those counts. A window that was not measured
    counts with the middle of the band that it was found to be in.
    """
    diagnosis = store.load_finding(DIAGNOSIS, Diagnosis)
    windows = () if diagnosis is None else diagnosis.windows
    measured = [window for window in windows if window.answer.harm is not None]
    if diagnosis is None or not measured or not yardstick(diagnosis.setting).is_share:
        raise BadInputError(
            f"{store.folder}: holds no diagnosis of layers by a metric whose loss is a share of the score, which the "
            "rule thresholds goes by. Run noisescope diagnose there with accuracy or nll, or take the rule exact."
        )
    found: dict[int | None, float] = {}
    for layer in layers:
        losses = [_loss(window) for window in windows if layer in window.layers]
        found[layer] = min(losses, default=_MIDDLES[UNDECIDED])
    return found


def _loss(window: WindowResult) -> float:
    harm = window.answer.harm
    return _MIDDLES.get(window.verdict.name, _MIDDLES[UNDECIDED]) if harm is None else max(harm.estimate, 0.0)


def measured(
    model: nn.Module,
    halves: Halves,
    found: PrecisionMap,
    others: Mapping[str, PrecisionMap],
    progress: Progress,
) -> PrecisionMap:
    """The map with the KL that it really gives on the second half, beside uniform formats and other maps."""
    uniform = {name: _uniform(found, name) for name in _names(found) if WeightFormat.of(name).scale_bits}
    every = {THIS: found, **uniform, **others}
    names = progress.over(list(every))
    with evaluating(model), without_cache(model), progress:
        clean = clean_run(model, halves.samples, halves.middle)
        values = {name: _values(model, halves, every[name], clean) for name in names}
    rows = tuple(_row(name, every[name], values[name], values[THIS]) for name in every)
    return replace(found, measured=rows, samples=len(values[THIS]), confidence=DEFAULT.confidence)


def _names(found: PrecisionMap) -> list[str]:
    return [option.format for option in found.choices[0].options]


def _uniform(found: PrecisionMap, name: str) -> PrecisionMap:
    return replace(found, choices=tuple(replace(choice, format=name) for choice in found.choices))


def _values(model: nn.Module, halves: Halves, found: PrecisionMap, clean: Clean) -> tuple[float, ...]:
    """KL to the original of each sample, per token."""
    with rounded_weights(model, found.formats):
        return evaluate(model, halves.samples, halves.middle, clean=clean).values


def _row(name: str, found: PrecisionMap, values: Sequence[float], best: Sequence[float]) -> Measured:
    kl, above = mean_interval(values), difference(values, best)
    more = None if name == THIS else (above.estimate, above.low, above.high)
    return Measured(name, found.average_bits, kl.estimate, kl.low, kl.high, more)


def write_recipes(found: PrecisionMap, folder: Path) -> tuple[list[Path], list[str]]:
    """The map in the words of other tools, as files; and what they, or whoever runs them, have no word for."""
    written, unsaid = [], list(reader_notes(found))
    for recipe in recipes(found):
        written.append(write_file(folder / FOLDER / recipe.name, recipe.text.encode()))
        unsaid += [
            f"{recipe.name}: the tool has no word for {name}, so its layers are left out" for name in recipe.unsaid
        ]
    return written, unsaid
