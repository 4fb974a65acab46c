"""Diagnoses of a model that is being trained: each in a run folder of its own, each a line in the gate's history.

The training goes on as if nothing had been asked: random state, gradients and modes are afterwards as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from noisescope.core.errors import BadInputError
from noisescope.diagnose.gate import GateRules
from noisescope.measure.batches import Settings, prepare
from noisescope.measure.metrics import USUAL
from noisescope.model.load import fingerprint
from noisescope.prescribe.baseline import check_comparable, checkpoint_of, read_baseline
from noisescope.runs.diagnosing import Desk, Wanted, about, examine, patient_of, setting_of
from noisescope.runs.gathering import workload_named
from noisescope.runs.gating import Passed, Passing, check_files, check_rules, gate
from noisescope.runs.kept_keys import DIAGNOSIS, GATE
from noisescope.runs.ordering import CALIBRATED_BY
from noisescope.runs.reporting import report
from noisescope.sweep.bench import ModelBench
from noisescope.sweep.evaluating import undisturbed
from noisescope.sweep.executors.serial import Serial
from noisescope.sweep.store import About, Request, Store

_MARK = 8


@dataclass(frozen=True)
class Checkups:
    """What is asked of a model every so many steps of its training, on what, and where the answers go.

    Without a metric it is the usual one of the items, without a calibration workload channels are watched on the data.
    """

    every: int
    wanted: Wanted = field(default_factory=Wanted)
    data: str = "demo:texts"
    samples: int = 50
    metric: str | None = None
    calibration: str | None = None
    baseline: Path | None = None
    history: Path = Path("runs/gate-history.jsonl")
    out: Path = Path("runs/training")
    label: str = "training"


class Examiner:
    """Makes the checkups of one model. What cannot be asked of it is refused when this is made."""

    def __init__(self, model: nn.Module, tokenizer: Any, asked: Checkups) -> None:
        if tokenizer is None:
            raise BadInputError(
                "a diagnosis in training needs the tokenizer: pass tokenizer=, or give the trainer one."
            )
        self.model, self.asked = model, asked
        settings = Settings.of(model)
        workload = workload_named(asked.data, asked.samples)
        samples = prepare(workload, tokenizer, asked.metric or USUAL[workload.shape], settings)
        calibration = samples
        if asked.calibration is not None:
            calibration = prepare(workload_named(asked.calibration, None), tokenizer, CALIBRATED_BY, settings)
        baseline = None if asked.baseline is None else read_baseline(asked.baseline)
        self._passing = Passing(asked.label, asked.data, GateRules(), baseline, history=asked.history)
        check_rules(self._passing, samples.metric.name)
        check_files(self._passing)
        with undisturbed(model):
            self._patient = patient_of(model, samples, calibration)
        if baseline is not None:
            here = checkpoint_of(self._about(""), asked.label, asked.data)
            check_comparable(baseline, setting_of(self._patient, asked.wanted), here)

    def examine(self, step: int) -> Passed:
        """Diagnose the model as it is after this step; the readings, the findings and the page are in a run folder."""
        mark = fingerprint(self.model)
        passing = replace(self._passing, name=f"{self.asked.label} step {step}")
        request = Request(self._command, passing.name, passing.data)
        # A run that is resumed comes to a step again, and need not come to the very same weights.
        folder = self.asked.out / f"step-{step:06d}-{mark[:_MARK]}"
        with undisturbed(self.model), Store(folder, self._about(mark)) as store:
            threads = torch.get_num_threads()
            samples = self._patient.samples
            desk = Desk(self._patient, store, Serial(lambda: ModelBench(self.model, samples), threads=threads))
            store.save_finding(DIAGNOSIS, examine(desk, self.asked.wanted), request)
            passed = gate(desk, self.asked.wanted, passing)
            store.save_finding(GATE, passed.gated, request)
        report(folder, ("html",))
        return passed

    def _about(self, mark: str) -> About:
        return about(self._patient, mark, torch.get_num_threads(), self._command)

    @property
    def _command(self) -> str:
        return f"a diagnosis every {self.asked.every} steps of training"
