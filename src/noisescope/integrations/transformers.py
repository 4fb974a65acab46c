"""Noise and diagnoses in the training loops of transformers and TRL: two callbacks for both.

The noise is on from the beginning of an optimizer step to its end, in passes with gradients alone: evaluation,
generation and the log-probabilities of a reference run without. Neither callback changes the loss or the optimizer.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from noisescope.core.errors import BadInputError, NoisescopeError
from noisescope.inject.schedule import Schedule
from noisescope.inject.tally import Tally
from noisescope.measure.indices import gradient_norm_ratio
from noisescope.runs.checkups import Checkups, Examiner
from noisescope.runs.training_file import checkups_in, noise_in
from noisescope.sweep.evaluating import undisturbed
from noisescope.sweep.noisy_training import NoisePlan, TrainingNoise, noise_plan

Loss = Callable[..., Any]
_FROM_A_PLAN = "give either a plan or what it is made of"


class NoiseCallback(TrainerCallback):
    """Noise in training by a plan; `wanted` is what `noise_plan` takes, such as schedule="decay" or operators="linear".

    `attach(trainer)` rather than `callbacks=[...]`: only then is the noise switched off when training raises, do all
    loggers of the trainer get its figures, and is the gradient measured. `gradient_every` is the number of steps from
    one measurement to the next, which costs two further passes; 0 is never. As a context manager the callback is off
    at the end of the block, whatever happened in it.
    """

    def __init__(
        self,
        schedule: str | float | Schedule | NoisePlan | None = "decay",
        *,
        gradient_every: int = 50,
        **wanted: Any,
    ) -> None:
        if isinstance(schedule, NoisePlan) and wanted:
            raise BadInputError(f"{', '.join(wanted)} beside a plan: {_FROM_A_PLAN}.")
        self.plan = schedule if isinstance(schedule, NoisePlan) else noise_plan(schedule, **wanted)
        self.gradient_every = gradient_every
        self.noise: TrainingNoise | None = None
        self.gradient_ratio = math.nan
        self._step, self._steps = 0, 0
        self._is_proven, self._is_first_batch = False, False

    @classmethod
    def of_file(cls, path: str | Path, *, gradient_every: int = 50) -> Self:
        """The noise that the block `noise:` of a YAML file asks for."""
        return cls(noise_in(Path(path)), gradient_every=gradient_every)

    def attach(self, trainer: Trainer) -> Self:
        """Add this callback to a trainer, in front of its loggers, and see that nothing outlasts its training."""
        handler = trainer.callback_handler
        handler.callbacks[:] = [self, *(other for other in handler.callbacks if other is not self)]
        trainer.__dict__["train"] = self._ended_by(trainer.train)
        if self.gradient_every and not (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
            trainer.__dict__["compute_loss"] = self._measured_by(trainer.compute_loss)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """No noise from now on; what was counted stays."""
        if self.noise is not None:
            self.noise.stop()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Learn the model; what the plan names and the model lacks is refused before the first step."""
        self._is_proven = False
        self.noise = TrainingNoise(kwargs["model"], self.plan, stream=args.process_index)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The noise of this optimizer step, for all its micro-batches."""
        self._step, self._steps = state.global_step, state.max_steps
        self._is_first_batch = True
        self._noise.start(self._step, self._steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Off; after the first noisy step raise if the noise did not land where it was asked for."""
        if self._noise.is_on and not self._is_proven:
            self._noise.verify()
            self._is_proven = True
        self._noise.stop()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Off."""
        self.stop()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the figures of the noise to those of the training."""
        if self.noise is None or not logs or "loss" not in logs:
            return
        _add(self._figures(self.noise), logs, state)

    @property
    def _noise(self) -> TrainingNoise:
        if self.noise is None:
            raise BadInputError("a training step before on_train_begin: this callback needs a trainer that calls it.")
        return self.noise

    def _figures(self, noise: TrainingNoise) -> dict[str, float]:
        figures = {f"noise_{name}": value for name, value in noise.figures().items()}
        if math.isfinite(self.gradient_ratio):
            figures["noise_gradient_ratio"] = self.gradient_ratio
        return figures

    def _ended_by(self, train: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(train)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return train(*args, **kwargs)

        return run

    def _measured_by(self, compute_loss: Loss) -> Loss:
        @functools.wraps(compute_loss)
        def run(model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_first_batch:
                self._is_first_batch = False
                if self._noise.is_on and self._step % self.gradient_every == 0:
                    self._measure_gradient(model, lambda: compute_loss(model, _copied(inputs), *args, **kwargs))
            return compute_loss(model, inputs, *args, **kwargs)

        return run

    def _measure_gradient(self, model: nn.Module, loss: Callable[[], Any]) -> None:
        """The norm of the gradient with noise over that without, on the same samples and dropout."""
        noise = self._noise
        counted, noise.stats = noise.stats, Tally()
        noise.stop()
        clean = _gradient_norm(model, loss)
        noise.start(self._step, self._steps)
        noisy = _gradient_norm(model, loss)
        noise.stats = counted
        # Passes are counted anew: the step gets the noise that it gets where nothing is measured.
        noise.start(self._step, self._steps)
        self.gradient_ratio = gradient_norm_ratio(noisy, clean) if clean > 0 else math.nan


class DiagnosisCallback(TrainerCallback):
    """A diagnosis every so many steps, each a line in the gate's history; None asks for none.

    Use `attach(trainer)`: it puts this callback behind those of noise, so that none is on meanwhile, and in front of
    the loggers. The tokenizer is the trainer's unless another is given. A diagnosis that fails is told on stderr and
    ends nothing.
    """

    def __init__(self, asked: Checkups | None, *, tokenizer: Any | None = None) -> None:
        self.asked, self.tokenizer = asked, tokenizer
        self._examiner: Examiner | None = None
        self._trainer: Trainer | None = None
        self._figures: dict[str, float] = {}

    @classmethod
    def of_file(cls, path: str | Path, *, tokenizer: Any | None = None) -> Self:
        """The diagnoses that the block `diagnostic:` of a YAML file asks for."""
        return cls(checkups_in(Path(path)), tokenizer=tokenizer)

    def attach(self, trainer: Trainer) -> Self:
        """Add this callback to a trainer."""
        handler = trainer.callback_handler
        handler.callbacks[:] = [other for other in handler.callbacks if other is not self]
        handler.callbacks.insert(_behind_noise(trainer), self)
        self._trainer = trainer
        return self

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Read data and baseline; what cannot be asked is refused before the first step."""
        if self.asked is None or not state.is_world_process_zero:
            return
        if self._trainer is None:
            raise BadInputError("DiagnosisCallback was handed over as a callback; expected .attach(trainer).")
        if self._trainer.callback_handler.callbacks.index(self) < _behind_noise(self._trainer):
            raise BadInputError(
                "DiagnosisCallback stands before NoiseCallback, whose noise would be on meanwhile; expected "
                "NoiseCallback.attach(trainer)."
            )
        if self._trainer.is_fsdp_enabled or self._trainer.is_deepspeed_enabled:
            raise BadInputError(
                "a diagnosis in training needs the whole model in one process, and here it is sharded; run "
                "`noisescope gate` on the checkpoints that the training saves."
            )
        self._examiner = Examiner(kwargs["model"], self.tokenizer or kwargs.get("processing_class"), self.asked)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Diagnose, where it is time."""
        if self._examiner is None or self.asked is None or state.global_step % self.asked.every:
            return
        try:
            gate = self._examiner.examine(state.global_step).gated.gate
        except (NoisescopeError, OSError) as problem:
            sys.stderr.write(f"noisescope: no diagnosis at step {state.global_step}: {problem}\n")
            return
        harms = {one.operator: one.harm for one in gate.operators}
        self._figures = {f"diagnosis_{name}": harm.estimate for name, harm in harms.items() if harm is not None}
        if gate.clean is not None:
            self._figures["diagnosis_clean"] = gate.clean.estimate

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add what noise cost in each operator, and the clean score, after each diagnosis once."""
        if logs and "loss" in logs and self._figures:
            _add(self._figures, logs, state)
            self._figures = {}


def _behind_noise(trainer: Trainer) -> int:
    """The first place behind all callbacks of noise."""
    places = [n for n, one in enumerate(trainer.callback_handler.callbacks) if isinstance(one, NoiseCallback)]
    return max(places, default=-1) + 1


def _add(figures: dict[str, float], logs: dict[str, Any], state: TrainerState) -> None:
    logs.update(figures)
    if state.log_history:
        state.log_history[-1].update(figures)


def _copied(inputs: Any) -> Any:
    """A loss may take entries out of its inputs."""
    return dict(inputs) if isinstance(inputs, Mapping) else inputs


def _gradient_norm(model: nn.Module, loss: Callable[[], Any]) -> float:
    """The norm of all gradients of a loss. Random state and gradients are afterwards as they were."""
    with undisturbed(model):
        found = loss()
        (found[0] if isinstance(found, tuple) else found).backward()
        return float(_norm(weight.grad for weight in model.parameters() if weight.grad is not None))


def _norm(grads: Iterable[Tensor]) -> Tensor:
    return torch.nn.utils.get_total_norm(list(grads))
