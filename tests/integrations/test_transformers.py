"""The callback in the real Trainer: noise where and when it was asked for, and nowhere else."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

import cases
import noisescope as ns
from noisescope.core.errors import BadInputError, NeverFiredError, NoEffectError
from noisescope.inject.schedule import PRESETS
from noisescope.integrations.transformers import NoiseCallback
from noisescope.prescribe.noise_training import adaptive_factors, layer_degradation

STEPS = 4
# transformers gave it another name in 5.20.
CHECKPOINTING = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in inspect.signature(TrainingArguments).parameters
)


class Rows(Dataset[dict[str, Tensor]]):
    def __init__(self, rows: int = 16, *, same: bool = False) -> None:
        ids = torch.randint(3, 128, (rows, 6), generator=torch.Generator().manual_seed(1))
        self.ids = ids[:1].expand(rows, -1) if same else ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def trainer_of(folder: Path, model: nn.Module | None = None, *, kind: type[Trainer] = Trainer, **more: Any) -> Trainer:
    settings = {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "optim": "sgd",
    }
    data = more.pop("data", None) or Rows()
    args = TrainingArguments(**{**settings, **more})
    return kind(cases.make("llama") if model is None else model, args, train_dataset=data, eval_dataset=Rows(4))


def trained(folder: Path, callback: NoiseCallback | None = None, **more: Any) -> Trainer:
    trainer = trainer_of(folder, **more)
    if callback is not None:
        callback.attach(trainer)
    trainer.train()
    return trainer


def weights(trainer: Trainer) -> list[Tensor]:
    return [weight.detach().clone() for weight in trainer.model.parameters()]


def are_equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def steps_of(trainer: Trainer) -> list[dict[str, Any]]:
    return [row for row in trainer.state.log_history if "loss" in row]


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_every_step_has_the_scale_of_the_schedule_and_as_much_noise_lands(tmp_path):
    rows = steps_of(trained(tmp_path, NoiseCallback("decay")))
    expected = [PRESETS["decay"].scale(step, STEPS) for step in range(STEPS)]
    assert [row["noise_scale"] for row in rows] == pytest.approx(expected)
    for phase in ("forward", "backward"):
        assert [row[f"noise_realised_{phase}"] for row in rows] == pytest.approx(expected, rel=0.1)
    # 15 linears, 4 products, 2 softmaxes, 2 silus, 5 norms; each once forward and once backward.
    assert [row["noise_injections"] for row in rows] == [56] * STEPS


def test_noise_of_strength_zero_trains_as_no_noise_does(tmp_path):
    clean = trained(tmp_path)
    assert are_equal(weights(trained(tmp_path, NoiseCallback(0.0))), weights(clean))
    assert not are_equal(weights(trained(tmp_path, NoiseCallback(0.05))), weights(clean))


def test_evaluation_is_clean_while_training_is_noisy(tmp_path):
    trainer = trained(tmp_path, NoiseCallback(0.2), eval_strategy="steps", eval_steps=1)
    during = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    assert len(during) == STEPS and during[-1] == trainer.evaluate()["eval_loss"]


def test_nothing_is_left_on_the_model(tmp_path):
    trainer = trainer_of(tmp_path)
    before = hooks_of(trainer.model)
    NoiseCallback("decay", norms="qerl").attach(trainer)
    trainer.train()
    assert hooks_of(trainer.model) == before


class FailsLater(TrainerCallback):
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1:
            raise RuntimeError("planted")


def loss_with_gradients(model: nn.Module) -> Tensor:
    return model(**cases.batch(labels=True)).loss.detach()


def test_an_exception_in_training_switches_the_noise_off(tmp_path):
    trainer = trainer_of(tmp_path)
    before = hooks_of(trainer.model)
    callback = NoiseCallback(0.2, norms=0.1).attach(trainer)
    trainer.add_callback(FailsLater())
    with pytest.raises(RuntimeError, match="planted"):
        trainer.train()
    assert callback.noise is not None and not callback.noise.is_on and hooks_of(trainer.model) == before
    assert torch.equal(loss_with_gradients(trainer.model), loss_with_gradients(trainer.model))


def test_as_a_context_manager_it_is_off_after_an_exception_without_being_attached(tmp_path):
    trainer = trainer_of(tmp_path)
    before = hooks_of(trainer.model)
    callback = NoiseCallback(0.2)
    trainer.add_callback(callback)
    trainer.add_callback(FailsLater())
    with pytest.raises(RuntimeError, match="planted"), callback:
        trainer.train()
    assert hooks_of(trainer.model) == before


@pytest.mark.parametrize("how", [{}, {"gradient_accumulation_steps": 2}], ids=["plain", "accumulated"])
def test_a_resumed_run_ends_with_the_very_same_weights(tmp_path, how):
    plan = {"schedule": "decay", "norms": 0.02}
    whole = trained(tmp_path / "whole", NoiseCallback(**plan), **how)
    saving = {"save_strategy": "steps", "save_steps": 2, **how}
    trained(tmp_path / "parts", NoiseCallback(**plan), **saving)
    trainer = trainer_of(tmp_path / "parts", **saving)
    NoiseCallback(**plan).attach(trainer)
    trainer.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-2"))
    assert are_equal(weights(trainer), weights(whole))


def test_micro_batches_of_one_step_share_the_scale_and_not_the_noise(tmp_path):
    losses: list[float] = []

    class Listening(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            losses.append(float(loss.detach()))
            return loss

    options = {"gradient_accumulation_steps": 2, "learning_rate": 0.0, "data": Rows(same=True), "kind": Listening}
    callback = NoiseCallback("linear:0.2:0.1", gradient_every=0, phases="forward")
    rows = steps_of(trained(tmp_path, callback, **options))
    assert len(rows) == STEPS and [row["noise_scale"] for row in rows] == pytest.approx([0.2, 1 / 6, 2 / 15, 0.1])
    assert len(set(losses)) == len(losses) == 2 * STEPS
    clean = trained(tmp_path, None, **options)
    assert len(steps_of(clean)) == STEPS and len(set(losses[2 * STEPS :])) == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_meets_the_same_noise_again(tmp_path, reentrant):
    plan = {"schedule": 0.1, "norms": 0.05, "gradient_every": 0}
    plain = weights(trained(tmp_path, NoiseCallback(**plan)))
    more = {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": {"use_reentrant": reentrant}}
    checkpointed = weights(trained(tmp_path, NoiseCallback(**plan), **more))
    for a, b in zip(plain, checkpointed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_under_autocast_the_noise_lands_at_its_scale(tmp_path):
    callback = NoiseCallback(0.01, norms=0.02)
    rows = steps_of(trained(tmp_path, callback, bf16=True))
    for name in ("noise_realised_forward", "noise_realised_backward"):
        assert [row[name] for row in rows] == pytest.approx([0.01] * STEPS, rel=0.1)


class Generates(Trainer):
    """Asks the model without gradients before each loss, as loops with rollouts and references do."""

    passes = 1
    seen: list[Tensor]

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        for _ in range(self.passes):
            with torch.no_grad():
                self.seen.append(model(input_ids=inputs["input_ids"]).logits)
        return super().compute_loss(model, inputs, *args, **kwargs)


def test_generation_and_reference_are_clean_and_do_not_shift_the_noise(tmp_path):
    ends = []
    for passes in (1, 3):
        trainer = trainer_of(tmp_path, kind=Generates, learning_rate=0.0, data=Rows(same=True))
        trainer.passes, trainer.seen = passes, []
        NoiseCallback(0.2, norms=0.1, gradient_every=0).attach(trainer)
        trainer.train()
        assert len(trainer.seen) == passes * STEPS
        trainer.model.eval()
        with torch.no_grad():
            clean = trainer.model(input_ids=Rows(2, same=True).ids).logits
        assert all(torch.equal(logits, clean) for logits in trainer.seen)
        ends.append([row["loss"] for row in steps_of(trainer)])
    assert ends[0] == ends[1] and len(set(ends[0])) == STEPS


def test_backward_noise_alone_leaves_the_first_loss_and_changes_the_weights(tmp_path):
    clean, noisy = trained(tmp_path), trained(tmp_path, NoiseCallback(0.1, phases="backward"))
    assert steps_of(noisy)[0]["loss"] == steps_of(clean)[0]["loss"]
    assert not are_equal(weights(noisy), weights(clean))
    assert "noise_realised_forward" not in steps_of(noisy)[0]


def test_measuring_the_gradient_changes_nothing_of_the_training(tmp_path):
    often = trained(tmp_path, NoiseCallback(0.1, gradient_every=1))
    never = trained(tmp_path, NoiseCallback(0.1, gradient_every=0))
    assert are_equal(weights(often), weights(never))
    names = ("noise_injections", "noise_realised_forward")
    assert [[row[n] for n in names] for row in steps_of(often)] == [[row[n] for n in names] for row in steps_of(never)]
    assert all(0.5 < row["noise_gradient_ratio"] < 2 for row in steps_of(often))
    assert "noise_gradient_ratio" not in steps_of(never)[0]


class Logger(TrainerCallback):
    """What a logger such as TensorBoard's is given, when it is given it."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.seen.append(dict(logs))


