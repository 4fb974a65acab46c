"""Runs an experiment of training under noise: trains what is missing, evaluates it, and concludes.

Every trained arm and every evaluation is kept in the run folder as it comes; the same call goes on from there. What
follows from the scores is concluded in `noisescope.diagnose.experiment`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from noisescope.core.codec import key_of
from noisescope.core.errors import BadInputError, NoisescopeError
from noisescope.core.experiment import ADAPTIVE, LEVELS, NONE, Arm, Disturbance, Recipe, Task, World, worlds_of
from noisescope.core.records import Injection, Params, Reading, Trial, noise
from noisescope.core.version import VERSION
from noisescope.diagnose.experiment import (
    AT,
    CLAIMS,
    Disturbed,
    Evaluated,
    Experiment,
    WorldResult,
    conclude_world,
    disturbed,
)
from noisescope.measure.calling import device_of
from noisescope.measure.metrics import METRICS, USUAL
from noisescope.measure.statistics import FloatArray
from noisescope.measure.word_problems import guessed
from noisescope.measure.workload import Workload, read_workload
from noisescope.model.layout import layout_of
from noisescope.prescribe.noise_training import adaptive_factors
from noisescope.runs.kept_keys import EXPERIMENT
from noisescope.sweep.arms import (
    GIVEN,
    PROFILE,
    ArmBenchMaker,
    Case,
    Laboratory,
    note_of,
    seeds_of_test,
    trained_arm,
)
from noisescope.sweep.executors.process import Processes
from noisescope.sweep.executors.serial import Serial
from noisescope.sweep.gradients import disturbances
from noisescope.sweep.progress import Progress
from noisescope.sweep.store import About, Request, Store
from noisescope.sweep.study import Executor, Interrupted, run_study
from noisescope.sweep.training import batch_of, examples_of

PRETEST, BATCHES = "pretest", 8


class ExperimentError(NoisescopeError):
    """Something that an experiment rests on did not happen, so nothing is concluded."""


@dataclass(frozen=True)
class ExperimentWanted:
    """What is run: the experiment by name, rival explanations beside it, the recipe, and by how many processes."""

    name: str
    recipe: Recipe
    rivals: tuple[str, ...] = ()
    source: str | None = None
    data: str | None = None
    load_options: Params = ()
    workers: int = 1

    def task(self) -> Task | None:
        """The task of a given model; None for the one that is made here."""
        if self.source is None and self.data is None:
            return None
        if self.source is None or self.data is None:
            raise BadInputError("--model and --data go together: the model, and the JSONL file that it learns from.")
        return Task(GIVEN, USUAL[read_workload(self.data, limit=1).shape])

    @property
    def laboratory(self) -> Laboratory:
        """Where its arms are made."""
        return Laboratory(self.recipe, self.source, self.data, self.load_options)


@dataclass(frozen=True)
class _Desk:
    wanted: ExperimentWanted
    store: Store
    stream: TextIO | None

    @property
    def laboratory(self) -> Laboratory:
        return self.wanted.laboratory

    def progress(self, label: str, unit: str) -> Progress:
        return Progress(label, self.stream, unit)


def run_experiment(
    wanted: ExperimentWanted, out: str | Path, *, asked: str = "", stream: TextIO | None = None
) -> Experiment:
    """Train, evaluate, conclude, and keep it all in a run folder."""
    worlds = worlds_of(wanted.name, wanted.rivals, wanted.task())
    _check_levels(wanted.recipe)
    with Store(out, _about(wanted, worlds[0], asked)) as store:
        desk = _Desk(wanted, store, stream)
        try:
            found = _found(desk, worlds)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted; every trained arm and every evaluation so far is kept in {store.folder}. "
                "Repeat the command to go on."
            ) from None
        store.save_finding(EXPERIMENT, found, Request(asked, found.subject, worlds[0].task.name))
        return found


def _about(wanted: ExperimentWanted, main: World, asked: str) -> About:
    """Claims and recipe are part of what a folder is: neither can be chosen once something was seen."""
    workload = wanted.laboratory.split(main.task).test.content_hash
    settings: Params = (
        ("claims", key_of(CLAIMS[wanted.name])),
        ("experiment", wanted.name),
        ("model", wanted.source or "made here"),
        ("recipe", key_of(wanted.recipe)),
        ("threads", 1),
    )
    device = str(dict(wanted.load_options).get("device", "cpu"))
    versions = (("noisescope", VERSION), ("torch", torch.__version__))
    return About("", workload, settings, device, versions, asked)


def _check_levels(recipe: Recipe) -> None:
    missing = [level for level in (0.0, AT) if level not in recipe.levels]
    if missing:
        raise BadInputError(
            f"noise levels {recipe.levels}: expected {missing[0]:g} among them, which the claims need, as in {LEVELS}."
        )


def _found(desk: _Desk, worlds: Sequence[World]) -> Experiment:
    recipe, lab = desk.wanted.recipe, desk.laboratory
    first = Arm(NONE, worlds[0], 0)
    pretest = _pretest(desk, "before training", first)
    arms = {world.name: _arms(world, recipe) for world in worlds}
    _train(desk, [arm for of_world in arms.values() for arm in of_world if arm.name != ADAPTIVE])
    pretest += _pretest(desk, "after training", first)
    factors: tuple[tuple[tuple[int, float], ...], ...] = ()
    if desk.wanted.name == "adaptive":
        factors = _factors(desk, [arm for arm in arms[worlds[0].name] if arm.name == NONE])
        arms = {name: _adapted(of_world, factors) for name, of_world in arms.items()}
        _train(desk, [arm for of_world in arms.values() for arm in of_world])
    results = tuple(_world(desk, world, arms[world.name]) for world in worlds)
    guess = guessed(lab.split(worlds[0].task).test)
    return Experiment(desk.wanted.name, _subject(desk.wanted), recipe, pretest, results, guess, factors)


def _subject(wanted: ExperimentWanted) -> str:
    recipe = wanted.recipe
    return wanted.source or f"a Llama of {recipe.layers} layers and width {recipe.width} built here"


def _arms(world: World, recipe: Recipe) -> list[Arm]:
    return [Arm(name, world, seed) for name in world.arms for seed in range(recipe.seeds)]


def _train(desk: _Desk, arms: Sequence[Arm]) -> None:
    """Train every arm that is not there, each once, in as many processes as are wanted."""
    home, lab = desk.store.folder, desk.laboratory
    missing = list({lab.folder(home, arm): arm for arm in arms if not lab.folder(home, arm).is_dir()}.values())
    with desk.progress("training", "arms") as shown:
        shown.expect(len(missing))
        for _ in _each(lambda arm: (lab, arm, home), missing, desk.wanted.workers):
            shown.advance()


def _each(job: Callable[[Arm], tuple[Any, ...]], arms: Sequence[Arm], workers: int) -> Iterable[None]:
    if workers == 1 or len(arms) < 2:
        for arm in arms:
            trained_arm(*job(arm))
            yield
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_hear_no_interrupt) as pool:
        waiting = [pool.submit(trained_arm, *job(arm)) for arm in arms]
        try:
            for done in as_completed(waiting):
                done.result()
                yield
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _hear_no_interrupt() -> None:
    """Ctrl-C reaches every process of a terminal; ending the workers is the driver's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _pretest(desk: _Desk, state: str, arm: Arm) -> tuple[Disturbed, ...]:
    """How large noise is in gradients and activations, in one state of the arm without noise."""
    name, folder = f"{PRETEST}-{state.replace(' ', '-')}", desk.laboratory.folder(desk.store.folder, arm)
    kept = desk.store.load_finding(name, _Seen)
    if kept is None:
        kept = _Seen(_disturbances(desk.laboratory, arm, folder if folder.is_dir() else None))
        desk.store.save_finding(name, kept)
    return disturbed(state, kept.disturbances)


