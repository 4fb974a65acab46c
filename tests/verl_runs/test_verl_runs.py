"""The plugin in verl itself: its SFT trainer with FSDP2 on gloo, in one process and in two.

Needs verl 0.9 with versions of its own: `make test-verl`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import cases
from letters import letters

pytestmark = pytest.mark.verl
HERE = Path(__file__).parent
STEPS, MICRO_BATCHES = 4, 4
# 15 linears, 4 products, 2 softmaxes, 2 silus, 5 norms; each once forward and once backward.
OPERATORS = 28
NOISY = {"NOISESCOPE_ENABLED": "1", "NOISESCOPE_SCHEDULE": "linear:0.2:0.1", "NOISESCOPE_ALL_OPS": "1"}
NORMS = {"NOISESCOPE_ENABLED": "1", "NOISESCOPE_NORMS": "0.1"}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**cases.GROUPED)).save_pretrained(folder)
    letters(chat="{% for m in messages %}{{ m['content'] }}{% endfor %}").save_pretrained(folder)
    return folder


class Runs:
    """Runs of verl, each made once."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.known: dict[str, list[dict[str, Any]]] = {}

    def launch(self, processes: int, environ: dict[str, str], *overrides: str) -> tuple[Path, str, int]:
        folder = Path(shutil.copytree(self.model, self.folder / f"run{len(list(self.folder.iterdir()))}"))
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("NOISESCOPE_", "VERL_"))}
        paths = [str(HERE), str(HERE.parents[1] / "src")]
        env = {
            **plain,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
            "VERL_PLATFORM": "cpu",
            "VERL_ENGINE_DEVICE": "cuda",
            **environ,
        }
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [*torchrun, str(HERE / "train.py"), str(folder), *overrides]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        return folder, done.stdout + done.stderr, done.returncode

    def seen(self, processes: int = 1, **environ: str) -> list[dict[str, Any]]:
        key = repr((processes, sorted(environ.items())))
        if key not in self.known:
            folder, said, status = self.launch(processes, environ)
            assert status == 0, said[-4000:]
            self.known[key] = json.loads((folder / "seen.json").read_text())
        return self.known[key]


@pytest.fixture(scope="session")
def runs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(model, tmp_path_factory.mktemp("runs"))


def rows(seen: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    return [row for row in seen if row["what"] == what]


def losses(seen: list[dict[str, Any]], what: str = "train") -> list[float]:
    return [row["loss"] for row in rows(seen, what)]


def figures(seen: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["what"], row.get("loss"), row.get("grad_norm")) for row in seen]


def test_installed_and_not_configured_it_is_not_there(runs):
    without, installed = runs.seen(VERL_USE_EXTERNAL_PLUGINS="none"), runs.seen()
    assert installed[0]["module"] == "verl.workers.engine.fsdp.transformer_impl"
    assert figures(installed) == figures(without)


def test_noise_is_in_training_passes_alone_and_as_much_as_the_schedule_says(runs):
    seen, clean = runs.seen(**NOISY), runs.seen()
    assert seen[0]["module"] == "noisescope.verl.registering"
    each = MICRO_BATCHES * OPERATORS
    assert [row["counts"] for row in rows(seen, "train")[:STEPS]] == [[n * each] * 2 for n in range(1, STEPS + 1)]
    trained = 0
    for row in seen[1:]:
        # What an inference batch finds counted is what training had counted before it.
        if row["what"] == "train":
            trained = row["counts"]
        elif row["what"] == "infer":
            assert row["counts"] == trained
    assert all(a != b for a, b in zip(losses(seen), losses(clean), strict=True))


def test_inference_is_clean(runs):
    """Noise at the last step has left no trace: a model that does not learn has the losses of the clean one."""
    still = "optim.lr=0.0"
    found = []
    for environ in ({}, NOISY):
        folder, said, status = runs.launch(1, environ, still)
        assert status == 0, said[-4000:]
        found.append(json.loads((folder / "seen.json").read_text()))
    clean, noisy = found
    assert losses(noisy, "infer") == losses(clean, "infer") and losses(noisy)[0] != losses(clean)[0]


def test_an_update_of_several_mini_batches_has_its_figures(runs):
    (update,) = rows(runs.seen(**NOISY), "update")
    assert update["noise/scale"] == pytest.approx([0.1, 0.1])
    assert update["noise/realised_forward"] == pytest.approx([0.1, 0.1], rel=1.0)
    assert update["noise/injections"][1] == MICRO_BATCHES // 2 * 2 * OPERATORS


def test_two_processes_share_the_noise_of_norms_and_have_their_own_in_operators(runs):
    one, two = runs.seen(1, **NORMS), runs.seen(2, **NORMS)
    assert losses(two)[0] == pytest.approx(losses(one)[0], rel=1e-6) and losses(one)[0] != losses(runs.seen())[0]
    assert rows(two, "train")[0]["grad_norm"] == pytest.approx(rows(one, "train")[0]["grad_norm"], rel=1e-5)
    noisy = runs.seen(2, **NOISY)
    assert abs(losses(noisy)[0] - losses(runs.seen(1, **NOISY))[0]) > 1e-5
    # Half of the micro-batches in each.
    assert rows(noisy, "train")[0]["counts"] == [MICRO_BATCHES // 2 * OPERATORS] * 2


def test_backward_noise_alone_leaves_the_first_loss_in_one_process_and_in_two(runs):
    backward = {**NOISY, "NOISESCOPE_BACKWARD_ONLY": "1"}
    clean = runs.seen()
    for processes in (1, 2):
        seen = runs.seen(processes, **backward)
        assert losses(seen)[0] == pytest.approx(losses(clean)[0], rel=1e-6)
        assert rows(seen, "train")[0]["grad_norm"] != pytest.approx(rows(clean, "train")[0]["grad_norm"], rel=1e-4)
        assert rows(seen, "train")[0]["counts"][0] == 0


@pytest.mark.parametrize(
    ("environ", "overrides", "said"),
    [
        ({**NOISY, "NOISESCOPE_OPERATORS": "gelu"}, [], "gelu was selected for forward and never fired"),
        (NOISY, ["engine.strategy=fsdp"], "there is an engine for it for fsdp2 alone"),
        ({**NOISY, "VERL_ENGINE_VENDOR": "metax"}, [], "would train without the noise"),
    ],
)
def test_a_configured_run_that_would_have_no_noise_ends(runs, environ, overrides, said):
    _, told, status = runs.launch(1, environ, *overrides)
    assert status != 0 and said in told


def test_verl_knows_every_key_of_the_launch_script(tmp_path):
    stand_in = tmp_path / "python3"
    stand_in.write_text('#!/bin/sh\nshift 2\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    script = HERE.parents[1] / "examples" / "verl" / "grpo.sh"
    # Only there where verl is.
    from hydra import compose, initialize_config_module

    overrides = subprocess.run(["bash", str(script)], capture_output=True, text=True, env=env, check=True).stdout
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides.splitlines())
    variables = config.ray_kwargs.ray_init.runtime_env.env_vars
    assert dict(variables)["NOISESCOPE_ENABLED"] == "1" and all(isinstance(v, str) for v in variables.values())
    assert config.actor_rollout_ref.ref.strategy == "fsdp2"
