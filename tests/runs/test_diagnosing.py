"""All levels of a diagnosis from a model and batches: planted causes come out, and a run that was stopped goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import noisescope as ns
from cases import batch, batches, make, sharp
from noisescope.core.codec import encode
from noisescope.core.errors import BadInputError
from noisescope.diagnose.dashboard import dashboard
from noisescope.runs.diagnosing import wanted_of
from noisescope.sweep.store import Store


def test_all_levels_of_a_small_model(tmp_path: Path) -> None:
    model = sharp()
    found = ns.diagnose(model, batches(), scale=0.05, out=tmp_path / "run")
    assert {result.operator for result in found.operators} == {"linear", "matmul", "softmax", "silu", "rms_norm"}
    assert [result.layers for result in found.windows] == [(s, s + 1, s + 2) for s in range(4)]
    assert found.control.holds
    assert found.channels is not None and found.channels.tokens == 400
    assert found.clean is not None and found.clean.estimate == 1.0
    # Nothing of it is left on the model.
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_what_was_measured_is_not_measured_again_and_the_answer_is_the_same(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = ns.diagnose(sharp(), batches(), out=out)
    held = len(Store(out).readings())
    files = sorted(path.name for path in out.glob("readings-*"))
    second = ns.diagnose(sharp(), batches(), out=out)
    assert encode(first) == encode(second)
    assert len(Store(out).readings()) == held and sorted(path.name for path in out.glob("readings-*")) == files
    with pytest.raises(ns.NoisescopeError, match="belongs to another run"):
        ns.diagnose(sharp(), batches(rows=32), out=out)


def test_a_planted_fragile_layer_is_in_the_worst_window() -> None:
    model = sharp()
    with torch.no_grad():
        # Two channels that are equal and taken with opposite signs cancel; the errors in them do not.
        mlp = model.model.layers[4].mlp
        for weight in (mlp.gate_proj.weight, mlp.up_proj.weight):
            weight[0] = weight[1] = weight[0] * 4.0
        mlp.down_proj.weight[:, 1] = -mlp.down_proj.weight[:, 0]
        mlp.down_proj.weight[:, :2] *= 40.0
    found = ns.diagnose(model, batches(), mode="layer", exhaustive=True)
    worst = max(found.windows, key=lambda window: window.answer.harm.estimate)
    assert 4 in worst.layers


def test_a_planted_outlier_channel_is_named() -> None:
    model = sharp()
    with torch.no_grad():
        model.model.layers[2].self_attn.o_proj.weight[11] *= 300.0
    found = ns.diagnose(model, batches(), mode="channel")
    assert found.operators == () and found.windows == ()
    (named,) = [
        module.outliers
        for module in found.channels.modules
        if module.outliers.path.endswith("layers.2.self_attn.o_proj") and module.outliers.side == "output"
    ]
    assert named.indices == (11,)


class Block(nn.Module):
    """Operators, and no stack of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.silu(self.first(x)))


def test_models_without_layers_can_be_asked_about_operators() -> None:
    torch.manual_seed(0)
    model = Block()
    inputs = [{"x": torch.randn(24, 16)}]
    found = ns.diagnose(model, inputs, mode="operator", scale=0.2)
    assert {result.operator for result in found.operators} == {"linear", "silu"}
    with pytest.raises(BadInputError, match="stack of layers could not be found"):
        ns.diagnose(model, inputs, mode="layer")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 3}, "unknown option of diagnose 'window'"),
        ({"mode": "layers"}, "Did you mean 'layer'"),
        ({"scale": 0.0}, "noise scale 0"),
        ({"window_size": 9}, "window size 9"),
        ({"seeds": 0}, "seeds 0: expected a whole number >= 1"),
        ({"seeds": "3"}, "seeds '3'"),
        ({"seed": 0.5}, "seed 0.5"),
        ({"step_size": 1.5}, "step size 1.5"),
        ({"exhaustive": "no"}, "exhaustive 'no'"),
        ({"calibration": []}, "no batches"),
        ({"outlier_threshold": 0.5}, "ratio 0.5"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        ns.diagnose(make("llama"), [batch()], **options)


def test_a_model_without_operators_is_refused() -> None:
    with pytest.raises(BadInputError, match="no operator that noise can reach"):
        ns.diagnose(nn.ReLU(), [{"input": torch.randn(8, 4)}], mode="operator")


def test_a_model_that_fails_under_way_is_judged_in_nothing() -> None:
    class Failing(nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls > 3:
                raise RuntimeError("the device is gone")
            return super().forward(x)

    found = ns.diagnose(Failing(4, 4), [{"x": torch.randn(8, 4)}], mode="operator")
    assert found.control.holds is None and not any(result.verdict.decided for result in found.operators)
    assert found.findings[0].severity == "error" and "the device is gone" in found.findings[0].statement
    assert "Risk unknown" in dashboard(found)[0]


def test_no_option_is_usual() -> None:
    assert wanted_of({}).mode == "full"
