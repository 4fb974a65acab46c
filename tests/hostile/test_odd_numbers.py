"""NaN and infinity in weights, activations, losses and readings: a clear outcome, and JSON that is JSON."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import noisescope as ns
from cases import batches, sharp
from hostile.models import saved
from noisescope.cli.main import main
from noisescope.core.codec import parse
from noisescope.core.errors import NoisescopeError
from noisescope.report.document import from_json
from noisescope.runs.reporting import report

Change = Callable[[nn.Module], object]


def one_value(value: float) -> Change:
    return lambda model: model.model.layers[1].mlp.down_proj.weight[0].fill_(value)


def every_value(value: float) -> Change:
    return lambda model: [weight.fill_(value) for weight in model.parameters()]


# Of 1e30 products overflow in float32 and differences of infinities are NaN; the head alone makes losses infinite.
SPOILT: dict[str, Change] = {
    "nan in a layer": one_value(math.nan),
    "inf in a layer": one_value(math.inf),
    "nan everywhere": every_value(math.nan),
    "overflow": every_value(1e30),
    "zeros": every_value(0.0),
    "overflow in the head": lambda model: model.lm_head.weight.mul_(1e38),
    "nan in the embedding of a letter": lambda model: model.model.embed_tokens.weight[40].fill_(math.nan),
}


def whole(run: Path) -> None:
    """Every JSON file and every line is strict JSON, and the report can be read back."""
    for path in run.rglob("*.json"):
        parse(path.read_text())
    for path in run.glob("readings-*"):
        for line in path.read_text().splitlines():
            parse(line)
    if (run / "report.json").exists():
        from_json((run / "report.json").read_text())
        assert "NaN" not in (run / "report.json").read_text()


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_model_gets_a_clear_answer_from_every_command(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = saved(tmp_path / "model", change=SPOILT[name]), tmp_path / "run"
    asked = "--data demo:texts --samples 4 --seeds 1 --noise-scale 0.2"
    commands = (
        f"sites {model}",
        f"diagnose {model} {asked} --out {out}",
        f"diagnose {model} {asked} --metric kl_to_clean --exhaustive --out {out}-kl",
        f"robustness {model} --data demo:texts -n 4 --seeds 1 --noise-levels 0,0.1 --out {out}-levels",
        f"locate {model} -n 1 --repeats 2 --out {out}-located",
        f"capture {model} --samples 1 --out {out}.capture",
        f"compare {model} {model} --samples 1 --out {out}-compared",
        f"compare {out}.capture {out}.capture",
        f"gate {model} {asked} --out {out}-gate --save-baseline {out}.json --history {out}.jsonl",
        f"report {out}",
    )
    for command in commands:
        status = main(shlex.split(command))
        told = capsys.readouterr()
        assert "not foreseen" not in told.err, (command, told.err)
        assert status in (0, 1, 2) and (told.out or told.err), command
        if status == 2 and not told.out:
            assert len([line for line in told.err.splitlines() if line.startswith("noisescope: ")]) == 1, told.err
    for run in tmp_path.glob("run*"):
        if run.is_dir():
            whole(run)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("rows", ["all", "one"])
def test_activations_that_are_no_numbers(value: float, rows: str, tmp_path: Path) -> None:
    """A layer that gives them for every input, or for inputs that hold one token."""
    model = sharp()

    def spoil(module: nn.Module, args: tuple[object, ...], output: torch.Tensor) -> torch.Tensor:
        spoilt = output.clone()
        spoilt[slice(None) if rows == "all" else slice(0, 1)] = value
        return spoilt

    model.model.layers[2].mlp.register_forward_hook(spoil)
    with contextlib.suppress(NoisescopeError):
        found = ns.diagnose(model, batches(16), scale=0.2, out=tmp_path / "run")
        # What was never a number cannot have been found harmless.
        assert rows == "one" or not [one for one in found.operators if one.answer.verdict.decided]
        report(tmp_path / "run")
    whole(tmp_path / "run")
