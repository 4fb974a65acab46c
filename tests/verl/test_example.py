"""The launch script: bash reads it, and what it hands to the workers is a plan. verl's own keys: tests/verl_runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from noisescope.verl.environment import asks_for_training, plan_from

SCRIPT = Path(__file__).parents[2] / "examples" / "verl" / "grpo.sh"
WORKERS = "+ray_kwargs.ray_init.runtime_env.env_vars."


def launched(folder: Path, *more: str) -> list[str]:
    """What the script hands to python3, from a python3 that only writes it down."""
    stand_in = folder / "python3"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(SCRIPT), *more], capture_output=True, text=True, env=env, check=True)
    return done.stdout.splitlines()


def test_the_workers_get_a_plan(tmp_path):
    words = launched(tmp_path, "trainer.nnodes=2")
    assert words[:2] == ["-m", "verl.trainer.main_ppo"] and words[-1] == "trainer.nnodes=2"
    for_workers = dict(word.removeprefix(WORKERS).split("=", 1) for word in words if word.startswith(WORKERS))
    # Hydra takes the quotes off, which keep numbers texts.
    environ = {name: value.strip("'") for name, value in for_workers.items()}
    assert asks_for_training(environ) and all(value.startswith("'") for value in for_workers.values())
    plan = plan_from(environ)
    assert str(plan.schedule) == "exponential:0.05:0.001" and plan.operators == ("linear", "rms_norm")
    assert "actor_rollout_ref.actor.strategy=fsdp2" in words
