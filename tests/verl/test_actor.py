"""What is mixed into an engine of verl, in an engine of a few lines with the methods that verl calls."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cases
from noisescope.core.errors import BadInputError, NeverFiredError
from noisescope.sweep.noisy_training import NoisePlan, noise_plan
from noisescope.verl.actor import NoisyActor

STEPS, MICRO_BATCHES = 4, 2
# 15 linears, 4 products, 2 softmaxes, 2 silus, 5 norms.
OPERATORS = 28


class Engine:
    """The passes of an engine without sharding. Its loss has figures if it is told so."""

    def __init__(self, *, is_reference: bool = False, has_figures: bool = False) -> None:
        self.engine_config = SimpleNamespace(forward_only=is_reference)
        self.optimizer_config = SimpleNamespace(total_training_steps=STEPS)
        self.lr_scheduler = SimpleNamespace(last_epoch=0)
        self.has_figures = has_figures
        self.module: nn.Module

    def initialize(self) -> None:
        self.module = cases.make("llama")

    def forward_backward_batch(self, data: Tensor, loss_function: Any, forward_only: bool = False) -> Any:
        losses = []
        with torch.no_grad() if forward_only else nullcontext():
            for rows in data.chunk(MICRO_BATCHES):
                loss = loss_function(self.module(input_ids=rows).logits, rows)
                losses.append(float(loss.detach()))
                if not forward_only:
                    loss.backward()
        return {"loss": losses, "metrics": {"actor/pg_loss": losses} if self.has_figures else {}}

    def step(self) -> None:
        self.lr_scheduler.last_epoch += 1


def loss_of(logits: Tensor, rows: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())


# All micro-batches hold the same rows, so that losses differ by noise alone.
DATA = torch.randint(3, 128, (1, 6), generator=torch.Generator().manual_seed(1)).expand(2 * MICRO_BATCHES, -1)


def engine_of(asked: NoisePlan, **how: bool) -> Any:
    made: Any = type("Noisy", (NoisyActor, Engine), {"plan": asked})(**how)
    made.initialize()
    return made


def trained(engine: Any) -> list[float]:
    losses: list[float] = engine.forward_backward_batch(DATA, loss_of)["loss"]
    return losses


def asked(engine: Any) -> list[float]:
    losses: list[float] = engine.forward_backward_batch(DATA, loss_of, forward_only=True)["loss"]
    return losses


def plain() -> Any:
    engine = Engine()
    engine.initialize()
    return engine


def test_training_passes_alone_are_noisy_and_counted():
    engine, clean = engine_of(noise_plan(0.2)), trained(plain())
    assert asked(engine) == asked(plain()) and engine.noise.stats.total_forward == 0
    assert all(abs(a - b) > 1e-6 for a, b in zip(trained(engine), clean, strict=True))
    counted = engine.noise.stats
    assert counted.total_forward == counted.total_backward == MICRO_BATCHES * OPERATORS
    assert asked(engine) == asked(plain()) and counted.total_forward == MICRO_BATCHES * OPERATORS


def test_a_reference_is_clean_even_where_it_shares_the_class():
    engine = engine_of(noise_plan(0.2, norms=0.1), is_reference=True)
    assert engine.noise is None and asked(engine) == asked(plain())


def test_scale_zero_trains_as_the_plain_engine_does():
    assert trained(engine_of(noise_plan(0.0))) == trained(plain())


def test_micro_and_mini_batches_share_the_scale_and_not_the_noise():
    engine = engine_of(noise_plan("linear:0.2:0.1", phases="forward"))
    losses = [*trained(engine), *trained(engine)]
    assert engine.noise.scale == 0.2
    engine.step()
    losses += trained(engine)
    assert engine.noise.scale == pytest.approx(0.2 - 0.1 / 3)
    assert len(set(losses)) == len(losses) == 3 * MICRO_BATCHES


def test_noise_on_norms_is_one_for_the_step():
    engine = engine_of(noise_plan(None, norms="linear:0.2:0.1"))
    first = [*trained(engine), *trained(engine)]
    assert len(set(first)) == 1 and first[0] != trained(plain())[0]
    engine.step()
    assert trained(engine)[0] != first[0]


def test_the_noise_is_that_of_the_step_whatever_came_before():
    plan = noise_plan(0.2)
    whole, resumed = engine_of(plan), engine_of(plan)
    trained(whole)
    whole.step()
    resumed.lr_scheduler.last_epoch = 1
    assert trained(whole) == trained(resumed)


def test_nothing_is_left_on_the_model_also_after_an_exception():
    engine = engine_of(noise_plan(0.2, norms=0.1))
    before = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in engine.module.modules()]

    def fail(*_: Any) -> Tensor:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        engine.forward_backward_batch(DATA, fail)
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in engine.module.modules()] == before
    assert loss_of(engine.module(DATA).logits, DATA) == loss_of(engine.module(DATA).logits, DATA)


def test_a_run_that_injects_nothing_is_an_error(capsys):
    with pytest.raises(NeverFiredError, match="gelu was selected"):
        trained(engine_of(noise_plan(0.1, operators="gelu")))
    with pytest.raises(BadInputError, match="unknown layer"):
        engine_of(noise_plan(0.1, layers=7))
    unknown = engine_of(noise_plan(0.1))
    unknown.optimizer_config.total_training_steps = -1
    with pytest.raises(BadInputError, match="length of the run"):
        trained(unknown)
    assert not capsys.readouterr().err


def test_it_says_once_that_the_noise_has_landed(capsys):
    engine = engine_of(noise_plan("exponential:0.1:0.01:stages=4:silent=1", norms=0.05))
    for _ in range(STEPS):
        trained(engine)
        engine.step()
    told = capsys.readouterr().err.splitlines()
    assert told == ["noisescope: noise has landed at step 0, in 0 outputs, 0 gradients and 5 norms"]


def test_figures_stand_beside_those_of_the_loss_as_lists():
    engine = engine_of(noise_plan(0.2, norms=0.05), has_figures=True)
    metrics = engine.forward_backward_batch(DATA, loss_of)["metrics"]
    assert metrics["noise/scale"] == [0.2] and metrics["noise/injections"] == [2 * MICRO_BATCHES * OPERATORS]
    assert metrics["noise/realised_forward"] == pytest.approx([0.2], rel=0.1)
    assert metrics["noise/realised_norms"] == pytest.approx([0.05], rel=0.4)
    assert not engine_of(noise_plan(0.2)).forward_backward_batch(DATA, loss_of)["metrics"]
