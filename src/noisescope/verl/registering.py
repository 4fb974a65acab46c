"""Registers engines with verl: for FSDP2 one whose actor trains with noise, for every other backend a refusal.

Without the refusal verl would fall back to its own engine, and a run that asked for noise would have none. FSDP1 is
among the refused: it flattens the weights, so that norms that a model writes by hand could not be told.
"""

from __future__ import annotations

from typing import Any

from verl.workers.engine import BaseEngine, EngineRegistry, FSDPEngineWithLMHead

from noisescope.core.errors import BadInputError
from noisescope.sweep.noisy_training import NoisePlan
from noisescope.verl.actor import NoisyActor

MODEL, DEVICES, NOISY = "language_model", ["cuda", "npu"], ["fsdp2"]


def register(noise: NoisePlan, vendor: str) -> None:
    """Have verl train language models with this noise where `vendor` is chosen."""

    class NoisyEngine(NoisyActor, FSDPEngineWithLMHead):  # type: ignore[misc]
        plan = noise

    EngineRegistry.register(MODEL, NOISY, DEVICES, vendor)(NoisyEngine)
    others = [backend for backend in EngineRegistry._engines[MODEL] if backend not in NOISY]
    if others:
        EngineRegistry.register(MODEL, others, DEVICES, vendor)(_Refusal)


class _Refusal(BaseEngine):  # type: ignore[misc]
    def __init__(self, *_: Any, **__: Any) -> None:
        raise BadInputError(
            f"noise was asked for, and there is an engine for it for {NOISY[0]} alone: set strategy={NOISY[0]}, "
            "also for the reference, or unset NOISESCOPE_ENABLED and NOISESCOPE_CONFIG."
        )
