"""Noise in the training passes of one engine of verl, and nowhere else: what is mixed into its class.

References, old log-probabilities and evaluation are forward-only passes and run without. It knows verl by the few
names that it overrides or reads, and does not import it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

from torch import distributed

from noisescope.sweep.noisy_training import NoisePlan, TrainingNoise


class NoisyActor:
    """Mixed in front of an engine's class. The step is that of its learning-rate schedule, which checkpoints keep.

    A step of several mini-batches has one scale and, in operators, noise of its own for each.
    """

    plan: ClassVar[NoisePlan]
    noise: TrainingNoise | None = None
    _step, _part = -1, 0
    _is_proven = False

    def initialize(self) -> None:
        """Build the model; what the plan names and the model lacks is refused before the first step."""
        engine: Any = super()
        engine.initialize()
        if not self._engine.engine_config.forward_only:
            self.noise = TrainingNoise(self._engine.module, self.plan, stream=_rank())

    def forward_backward_batch(self, data: Any, loss_function: Callable[..., Any], forward_only: bool = False) -> Any:
        """The passes of one mini-batch; noisy if they learn."""
        engine: Any = super()
        if forward_only or self.noise is None:
            return engine.forward_backward_batch(data, loss_function, forward_only=forward_only)
        step = self._engine.lr_scheduler.last_epoch
        self._part = self._part + 1 if step == self._step else 0
        self._step = step
        with self.noise:
            self.noise.start(step, self._engine.optimizer_config.total_training_steps, self._part)
            output = engine.forward_backward_batch(data, loss_function, forward_only=False)
            self._prove(self.noise)
        self._report(self.noise, output["metrics"])
        return output

    @property
    def _engine(self) -> Any:
        """The engine that this is mixed into."""
        return self

    def _prove(self, noise: TrainingNoise) -> None:
        """Raise if the first noise did not land where it was asked for; else say so once."""
        if self._is_proven or not noise.is_on:
            return
        noise.verify()
        self._is_proven = True
        if not _rank():
            counts = noise.stats.total_forward, noise.stats.total_backward, len(noise.weight_stats.by_site())
            sys.stderr.write(
                f"noisescope: noise has landed at step {self._step}, in {counts[0]} outputs, {counts[1]} gradients "
                f"and {counts[2]} norms\n"
            )

    def _report(self, noise: TrainingNoise, metrics: dict[str, Any]) -> None:
        """Beside figures of the loss, as lists as those are; a loop whose loss has none cannot log them."""
        if metrics:
            metrics.update({f"noise/{name}": [value] for name, value in noise.figures().items()})


def _rank() -> int:
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
