"""Asks a model all levels of a diagnosis: screens it, watches its channels, runs the trials, concludes.

It decides nothing itself: which trials are needed and what they mean is the business of `noisescope.diagnose`.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.core.records import Params, Site, whole_number
from noisescope.core.version import VERSION
from noisescope.diagnose.channel import ChannelLevel, channel_level
from noisescope.diagnose.robustness import Robustness, RobustnessQuestion
from noisescope.diagnose.setting import BUDGET, Setting
from noisescope.diagnose.whole import Diagnosis, Question
from noisescope.diagnose.window import WindowQuestion, predicted_by_layer
from noisescope.measure.batches import Samples
from noisescope.measure.calling import device_of
from noisescope.measure.given import given
from noisescope.measure.inputs import checked_batches, module_of
from noisescope.measure.outliers import OutlierRules
from noisescope.model.architecture import architecture_of
from noisescope.model.layout import layout_of
from noisescope.model.load import fingerprint
from noisescope.runs.kept_keys import CALIBRATION, DIAGNOSIS, TOKENS
from noisescope.runs.law import LawCheck, law_finding
from noisescope.runs.observing import SCREEN_COST, WATCH_COST, channels_of, inputs_of, profile_of, tokens_of
from noisescope.sweep.bench import ModelBench
from noisescope.sweep.evaluating import evaluating
from noisescope.sweep.executors.serial import Serial
from noisescope.sweep.injecting import sites
from noisescope.sweep.progress import Progress
from noisescope.sweep.store import About, Request, Store
from noisescope.sweep.study import Executor, run_study

MODES = ("full", "operator", "layer", "channel")


@dataclass(frozen=True)
class Wanted:
    """What a diagnosis is asked, with the usual answers filled in."""

    mode: str = "full"
    kind: str = "relative_gaussian"
    scale: float = 0.05
    window_size: int = 3
    step_size: int = 1
    outlier_threshold: float = 10.0
    seeds: int = 3
    seed: int = 0
    exhaustive: bool = False
    budget: float | None = BUDGET
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown_name("mode", self.mode, MODES)
        for what, least in (("window_size", 1), ("step_size", 1), ("seeds", 1), ("seed", None)):
            whole_number(what.replace("_", " "), getattr(self, what), least)
        if not isinstance(self.exhaustive, bool):
            raise BadInputError(f"exhaustive {self.exhaustive!r}: expected True or False.")

    def asks_for(self, level: str) -> bool:
        """Whether a level is part of the diagnosis."""
        return self.mode in ("full", level)


@dataclass(frozen=True)
class Patient:
    """A model with what is known of it, and the samples on which it is judged and calibrated."""

    model: nn.Module
    layers: tuple[str, ...]
    sites: tuple[Site, ...]
    samples: Samples
    calibration: Samples


@dataclass(frozen=True)
class Desk:
    """Everything that is needed to have a question answered."""

    patient: Patient
    store: Store
    executor: Executor
    stream: TextIO | None = None

    def progress(self, label: str, unit: str = "trials") -> Progress:
        """Tells how far one stage is, where there is somebody to tell."""
        return Progress(label, self.stream, unit)


def diagnose(
    model: nn.Module,
    batches: Sequence[Mapping[str, Tensor]],
    *,
    calibration: Sequence[Mapping[str, Tensor]] | None = None,
    metric: str | None = None,
    out: str | Path | None = None,
    **wanted: Any,
) -> Diagnosis:
    """Diagnose operators, windows of layers and channels of a model on batches of tensors.

    Every row of a batch is a sample, judged by its agreement with the clean run unless another metric is named.
    `wanted` are the fields of `Wanted`: mode, kind, scale, window_size, step_size, outlier_threshold, seeds, seed,
    exhaustive, budget, confidence. With `out` readings are kept in a run folder, the same call goes on from there, and
    `noisescope report` makes a page of it.
    """
    asked = wanted_of(wanted)
    checked = checked_batches(batches, module_of(model))
    with evaluating(model):
        samples = given(model, checked, metric)
        others = samples if calibration is None else given(model, calibration, metric)
    return diagnose_samples(model, samples, others, asked, out)


def diagnose_samples(
    model: nn.Module, samples: Samples, calibration: Samples, asked: Wanted, out: str | Path | None = None
) -> Diagnosis:
    """The same on samples that are ready."""
    patient = patient_of(model, samples, calibration)
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="noisescope-") if out is None else nullcontext(out) as folder:
        mark = "" if out is None else fingerprint(model)
        with Store(folder, about(patient, mark, threads, "noisescope.diagnose")) as store:
            executor = Serial(lambda: ModelBench(model, samples), threads=threads)
            found = examine(Desk(patient, store, executor), asked)
            store.save_finding(DIAGNOSIS, found, Request(model=type(model).__name__, workload=samples.name))
            return found


def patient_of(model: nn.Module, samples: Samples, calibration: Samples) -> Patient:
    """What is known of a model that is at hand."""
    row = samples.batches(0, 1, device_of(model))[0].inputs
    return Patient(model, layout_of(model).layers, tuple(sites(model, row)), samples, calibration)


def wanted_of(options: Mapping[str, Any]) -> Wanted:
    """What is wanted, from keywords; an unknown one is refused by name."""
    names = [field.name for field in dataclasses.fields(Wanted)]
    for name in options:
        if name not in names:
            raise unknown_name("option of diagnose", name, names)
    return Wanted(**options)


def about(patient: Patient, mark: str, threads: int, asked: str) -> About:
    """What a run folder has to agree in with whoever goes on in it."""
    dtype = str(next((weight.dtype for weight in patient.model.parameters()), "none")).removeprefix("torch.")
    settings: Params = (
        ("architecture", architecture_of(patient.model)),
        (CALIBRATION, patient.calibration.key),
        ("dtype", dtype),
        ("threads", threads),
    )
    versions = (("noisescope", VERSION), ("torch", torch.__version__))
    return About(mark, patient.samples.key, settings, str(device_of(patient.model)), versions, asked)


def examine(desk: Desk, wanted: Wanted) -> Diagnosis:
    """All that is wanted of a patient, from what the folder holds and from what has still to be measured."""
    return run_study(question_of(desk, wanted), desk.executor, desk.store, desk.progress("diagnosis"))


def question_of(desk: Desk, wanted: Wanted) -> Question:
    """The question, once screening and channels have been seen."""
    patient = desk.patient
    if wanted.asks_for("layer") and not patient.layers:
        raise BadInputError(
            "the model's stack of layers could not be found, so there are no windows; ask for mode operator or channel."
        )
    if not patient.sites and wanted.asks_for("operator"):
        raise BadInputError(
            "the model runs no operator that noise can reach; noisescope.sites(model) lists what it runs."
        )
    setting = setting_of(patient, wanted)
    law = _law(desk, wanted) if wanted.asks_for("layer") and not wanted.exhaustive else None
    channels = _channel_level(desk, wanted) if wanted.asks_for("channel") else None
    setting = replace(setting, spent=_spent(patient, wanted, law))
    return Question(
        setting,
        operators=wanted.asks_for("operator"),
        windows=_windows(wanted, setting, law) if wanted.asks_for("layer") else None,
        channels=channels,
        notes=law_finding(law, patient.model, desk.store, desk.progress("check of the screening", "groups"))
        if law
        else (),
    )


def _law(desk: Desk, wanted: Wanted) -> LawCheck:
    """The prediction, and where it is to be held against injection."""
    patient, progress = desk.patient, desk.progress("screening", "batches")
    profile = profile_of(patient.model, patient.samples, wanted.scale, desk.store, progress)
    return LawCheck(patient.samples, profile, wanted.scale, len(patient.layers))


def setting_of(patient: Patient, wanted: Wanted) -> Setting:
    """What every question to a patient shares."""
    samples = patient.samples
    return Setting(
        workload=samples.key,
        metric=samples.metric.name,
        shape=samples.shape,
        samples=len(samples),
        layers=max(1, len(patient.layers)),
        operators=tuple(sorted({site.operator for site in patient.sites})),
        kind=wanted.kind,
        scale=wanted.scale,
        seeds=tuple(range(wanted.seed, wanted.seed + wanted.seeds)),
        confidence=wanted.confidence,
        budget=None if wanted.exhaustive else wanted.budget,
        exhaustive=wanted.exhaustive,
    )


def _spent(patient: Patient, wanted: Wanted, law: LawCheck | None) -> float:
    """What is seen before any trial, in clean evaluations, by tokens."""
    device = device_of(patient.model)
    one = sum(map(tokens_of, inputs_of(patient.samples, device)))
    spent = 0.0
    if law is not None:
        spent += SCREEN_COST * sum(map(tokens_of, inputs_of(patient.samples, device, TOKENS)))
        spent += law.tokens(patient.model)
    if wanted.asks_for("channel"):
        first = sum(map(tokens_of, inputs_of(patient.calibration, device, TOKENS)))
        spent += (WATCH_COST - 1) * first + sum(map(tokens_of, inputs_of(patient.calibration, device)))
    return spent / one


def _windows(wanted: Wanted, setting: Setting, law: LawCheck | None) -> WindowQuestion:
    predicted = () if law is None else predicted_by_layer(law.profile, law.layers, law.scale)
    return WindowQuestion(setting, wanted.window_size, wanted.step_size, predicted=predicted)


def _channel_level(desk: Desk, wanted: Wanted) -> ChannelLevel:
    patient, progress = desk.patient, desk.progress("channels", "batches")
    seen = channels_of(patient.model, patient.layers, patient.calibration, desk.store, progress)
    rules = OutlierRules(ratio=wanted.outlier_threshold)
    return channel_level(seen.modules, patient.layers, stream=seen.stream, rules=rules)


def withstand(desk: Desk, wanted: Wanted, levels: tuple[float, ...], *, seeks_threshold: bool = True) -> Robustness:
    """What a model keeps at several levels of noise everywhere, and the scale at which it breaks."""
    question = RobustnessQuestion(setting_of(desk.patient, wanted), levels, seeks_threshold=seeks_threshold)
    return run_study(question, desk.executor, desk.store, desk.progress("robustness"))
