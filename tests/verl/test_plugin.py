"""What verl loads: inert and light until the environment asks for noise, loud where the noise could not be had."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from noisescope.core.errors import BadInputError
from noisescope.inject.schedule import PRESETS, Schedule
from noisescope.verl import noisy_ops
from noisescope.verl.environment import asks_for_training, plan_from
from noisescope.verl.plugin import enter

ROOT = Path(__file__).parents[2]
ON = {"NOISESCOPE_ENABLED": "1"}


def imported(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("NOISESCOPE_", "VERL_"))}
    env = {**plain, "PYTHONPATH": str(ROOT / "src"), **environ}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)


def test_the_entry_point_names_the_plugin():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["verl.plugins"]
    assert declared == {"noisescope": "noisescope.verl.plugin"}


def test_without_settings_it_loads_neither_torch_nor_verl_and_sets_nothing():
    code = (
        "import os, sys; before = dict(os.environ); import noisescope.verl.plugin; assert os.environ == before; "
        "assert not {'torch', 'transformers', 'verl', 'numpy', 'yaml'} & set(sys.modules)"
    )
    done = imported(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"NOISESCOPE_SCALE": "much"}, "NOISESCOPE_SCALE='much'"),
        ({"VERL_ENGINE_VENDOR": "metax"}, "VERL_ENGINE_VENDOR=metax: the run would train without the noise"),
        ({}, "cannot register with verl (ModuleNotFoundError: No module named 'verl'); expected verl 0.9"),
    ],
)
def test_a_run_that_could_not_be_noisy_ends_also_where_errors_of_plugins_are_passed_over(environ, said):
    load = "try:\n import noisescope.verl.plugin\nexcept Exception:\n print('trains without noise')"
    done = imported(load, **ON, **environ)
    assert done.returncode == 1 and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and said in done.stderr


def test_the_switchboard_beside_it_is_refused():
    noisy_ops.enable_noisy_ops()
    with pytest.raises(BadInputError, match="rollouts and references too"):
        enter(dict(ON))


def test_nothing_is_asked_for_by_default():
    assert not asks_for_training({}) and not enter({}) and not asks_for_training({"NOISESCOPE_ENABLED": "0"})
    assert asks_for_training(ON) and asks_for_training({"NOISESCOPE_CONFIG": "noise.yaml"})
    assert asks_for_training({"VERL_NOISY_OPS_ENABLED": "1"})


@pytest.mark.parametrize(
    ("environ", "schedule", "norms"),
    [
        ({}, Schedule("constant", 0.05), None),
        ({"NOISESCOPE_SCALE": "0.02"}, Schedule("constant", 0.02), None),
        ({"VERL_NOISY_OPS_SCALE": "0.02"}, Schedule("constant", 0.02), None),
        ({"NOISESCOPE_SCHEDULE": "decay"}, PRESETS["decay"], None),
        ({"NOISESCOPE_NORMS": "qerl"}, None, PRESETS["qerl"]),
        ({"NOISESCOPE_NORMS": "qerl", "NOISESCOPE_SCALE": "0.1"}, Schedule("constant", 0.1), PRESETS["qerl"]),
        ({"NOISESCOPE_NORMS": "qerl", "NOISESCOPE_SCHEDULE": "decay"}, PRESETS["decay"], PRESETS["qerl"]),
    ],
)
def test_the_environment_is_a_plan(environ, schedule, norms):
    plan = plan_from({**ON, **environ})
    assert (plan.schedule, plan.norms) == (schedule, norms)


def test_all_else_is_as_of_the_switchboard():
    plan = plan_from(
        {
            **ON,
            "NOISESCOPE_TYPE": "absolute_gaussian",
            "NOISESCOPE_FORWARD_ONLY": "1",
            "NOISESCOPE_LAYERS": "0,2-3",
            "NOISESCOPE_OPERATORS": "softmax",
            "NOISESCOPE_LAYER_SCALES": "0=0.5",
            "NOISESCOPE_OPERATOR_SCALES": "softmax=2",
            "NOISESCOPE_SEED": "7",
        }
    )
    assert (plan.kind, plan.layers, plan.operators, plan.phases, plan.seed) == (
        "absolute_gaussian",
        (0, 2, 3),
        ("softmax",),
        ("forward",),
        7,
    )
    assert plan.injection(0.1, 0).scaling.strength(0.1, 0, "softmax") == pytest.approx(0.1)


def test_a_file_is_a_plan(tmp_path):
    file = tmp_path / "noise.yaml"
    file.write_text("noise:\n  schedule: exponential:0.05:0.001\n  operators: [linear]\n")
    plan = plan_from({"NOISESCOPE_CONFIG": str(file), "NOISESCOPE_CACHE": "elsewhere"})
    assert plan.schedule == Schedule("exponential", 0.05, 0.001) and plan.operators == ("linear",)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({**ON, "NOISESCOPE_SCHEDULE": "decay", "NOISESCOPE_SCALE": "0.1"}, "expected one of them"),
        ({**ON, "NOISESCOPE_LAYER_SCALES_ABSOLUTE": "1"}, "scales of its own"),
        ({**ON, "NOISESCOPE_SCHEDULE": "gentle"}, "expected a scale such as 0.05"),
        ({"NOISESCOPE_CONFIG": "noise.yaml", "NOISESCOPE_SCALE": "0.1"}, "beside NOISESCOPE_CONFIG"),
        ({"NOISESCOPE_CONFIG": "nowhere.yaml"}, "nowhere.yaml: No such file"),
    ],
)
def test_what_contradicts_itself_is_refused(environ, said):
    with pytest.raises(BadInputError, match=said):
        plan_from(environ)
