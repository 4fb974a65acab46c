"""Executes fault tests on a model: what `noisescope faults --run` does once the cases are known.

Everything that was measured is kept in the run folder, so that the same command goes on where it was ended. What
follows from it is concluded in `noisescope.diagnose`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from noisescope.core.codec import key_of
from noisescope.core.errors import BadInputError, NoisescopeError
from noisescope.core.records import Injection
from noisescope.diagnose.bit_curve import BitCurve, BitCurves, bit_curves, bit_question
from noisescope.diagnose.fault_loss import LossQuestion
from noisescope.diagnose.fault_steps import STEPS, Bools, stepped
from noisescope.diagnose.fault_tests import FaultCase, FaultOutcome, FaultPlan, FaultTests, Located, Lost, Stepped
from noisescope.diagnose.fault_verdict import failed, outcome_of
from noisescope.diagnose.harm import yardstick
from noisescope.diagnose.setting import Setting
from noisescope.measure.batches import Samples, Settings, prepare
from noisescope.measure.calling import device_of
from noisescope.measure.metrics import USUAL
from noisescope.measure.stepping import Walk, prompts_of, walk
from noisescope.runs.diagnosing import Desk, Patient, Wanted, about, setting_of
from noisescope.runs.fault_places import injection_of, located_in, words_of
from noisescope.runs.kept_keys import BIT_CURVES, CALIBRATION
from noisescope.runs.localising import locate
from noisescope.runs.ordering import Order, hired, threads_of
from noisescope.sweep.bench import Task
from noisescope.sweep.evaluating import evaluating
from noisescope.sweep.injecting import Injecting
from noisescope.sweep.store import ABOUT, About, Request, Store
from noisescope.sweep.study import run_study
from noisescope.sweep.subject import load

# Samples that `locate` runs on, and the step of a generation that a fault of one step strikes: the first that has
# keys and values from before.
LOOKED_AT, FAULTY_STEP = 4, 1
_VERDICTS = ("no fault found", "undecided", "fault")


def loaded_in(order: Order, dtype: str) -> Order:
    """The same model in another number format. Trials do not name it, so it has a folder of its own."""
    options = tuple({**dict(order.load_options), "dtype": dtype}.items())
    return replace(order, load_options=options, out=order.out / f"bits-{dtype}")


@contextmanager
def fault_desk(order: Order, stream: TextIO | None) -> Iterator[Desk]:
    """The model loaded, and its run folder opened, which is refused if it belongs to another model or machine.

    The folder may hold other findings of the same model.
    """
    there = Store(order.out).about if (order.out / ABOUT).exists() else None
    options: dict[str, Any] = dict(order.load_options)
    # A run folder notes in which type a model was loaded.
    options["dtype"] = options.get("dtype") or (None if there is None else dict(there.settings).get("dtype"))
    subject = load(order.source, **options)
    task = Task(order.workload, order.metric or USUAL[order.workload.shape], Settings.of(subject.model))
    samples = prepare(task.workload, subject.tokenizer, task.metric, task.settings)
    patient = Patient(subject.model, subject.layers, subject.sites, samples, samples)
    threads = threads_of(order) if there is None else int(dict(there.settings).get("threads", 1))
    here = _fitted(about(patient, subject.fingerprint, threads, order.asked), there)
    same = replace(order, load_options=tuple(options.items()))
    with Store(order.out, here) as store, hired(same, subject, samples, task, threads) as executor:
        yield Desk(patient, store, executor, stream)


def _fitted(here: About, there: About | None) -> About:
    """What has to agree with a folder that is there: all but the workloads, which are part of every trial's name."""
    if there is None:
        return here
    calibration = dict(there.settings).get(CALIBRATION)
    settings = tuple((name, calibration if name == CALIBRATION else value) for name, value in here.settings)
    return replace(here, workload=there.workload, settings=settings)


def setting_for(desk: Desk, seeds: int, seed: int) -> Setting:
    """On what the faults are measured that stay."""
    setting = setting_of(desk.patient, Wanted(seeds=seeds, seed=seed))
    if desk.patient.samples.view not in ("answer", "choices"):
        raise BadInputError(
            f"{setting.metric} on {setting.shape} items is not scored at positions, of which a share could be not "
            "finite; take --metric nll."
        )
    if not yardstick(setting).is_share:
        raise BadInputError(f"{setting.metric} is 0 when clean, so there is no share of it to lose; take nll.")
    return replace(setting, budget=None)


def positions_in(samples: Samples) -> int:
    """The positions that one run over all samples scores."""
    return sum(len(batch.targets) for batch in samples.batches())


def run_fault_tests(desk: Desk, plan: FaultPlan, setting: Setting) -> FaultTests:
    """Every case of a plan, from what the folder holds and from what has still to be measured."""
    placed = _placed(desk, plan.cases)
    lost = _lost(desk, plan.cases, placed, setting)
    progress = desk.progress("fault tests", "cases")
    with progress:
        outcomes = tuple(_outcome(desk, case, placed[case.name], lost, setting) for case in progress.over(plan.cases))
    return FaultTests(plan, setting, outcomes)