@dataclass(frozen=True)
class _Seen:
    disturbances: tuple[Disturbance, ...]


def _disturbances(lab: Laboratory, arm: Arm, folder: Path | None) -> tuple[Disturbance, ...]:
    loaded = lab.untrained(arm) if folder is None else replace(lab, source=str(folder)).untrained(arm)
    items = lab.split(arm.world.task).train
    few = Workload.of(items.name, items.items[: BATCHES * lab.recipe.rows])
    examples = examples_of(lab.prepared(loaded, few, "nll"))
    parts = [examples[i : i + lab.recipe.rows] for i in range(0, len(examples), lab.recipe.rows)]
    batches = [batch_of(part, device_of(loaded.model)) for part in parts]
    return disturbances(loaded.model, batches, AT, PROFILE)


def _factors(desk: _Desk, arms: Sequence[Arm]) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Of each seed the scale of each layer, from what noise in that layer alone costs the arm without noise.

    It is measured on items of neither training nor test, with noise of neither.
    """
    lab = desk.laboratory
    layers = len(layout_of(lab.untrained(arms[0]).model).layers)
    cases = [_case(desk, arm, "between") for arm in arms]
    trials = {
        (case.workload, layer): _trials(case, 0.0 if layer is None else AT, _profile_seeds(lab.recipe), layer)
        for case in cases
        for layer in (None, *range(layers))
    }
    known = _measure(desk, cases, [trial for of_one in trials.values() for trial in of_one], "profile")
    sign = 1 if METRICS[cases[0].metric].higher_is_better else -1
    found = []
    for case in cases:
        score = {layer: _mean(known, trials[case.workload, layer]).mean() for layer in (None, *range(layers))}
        clean = score[None]
        if clean <= 0:
            raise ExperimentError(f"{case.folder}: a clean score of 0 has no profile; train for longer.")
        lost = {layer: float((clean - score[layer]) / clean * sign) for layer in range(layers)}
        found.append(tuple(adaptive_factors(lost, layers, equal_mean=True).items()))
    return tuple(found)


def _profile_seeds(recipe: Recipe) -> tuple[int, ...]:
    return tuple(PROFILE + draw for draw in range(recipe.draws))


def _adapted(arms: Sequence[Arm], factors: Sequence[tuple[tuple[int, float], ...]]) -> list[Arm]:
    return [replace(arm, factors=factors[arm.seed]) if arm.name == ADAPTIVE else arm for arm in arms]


def _world(desk: _Desk, world: World, arms: Sequence[Arm]) -> WorldResult:
    """All arms of a world evaluated at all levels, and what follows."""
    recipe, lab = desk.wanted.recipe, desk.laboratory
    cases = [_case(desk, arm, "test") for arm in arms]
    trials = {
        (arm, level): _trials(case, level, seeds_of_test(arm, recipe))
        for arm, case in zip(arms, cases, strict=True)
        for level in recipe.levels
    }
    known = _measure(
        desk, cases, [trial for of_one in trials.values() for trial in of_one], f"evaluation, {world.name}"
    )
    evaluated = {}
    for name in dict.fromkeys(arm.name for arm in arms):
        own = tuple(arm for arm in arms if arm.name == name)
        values = {level: np.stack([_mean(known, trials[arm, level]) for arm in own]) for level in recipe.levels}
        counts = {
            level: sum(known[key_of(trial)].injections for arm in own for trial in trials[arm, level])
            for level in recipe.levels
        }
        notes = tuple(note_of(lab.folder(desk.store.folder, arm)) for arm in own)
        evaluated[name] = Evaluated(own, notes, values, counts)
    return conclude_world(world, evaluated, CLAIMS[desk.wanted.name], guessed(cases[0].items))


def _case(desk: _Desk, arm: Arm, part: str) -> Case:
    lab = desk.laboratory
    items: Workload = getattr(lab.split(arm.world.task), part)
    name = key_of((lab.mark(arm), items.content_hash, arm.world.task.metric))
    return Case(str(lab.folder(desk.store.folder, arm)), name, items, arm.world.task.metric)


def _trials(case: Case, level: float, seeds: Sequence[int], layer: int | None = None) -> list[Trial]:
    """The clean run, or noise of one scale in each of the seeds."""
    if level == 0:
        return [Trial((), case.workload, case.metric, 0, len(case.items))]
    layers = None if layer is None else (layer,)
    return [
        Trial((Injection(noise(scale=level), layers, seed=seed),), case.workload, case.metric, 0, len(case.items))
        for seed in seeds
    ]


class _Asked:
    """Asks for trials, and gives all their readings."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = trials

    def plan(self, _: Mapping[str, Reading], /) -> Sequence[Trial]:
        return self._trials

    def conclude(self, known: Mapping[str, Reading], /) -> Mapping[str, Reading]:
        return known


