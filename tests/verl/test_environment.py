"""Noise that is asked for by environment variables, read from a mapping and in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from noisescope.core.errors import BadInputError
from noisescope.verl.environment import settings_from
from noisescope.verl.settings import Settings

ON = {"NOISESCOPE_ENABLED": "1"}

# A program that imports the module, runs a model of its own, and prints what came of it.
PROGRAM = """
import json, sys, threading
import torch
from torch import nn
from torch.nn.modules import module
from torch.overrides import _get_current_function_mode_stack
from noisescope.verl import noisy_ops

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.SiLU()) for _ in range(3))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def work():
    model = Stack()
    with torch.no_grad():
        model(torch.ones(2, 8))
    found["without gradients"] = noisy_ops.get_injection_stats()["total_forward"]
    model(torch.ones(2, 8)).sum().backward()

found = {"modes": len(_get_current_function_mode_stack()), "hooks": len(module._global_forward_pre_hooks)}
worker = threading.Thread(target=work)
worker.start()
worker.join()
found |= noisy_ops.get_injection_stats()
found["layers"] = noisy_ops.get_layer_injection_stats()
found["operators"] = noisy_ops.get_operator_injection_stats()
json.dump(found, sys.stdout)
"""


def run(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The program in a process whose only variables of ours are these."""
    own = ("NOISESCOPE_", "VERL_NOISY_OPS_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    for kept in ("NOISESCOPE_CACHE", "PYTHONPATH"):
        if kept in os.environ:
            environment[kept] = os.environ[kept]
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)


def outcome(variables: dict[str, str]) -> dict[str, Any]:
    done = run(variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ---- in processes of their own


def test_importing_does_nothing_unless_asked() -> None:
    found = outcome({"NOISESCOPE_SCALE": "0.3", "VERL_NOISY_OPS_ALL_OPS": "1"})
    assert not found["enabled"]
    assert (found["modes"], found["hooks"], found["total_forward"], found["total_backward"]) == (0, 0, 0, 0)


def test_a_process_is_noisy_in_all_its_threads_under_the_names_of_the_verl_fork() -> None:
    found = outcome(
        {
            "VERL_NOISY_OPS_ENABLED": "yes",
            "VERL_NOISY_OPS_SCALE": "1e-3",
            "VERL_NOISY_OPS_TYPE": "relative_uniform",
            "VERL_NOISY_OPS_ALL_OPS": "true",
        }
    )
    assert (found["enabled"], found["error_scale"], found["error_type"]) == (True, 1e-3, "relative_uniform")
    assert found["operators"] == {
        "linear": {"forward": 6, "backward": 3},
        "silu": {"forward": 6, "backward": 3},
    }
    assert found["realised_relative_noise"] == pytest.approx(1e-3, rel=0.2)


def test_training_only_keeps_phases_and_operators() -> None:
    found = outcome(
        {
            "VERL_NOISY_OPS_ENABLED": "1",
            "VERL_NOISY_OPS_TRAINING_ONLY": "1",
            "VERL_NOISY_OPS_FORWARD_ONLY": "1",
            "VERL_NOISY_OPS_ALL_OPS": "1",
        }
    )
    assert found["without gradients"] == 0
    assert (found["forward_enabled"], found["backward_enabled"]) == (True, False)
    once = {"forward": 3, "backward": 0}
    assert found["operators"] == {"linear": once, "silu": once}


def test_own_names_go_first_and_reach_every_switch() -> None:
    found = outcome(
        {
            "NOISESCOPE_ENABLED": "on",
            "VERL_NOISY_OPS_ENABLED": "0",
            "NOISESCOPE_SCALE": "0.2",
            "VERL_NOISY_OPS_SCALE": "0.9",
            "NOISESCOPE_LAYERS": "1-2",
            "NOISESCOPE_OPERATORS": "silu",
            "NOISESCOPE_BACKWARD_ONLY": "1",
        }
    )
    assert found["error_scale"] == 0.2
    assert found["layers"] == {str(layer): {"forward": 0, "backward": 1} for layer in (1, 2)}
    assert set(found["operators"]) == {"silu"}


def test_a_process_with_a_wrong_value_does_not_start_and_names_the_variable() -> None:
    done = run({"VERL_NOISY_OPS_ENABLED": "1", "VERL_NOISY_OPS_SCALE": "five"})
    assert done.returncode != 0
    assert "VERL_NOISY_OPS_SCALE='five': expected a number" in done.stderr


# ---- as a mapping


@pytest.mark.parametrize("value", ["1", "true", "True", "YES", "on", " 1 "])
@pytest.mark.parametrize("prefix", ["NOISESCOPE_", "VERL_NOISY_OPS_"])
def test_switches_can_be_written_in_every_usual_way(prefix: str, value: str) -> None:
    assert settings_from({f"{prefix}ENABLED": value}) == Settings()


@pytest.mark.parametrize("value", ["", " ", "0", "false", "No", "off"])
def test_a_switch_that_is_off_or_empty_asks_for_nothing(value: str) -> None:
    assert settings_from({"NOISESCOPE_ENABLED": value}) is None
    assert settings_from({}) is None


def test_the_scale_is_that_of_the_call_unless_set() -> None:
    assert settings_from(ON) == Settings(scale=0.05, kind="relative_gaussian")


def test_own_names_win_even_to_switch_off() -> None:
    assert settings_from({"NOISESCOPE_ENABLED": "0", "VERL_NOISY_OPS_ENABLED": "1"}) is None
    assert settings_from({"NOISESCOPE_ENABLED": "", "VERL_NOISY_OPS_ENABLED": "1"}) is not None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SCALE": "1e-4"}, {"scale": 1e-4}),
        ({"TYPE": "fp8_e4m3"}, {"kind": "fp8_e4m3"}),
        ({"ALL_OPS": "1"}, {"all_operators": True}),
        ({"FORWARD_ONLY": "1"}, {"backward": False}),
        ({"BACKWARD_ONLY": "1"}, {"forward": False}),
        ({"FORWARD_ONLY": "0", "BACKWARD_ONLY": "1"}, {"forward": False}),
        ({"TRAINING_ONLY": "1", "ALL_OPS": "1"}, {"training_only": True, "all_operators": True}),
        ({"LAYERS": "0, 3-5,9"}, {"layers": (0, 3, 4, 5, 9)}),
        ({"LAYERS": "7"}, {"layers": (7,)}),
        ({"OPERATORS": "softmax, layernorm"}, {"operators": ("softmax", "layer_norm", "rms_norm")}),
        ({"SEED": "-4"}, {"seed": -4}),
    ],
)
def test_every_switch_sets_its_own_setting(variables: dict[str, str], expected: dict[str, Any]) -> None:
    assert settings_from(ON | {f"NOISESCOPE_{k}": v for k, v in variables.items()}) == Settings(**expected)