def test_the_loggers_of_the_trainer_get_the_figures(tmp_path):
    trainer, logger = trainer_of(tmp_path), Logger()
    trainer.add_callback(logger)
    NoiseCallback("decay", norms=0.02, gradient_every=1).attach(trainer)
    trainer.train()
    names = {"scale", "injections", "realised_forward", "realised_backward", "norm_scale", "realised_norms"}
    expected = {f"noise_{name}" for name in (*names, "gradient_ratio")}
    rows = [row for row in logger.seen if "loss" in row]
    assert len(rows) == STEPS and all(expected <= set(row) for row in rows)


def test_a_diagnosis_gives_the_layers_their_scales(tmp_path):
    model = cases.make("llama")
    batch = {"input_ids": torch.cat([Rows(8).ids] * 2)}
    found = ns.diagnose(model, [batch], mode="layer", window_size=1, seeds=1, scale=0.5, exhaustive=True)
    costs = layer_degradation(found.windows)
    factors = adaptive_factors(costs, layers=2)
    assert set(costs) == {0, 1} and all(cost is not None for cost in costs.values())
    callback = NoiseCallback(0.1, factors=factors, operators="linear", phases="forward")
    trained(tmp_path, callback, model=model, logging_strategy="no")
    for site, landed in callback.noise.stats.by_site().items():
        assert landed.relative == pytest.approx(0.1 * factors.get(site.layer, 1.0), rel=0.2)