def _measure(desk: _Desk, cases: Sequence[Case], trials: Sequence[Trial], label: str) -> Mapping[str, Reading]:
    """The readings of all trials, from the folder or measured; one that failed ends the experiment."""
    maker = ArmBenchMaker(desk.laboratory, tuple(cases))
    progress = desk.progress(label, "trials")
    if desk.wanted.workers == 1:
        executor: Executor = Serial(maker, threads=1)
        known = run_study(_Asked(trials), executor, desk.store, progress)
    else:
        with Processes(maker, desk.wanted.workers, threads=1) as processes:
            known = run_study(_Asked(trials), processes, desk.store, progress)
    wrong = [known[key_of(trial)].error for trial in trials if known[key_of(trial)].error is not None]
    if wrong:
        raise ExperimentError(f"{len(wrong)} of {len(trials)} trials of {label} failed, so nothing follows: {wrong[0]}")
    silent = [trial for trial in trials if trial.injections and not known[key_of(trial)].injections]
    if silent:
        raise ExperimentError(f"{len(silent)} of {len(trials)} trials of {label} made no injection; nothing follows.")
    return known


def _mean(known: Mapping[str, Reading], trials: Sequence[Trial]) -> FloatArray:
    """Of each item, the mean over the draws of the noise."""
    rows = np.array([known[key_of(trial)].values for trial in trials], dtype=np.float64)
    return np.asarray(rows.mean(axis=0))