@pytest.mark.parametrize("absolute", ["0", "1"])
def test_scales_by_operator_and_by_layer(absolute: str) -> None:
    settings = settings_from(
        ON
        | {
            "NOISESCOPE_OPERATOR_SCALES": "softmax=2, layernorm = 0.5",
            "NOISESCOPE_LAYER_SCALES": "0=0.5,7=2",
            "NOISESCOPE_LAYER_SCALES_ABSOLUTE": absolute,
        }
    )
    assert settings is not None
    assert settings.scaling.operators == (("softmax", 2.0), ("layer_norm", 0.5), ("rms_norm", 0.5))
    assert settings.scaling.layers == ((0, 0.5), (7, 2.0))
    # 0.05 twice halved or halved and doubled; in the place of the base scale, the layer's own.
    own = absolute == "1"
    assert settings.scaling.strength(settings.scale, 0, "rms_norm") == (0.25 if own else 0.0125)
    assert settings.scaling.strength(settings.scale, 7, "softmax") == (4.0 if own else 0.2)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"NOISESCOPE_SCALE": "much"}, "NOISESCOPE_SCALE='much': expected a number"),
        ({"NOISESCOPE_SCALE": "-1"}, "scale -1.0"),
        ({"NOISESCOPE_SCALE": "nan"}, "scale nan"),
        ({"VERL_NOISY_OPS_SCALE": "inf"}, "scale inf"),
        ({"VERL_NOISY_OPS_TYPE": "gaussian"}, "Did you mean '.*gaussian'"),
        ({"VERL_NOISY_OPS_ALL_OPS": "maybe"}, "VERL_NOISY_OPS_ALL_OPS='maybe': expected one of 1, true"),
        ({"NOISESCOPE_SEED": "1.5"}, "NOISESCOPE_SEED='1.5': expected a whole number"),
        ({"NOISESCOPE_LAYERS": "0,x"}, "layer 'x'"),
        ({"NOISESCOPE_LAYERS": "5-3"}, "layer '5-3'"),
        ({"NOISESCOPE_OPERATORS": "linear,sofmax"}, "Did you mean 'softmax'"),
        ({"NOISESCOPE_OPERATOR_SCALES": "softmax"}, "NOISESCOPE_OPERATOR_SCALES: 'softmax'"),
        ({"NOISESCOPE_OPERATOR_SCALES": "sofmax=2"}, "Did you mean 'softmax'"),
        ({"NOISESCOPE_LAYER_SCALES": "0=half"}, "NOISESCOPE_LAYER_SCALES: '0=half'"),
        ({"NOISESCOPE_LAYER_SCALES": "0=-1"}, "scale -1.0 of '0'"),
        (
            {"NOISESCOPE_FORWARD_ONLY": "1", "VERL_NOISY_OPS_BACKWARD_ONLY": "1"},
            "NOISESCOPE_FORWARD_ONLY and VERL_NOISY_OPS_BACKWARD_ONLY are both set",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_name(variables: dict[str, str], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        settings_from(ON | variables)


def test_a_switch_that_is_neither_on_nor_off_is_refused_even_alone() -> None:
    with pytest.raises(BadInputError, match="NOISESCOPE_ENABLED='2'"):
        settings_from({"NOISESCOPE_ENABLED": "2"})


def test_without_being_asked_nothing_else_is_read() -> None:
    assert settings_from({"NOISESCOPE_SCALE": "much"}) is None
