"""Trained arms on the disk: each trained once, kept whole or not at all, and measured like any model.

Which arms there are, and what their readings mean, is decided elsewhere.
"""

from __future__ import annotations

import functools
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from noisescope.core.codec import decode, encode, key_of
from noisescope.core.errors import BadInputError
from noisescope.core.experiment import BOTH, Arm, Recipe, Task, Trained
from noisescope.core.records import Params, Reading, Trial
from noisescope.inject.schedule import read_schedule
from noisescope.measure.batches import Prepared, Settings, prepare
from noisescope.measure.word_problems import Split, check_disjoint, held_out, problems, texts, vocabulary
from noisescope.measure.workload import Workload, read_workload
from noisescope.model.load import Loaded, load
from noisescope.model.pretrained import quiet
from noisescope.model.small import small_model
from noisescope.sweep.bench import ModelBench
from noisescope.sweep.noisy_training import NoisePlan
from noisescope.sweep.training import Lessons, examples_of, train

NOTE = "trained.json"
# Far from the seeds of training, which are hashes of 64 bits; the profile of a model has seeds of its own.
_TEST, PROFILE = 1_000_000, 2_000_000
GIVEN = "given"
# Answers are numbers of a few digits; a few hundred prompts make a batch.
_OF_SMALL = {"tokens_per_batch": 8192, "max_new_tokens": 6}


@dataclass(frozen=True)
class Laboratory:
    """How any arm of an experiment is made, here or in a worker process.

    Without a `source` the model is a small one built for the task; with one, `data` is what it learns and is judged on.
    """

    recipe: Recipe
    source: str | None = None
    data: str | None = None
    load_options: Params = ()

    def split(self, task: Task) -> Split:
        """The items of a task."""
        return _split(self.recipe, task, self.data)

    def untrained(self, arm: Arm) -> Loaded:
        """The model before its first step."""
        if self.source is not None:
            options: dict[str, Any] = dict(self.load_options)
            return load(self.source, **options)
        width = self.recipe.width * arm.world.factor
        return small_model(vocabulary(), width=width, layers=self.recipe.layers, seed=arm.seed)

    def prepared(self, loaded: Loaded, workload: Workload, metric: str) -> Prepared:
        """Items in the tokens of a model."""
        settings = Settings.of(loaded.model, **({} if self.source else _OF_SMALL))
        return prepare(workload, loaded.tokenizer, metric, settings)

    def mark(self, arm: Arm) -> str:
        """The name of an arm by all that makes it what it is."""
        return key_of((self.recipe, self.source, self.data, self.load_options, arm.origin))

    def folder(self, home: Path, arm: Arm) -> Path:
        """Where an arm is kept."""
        return home / "arms" / f"{arm.name.replace(' ', '-').replace('%', '')}-{arm.seed}-{self.mark(arm)[:8]}"


@functools.lru_cache(maxsize=4)
def _split(recipe: Recipe, task: Task, data: str | None) -> Split:
    if task.name == GIVEN:
        if data is None:
            raise BadInputError("--model without --data: name a JSONL file to learn from.")
        found = held_out(read_workload(data), recipe.items, recipe.between)
    elif task.name == "texts":
        found = texts(recipe.examples, recipe.items, recipe.between)
    else:
        found = problems(recipe.examples, recipe.items, recipe.between, recipe.largest)
    check_disjoint(found)
    return found


def plan_of(arm: Arm) -> NoisePlan | None:
    """The noise of an arm's training."""
    if not arm.scale:
        return None
    world = arm.world
    schedule = read_schedule("1" if world.schedule == "constant" else world.schedule).times(arm.scale)
    return NoisePlan(
        schedule,
        world.kind,
        phases=arm.phases,
        factors=arm.factors,
        seed=arm.seed,
        is_fresh=not world.shares_seeds,
    )