def _placed(desk: Desk, cases: Sequence[FaultCase]) -> dict[str, Injection | str]:
    """The injection of every case, or why there is none."""
    patient = desk.patient
    inputs = _looked_at(desk)[0]
    found: dict[str, Injection | str] = {}
    for case in cases:
        try:
            injection = injection_of(case, patient.model, patient.sites, inputs)
            Injecting(patient.model, injection)  # refuses layers that the model does not have
            found[case.name] = injection
        except NoisescopeError as problem:
            found[case.name] = str(problem)
    return found


def _lost(
    desk: Desk, cases: Sequence[FaultCase], placed: Mapping[str, Injection | str], setting: Setting
) -> dict[str, Lost]:
    always = [(case.name, placed[case.name]) for case in cases if case.moment == "always"]
    faults = tuple((name, injection) for name, injection in always if isinstance(injection, Injection))
    if not faults:
        return {}
    question = LossQuestion(setting, faults, positions_in(desk.patient.samples))
    return run_study(question, desk.executor, desk.store, desk.progress("faults that stay"))


def _outcome(
    desk: Desk, case: FaultCase, injection: Injection | str, lost: Mapping[str, Lost], setting: Setting
) -> FaultOutcome:
    if isinstance(injection, str):
        return failed(case, injection)
    place = words_of(injection)
    try:
        seen = lost[case.name] if case.moment == "always" else _stepped(desk, injection, setting)
        located = _located(desk, injection)
    except NoisescopeError as problem:
        return failed(case, str(problem), place)
    return outcome_of(case, seen, located, place=place)


def _stepped(desk: Desk, injection: Injection, setting: Setting) -> Stepped:
    """A fault of one generation step, in all seeds, beside the walk without it."""
    patient, store = desk.patient, desk.store
    key = key_of(("steps", injection, patient.samples.key, setting.seeds, STEPS, FAULTY_STEP))
    kept = store.kept(f"steps-{key}", key, _lost_and_broken)
    if kept is None:
        prompts = prompts_of(patient.samples)
        with evaluating(patient.model):
            healthy = walk(patient.model, prompts, STEPS + FAULTY_STEP)
            walks = [_walked(desk, prompts, healthy, replace(injection, seed=seed)) for seed in setting.seeds]
        lost = np.stack([(one.tokens != healthy.tokens)[:, FAULTY_STEP:].numpy() for one in walks])
        kept = lost, np.stack([one.broken[:, FAULTY_STEP:].numpy() for one in walks])
        store.keep(f"steps-{key}", key, {"lost": kept[0], "broken": kept[1]})
    lost, broken = kept
    return stepped(lost | broken, broken, setting.confidence)


def _lost_and_broken(arrays: Mapping[str, np.ndarray[Any, Any]]) -> tuple[Bools, Bools]:
    return arrays["lost"], arrays["broken"]


def _walked(desk: Desk, prompts: torch.Tensor, healthy: Walk, injection: Injection) -> Walk:
    model = desk.patient.model

    def during(step: int) -> AbstractContextManager[object]:
        return Injecting(model, injection) if step == FAULTY_STEP else nullcontext()

    return walk(model, prompts, STEPS + FAULTY_STEP, along=healthy, during=during)


def _looked_at(desk: Desk) -> list[Mapping[str, Any]]:
    samples = desk.patient.samples
    return [batch.inputs for batch in samples.batches(0, min(LOOKED_AT, len(samples)), device_of(desk.patient.model))]


def _located(desk: Desk, injection: Injection) -> Located:
    """What locate says of a machine with this fault in every run."""
    patient, store = desk.patient, desk.store
    key = key_of(("located", injection, patient.samples.key, LOOKED_AT))
    kept = store.kept(f"located-{key}", key, _located_of)
    if kept is None:
        with Injecting(patient.model, injection):
            kept = located_in(locate(patient.model, _looked_at(desk)), injection)
        figures = [_VERDICTS.index(kept.verdict), kept.rank or 0, kept.suspects, kept.elsewhere]
        store.keep(f"located-{key}", key, {"figures": np.array(figures)})
    return kept


def _located_of(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Located:
    verdict, rank, suspects, elsewhere = (int(value) for value in arrays["figures"])
    return Located(_VERDICTS[verdict], rank or None, suspects, elsewhere)


def measured_curves(
    desk: Desk, operators: tuple[str, ...] | None, setting: Setting, rate: float
) -> tuple[BitCurve, ...]:
    """What flips of every bit cost, in the format that the model computes in. No operators are all of the model's."""
    dtype = str(dict(desk.store.about.settings).get("dtype"))
    chosen = setting.operators if operators is None else operators
    question = bit_question(setting, chosen, dtype, positions_in(desk.patient.samples), rate)
    lost = run_study(question, desk.executor, desk.store, desk.progress(f"bits of {dtype}"))
    return bit_curves(lost, chosen, dtype, setting.metric, rate)


def keep_curves(folder: Path, curves: Sequence[BitCurve], request: Request) -> None:
    """Beside those of earlier calls, of which one for the same operator, format and rate is replaced."""
    store = Store(folder)
    earlier: BitCurves = store.load_finding(BIT_CURVES, BitCurves) or BitCurves(())
    store.save_finding(BIT_CURVES, earlier.merged(curves), request)
