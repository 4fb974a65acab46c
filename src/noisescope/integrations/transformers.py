"""Noise in the training loops of transformers and TRL: one callback for both.

The noise is on from the beginning of an optimizer step to its end, in passes with gradients alone: evaluation,
generation and the log-probabilities of a reference run without. It changes neither the loss nor the optimizer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from noisescope.core.errors import BadInputError
from noisescope.inject.schedule import Schedule
from noisescope.inject.tally import Tally
from noisescope.measure.indices import gradient_norm_ratio
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
        figures = self._figures(self.noise)
        logs.update(figures)
        if state.log_history:
            state.log_history[-1].update(figures)

    @property
    def _noise(self) -> TrainingNoise:
        if self.noise is None:
            raise BadInputError("a training step before on_train_begin: this callback needs a trainer that calls it.")
        return self.noise

    def _figures(self, noise: TrainingNoise) -> dict[str, float]:
        """Scale of the last step; realised noise and injections since the last call."""
        figures: dict[str, float] = {}
        if self.plan.schedule is not None:
            figures |= {"noise_scale": noise.scale, "noise_injections": noise.stats.total_forward}
            for phase in self.plan.phases:
                figures[f"noise_realised_{phase}"] = noise.stats.realised_in((phase,))
            figures["noise_injections"] += noise.stats.total_backward
        if self.plan.norms is not None:
            figures["noise_norm_scale"] = self.plan.norms.scale(self._step, self._steps)
            figures["noise_realised_norms"] = noise.weight_stats.realised
        if math.isfinite(self.gradient_ratio):
            figures["noise_gradient_ratio"] = self.gradient_ratio
        noise.stats.reset()
        noise.weight_stats.reset()
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


def _copied(inputs: Any) -> Any:
    """A loss may take entries out of its inputs."""
    return dict(inputs) if isinstance(inputs, Mapping) else inputs


def _gradient_norm(model: nn.Module, loss: Callable[[], Any]) -> float:
    """The norm of all gradients of a loss. Random state and gradients are afterwards as they were."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    kept = [weight.grad for weight in weights]
    try:
        with torch.random.fork_rng():
            for weight in weights:
                weight.grad = None
            found = loss()
            (found[0] if isinstance(found, tuple) else found).backward()
            return float(_norm(weight.grad for weight in weights if weight.grad is not None))
    finally:
        for weight, grad in zip(weights, kept, strict=True):
            weight.grad = grad


def _norm(grads: Iterable[Tensor]) -> Tensor:
    return torch.nn.utils.get_total_norm(list(grads))