def seeds_of_test(arm: Arm, recipe: Recipe) -> tuple[int, ...]:
    """The seeds of the noise in evaluation: never one of training, unless the world is about just that."""
    plan = plan_of(arm)
    if arm.world.shares_seeds:
        shared = plan_of(replace(arm, name=BOTH)) if plan is None else plan
        return () if shared is None else (shared.injection(1.0, 0).seed,)
    seeds = tuple(_TEST + arm.seed * recipe.draws + draw for draw in range(recipe.draws))
    check_apart(plan, recipe.steps, seeds)
    return seeds


def check_apart(plan: NoisePlan | None, steps: int, seeds: Sequence[int]) -> None:
    """Refuse to test with noise that the model was trained on: it could have learned it by heart."""
    if plan is None:
        return
    met = {plan.injection(1.0, step).seed for step in range(steps)} & set(seeds)
    if met:
        raise BadInputError(f"seed {min(met)} is used in training and in the test; expected seeds that differ.")


def trained_arm(laboratory: Laboratory, arm: Arm, home: Path) -> Path:
    """The folder of an arm, trained if it is not there. A folder that is there is whole."""
    folder = laboratory.folder(home, arm)
    if (folder / NOTE).is_file():
        return folder
    torch.set_num_threads(1)
    loaded, recipe = laboratory.untrained(arm), laboratory.recipe
    learned = laboratory.prepared(loaded, laboratory.split(arm.world.task).train, "nll")
    lessons = Lessons(recipe.steps, recipe.rows, recipe.rate, arm.seed)
    with torch.random.fork_rng():
        torch.manual_seed(arm.seed)
        trained = train(loaded.model, examples_of(learned), lessons, plan_of(arm))
    _keep(loaded, trained, folder)
    return folder


def _keep(loaded: Loaded, trained: Trained, folder: Path) -> None:
    """All files or none, whenever the process is ended."""
    part = folder.with_name(f".{folder.name}-{os.getpid()}-{secrets.token_hex(4)}.part")
    model: Any = loaded.model
    try:
        part.mkdir(parents=True)
        with quiet():
            model.save_pretrained(part)
            if loaded.tokenizer is not None:
                loaded.tokenizer.save_pretrained(part)
        (part / NOTE).write_text(encode(trained), encoding="utf-8")
        part.rename(folder)
    except OSError as problem:
        # A worker that outlived a killed run may have finished the same arm meanwhile.
        if (folder / NOTE).is_file():
            return
        raise BadInputError(f"{folder}: cannot be written ({problem.strerror}); choose another folder.") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def note_of(folder: Path) -> Trained:
    """What became of a training."""
    try:
        return decode(Trained, (folder / NOTE).read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise BadInputError(f"{folder / NOTE}: cannot be read ({problem}). Delete the folder and repeat.") from None


@dataclass(frozen=True)
class Case:
    """A trained arm and the items that it is asked about; `workload` names both, so that readings tell arms apart."""

    folder: str
    workload: str
    items: Workload
    metric: str


@dataclass(frozen=True)
class ArmBenchMaker:
    """Makes a bench for all cases, wherever they are measured."""

    laboratory: Laboratory
    cases: tuple[Case, ...]

    def __call__(self) -> ArmBench:
        return ArmBench(self.laboratory, {case.workload: case for case in self.cases})


class ArmBench:
    """Measures trials on trained arms; the last one is kept loaded."""

    def __init__(self, laboratory: Laboratory, cases: Mapping[str, Case]) -> None:
        self._laboratory, self._cases = laboratory, cases
        self._last: tuple[str, ModelBench] | None = None

    def measure(self, trial: Trial, /) -> Reading:
        """The reading of a trial; noise that never fires, or changes nothing, raises."""
        if self._last is None or self._last[0] != trial.workload:
            self._last = (trial.workload, self._bench(self._cases[trial.workload]))
        return self._last[1].measure(trial)

    def _bench(self, case: Case) -> ModelBench:
        device = dict(self._laboratory.load_options).get("device", "cpu")
        loaded = load(case.folder, device=str(device))
        prepared = self._laboratory.prepared(loaded, case.items, case.metric)
        return ModelBench(loaded.model, replace(prepared, key=case.workload))