def test_the_gradient_ratio_is_that_of_the_norms(tmp_path):
    trainer = trained(tmp_path, NoiseCallback(0.3, gradient_every=1, seed=5), max_steps=1, learning_rate=0.0)
    clean = trained(tmp_path, max_steps=1, learning_rate=0.0)
    # The Trainer reports the norm of the noisy gradient itself.
    expected = steps_of(trainer)[0]["grad_norm"] / steps_of(clean)[0]["grad_norm"]
    assert steps_of(trainer)[0]["noise_gradient_ratio"] == pytest.approx(expected, rel=1e-5)
    assert abs(expected - 1) > 1e-3


def test_layers_get_the_factors_of_the_plan(tmp_path):
    callback = NoiseCallback(0.1, factors={0: 0.5, 1: 0.0}, operators="linear", phases="forward")
    trained(tmp_path, callback, logging_strategy="no")
    found = callback.noise.stats.by_site()
    by_layer = {layer: [r.relative for s, r in found.items() if s.layer == layer] for layer in (None, 0, 1)}
    assert by_layer[0] == pytest.approx([0.05] * 7, rel=0.2)
    assert by_layer[1] == [0.0] * 7 and by_layer[None] == pytest.approx([0.1], rel=0.1)


def test_norm_noise_survives_bfloat16_and_never_touches_the_weights(tmp_path):
    model = cases.make("llama", dtype=torch.bfloat16)
    trainer = trainer_of(tmp_path, model, learning_rate=0.0)
    before = weights(trainer)
    NoiseCallback(None, norms=5e-4).attach(trainer)
    trainer.train()
    assert are_equal(weights(trainer), before)
    assert [row["noise_realised_norms"] for row in steps_of(trainer)] == pytest.approx([5e-4] * STEPS, rel=0.5)


def test_norm_noise_is_the_noise_of_the_formula(tmp_path):
    trainer = trained(tmp_path, NoiseCallback(None, norms="exponential:0.05:0.0005:stages=2"))
    rows = steps_of(trainer)
    assert [row["noise_norm_scale"] for row in rows] == pytest.approx([0.05, 0.05, 0.0005, 0.0005])
    assert [row["noise_realised_norms"] for row in rows] == pytest.approx([0.05, 0.05, 0.0005, 0.0005], rel=0.4)


@pytest.mark.parametrize(
    ("plan", "error", "said"),
    [
        ({"operators": "gelu"}, NeverFiredError, "gelu was selected"),
        ({"layers": 7}, BadInputError, "unknown layer"),
        ({"factors": {9: 2.0}}, BadInputError, "layers 0 to 1"),
        ({"schedule": "exponential:1e-30:1e-31", "operators": "linear"}, NoEffectError, "changed"),
        ({"schedule": None, "norms": 1e-12}, NoEffectError, "norm weights changed none"),
        ({"schedule": None, "norms": 0.1, "layers": 5}, BadInputError, "unknown layer|no norm"),
    ],
)
def test_a_plan_that_would_do_nothing_is_an_error_and_no_result(tmp_path, plan, error, said):
    with pytest.raises(error, match=said):
        trained(tmp_path, NoiseCallback(**plan))


def test_a_silent_beginning_is_no_error_and_the_proof_waits_for_the_first_noise(tmp_path):
    callback = NoiseCallback("exponential:0.1:0.01:stages=4:silent=2", operators="linear")
    rows = steps_of(trained(tmp_path, callback))
    assert [row["noise_injections"] for row in rows] == [0, 0, 30, 30]
    with pytest.raises(NeverFiredError):
        trained(tmp_path, NoiseCallback("exponential:0.1:0.01:stages=4:silent=2", operators="gelu"))


def test_names_are_checked_when_the_callback_is_made():
    with pytest.raises(BadInputError, match="operators"):
        NoiseCallback("decay", operator="linear")
    with pytest.raises(BadInputError, match="without a schedule"):
        NoiseCallback(None)
    with pytest.raises(BadInputError, match="beside a plan"):
        NoiseCallback(NoiseCallback("decay").plan, seed=3)
