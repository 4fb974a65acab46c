"""Fault tests on a model with a planted weak place, and on its twin without it: they fail here, and pass there.

The weak place is a channel of an MLP that is 0 in a healthy run and read by large weights; in the twin nothing reads
it. So without a fault both give the same answers.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cases import make
from letters import letters
from noisescope.core.errors import BadInputError
from noisescope.core.records import Injection
from noisescope.diagnose.fault_tests import Accepted, FaultCase, FaultPlan, FaultTests
from noisescope.measure.batches import prepare
from noisescope.measure.workload import Text, Workload
from noisescope.model.layout import layout_of
from noisescope.runs import fault_testing
from noisescope.runs.diagnosing import Desk, Patient
from noisescope.runs.fault_places import injection_of
from noisescope.runs.fault_testing import measured_curves, run_fault_tests, setting_for
from noisescope.sweep.bench import ModelBench
from noisescope.sweep.executors.serial import Serial
from noisescope.sweep.injecting import Injecting, sites
from noisescope.sweep.store import About, Store

CHANNEL, LAYER = 5, 1
UP, DOWN = (f"model.layers.{LAYER}.mlp.{name}_proj" for name in ("up", "down"))
TEXTS = [f"the river and the sea are the two words of item {i}, no more" for i in range(24)]
CHANNELS = FaultCase(
    name="channel",
    level="channel",
    kind="value_corruption",
    magnitude=1.0,
    rate=0.2,
    channels=(CHANNEL,),
    operators=None,
    layers=None,
    path=DOWN,
    side="input",
    moment="always",
    accepted=Accepted(loss=0.15, located=True),
    is_critical=True,
    because="planted",
)
FLIPS = replace(
    CHANNELS,
    name="flips",
    level="operator",
    kind="bit_flip",
    rate=0.01,
    channels=None,
    operators=("silu",),
    path="",
    side="",
    accepted=Accepted(loss=0.05, nonfinite=0.001),
)
STEP = replace(
    FLIPS,
    name="step",
    level="window",
    kind="stuck_at_zero",
    rate=1.0,
    operators=None,
    layers=(0,),
    moment="one step",
    accepted=Accepted(loss=0.10, recovery=5),
)


@functools.cache
def learned() -> nn.Module:
    """A small model that has learned the texts, so that it has something to lose."""
    model = make("llama", "sdpa")
    ids = [torch.tensor(letters().encode(text)) for text in TEXTS]
    batch = nn.utils.rnn.pad_sequence(ids, batch_first=True)
    labels = batch.masked_fill(batch == 0, -100)
    steps = torch.optim.Adam(model.parameters(), 1e-2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(60):
            steps.zero_grad()
            model(input_ids=batch, labels=labels).loss.backward()
            steps.step()
    with torch.no_grad():
        # The channel is 0, so that what reads it changes nothing.
        model.get_submodule(UP).weight[CHANNEL] = 0.0
    return model.requires_grad_(requires_grad=False).eval()


def reading(weight: float) -> nn.Module:
    """The same model, with this weight on the channel that is 0."""
    model = copy.deepcopy(learned())
    model.get_submodule(DOWN).weight[:, CHANNEL] = weight
    return model


def brittle() -> nn.Module:
    return reading(300.0)


def hardened() -> nn.Module:
    return reading(0.0)


def idle_layer() -> nn.Module:
    """The first layer adds nothing to the stream, whatever becomes of it."""
    model = hardened()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        model.get_submodule(f"model.layers.0.{name}").weight.zero_()
    return model


@contextmanager
def at_desk(model: nn.Module, folder: Path) -> Iterator[Desk]:
    samples = prepare(Workload.of("words", [Text(text) for text in TEXTS]), letters(), "nll")
    found = sites(model, samples.batches(0, 1)[0].inputs)
    patient = Patient(model, layout_of(model).layers, tuple(found), samples, samples)
    about = About("m", samples.key, (("dtype", "float32"), ("threads", 1)))
    with Store(folder, about) as store:
        yield Desk(patient, store, Serial(lambda: ModelBench(model, samples), threads=1))


def outcomes_of(model: nn.Module, folder: Path, *cases: FaultCase, seeds: int = 2) -> FaultTests:
    with at_desk(model, folder) as desk:
        return run_fault_tests(desk, FaultPlan("m", "", cases), setting_for(desk, seeds, 0))


@pytest.mark.parametrize(("make_one", "verdict"), [(brittle, "fail"), (hardened, "pass")])
def test_a_channel_that_is_read_fails_and_one_that_is_not_passes(
    tmp_path: Path, make_one: Callable[[], nn.Module], verdict: str
) -> None:
    (outcome,) = outcomes_of(make_one(), tmp_path, CHANNELS).outcomes
    assert outcome.verdict == verdict, outcome
    # Where the fault is, locate says in both; that it costs nothing does not make the machine healthy.
    assert outcome.located.is_found and outcome.located.rank == 1 and outcome.located.elsewhere == 0
    assert outcome.place == f"linear at {UP}"
    if verdict == "pass":
        assert outcome.loss.estimate == 0.0 and not outcome.reasons
    else:
        assert outcome.loss.low > 0.15 and outcome.reasons[0].startswith("loss")


def test_flipped_bits_that_make_outputs_infinite_fail_by_both_limits(tmp_path: Path) -> None:
    mild = replace(FLIPS, name="mild", kind="gain_drift", magnitude=1e-4, rate=None)
    found = outcomes_of(hardened(), tmp_path, FLIPS, mild)
    flips, drift = found.outcomes
    assert flips.verdict == "fail" and flips.loss.low > 0.05
    assert flips.nonfinite_rate > 0.001 and "not finite" in " ".join(flips.reasons)
    # The denominator is every scored position of every seed: all tokens of a text but the first.
    assert flips.positions == 2 * sum(len(letters().encode(text)) - 1 for text in TEXTS)
    assert drift.verdict == "pass" and drift.nonfinite == 0
    assert found.verdict == "fail"


def test_a_faulty_step_in_an_idle_layer_costs_nothing_and_in_a_busy_one_it_does(tmp_path: Path) -> None:
    # Not one lost token in 24 samples shows a loss below 14 %.
    loose = replace(STEP, accepted=Accepted(loss=0.20, recovery=5))
    (idle,) = outcomes_of(idle_layer(), tmp_path / "idle", loose).outcomes
    assert idle.verdict == "pass" and idle.loss.estimate == 0.0
    assert idle.stepped.recovery.estimate == 1.0 and idle.stepped.unrecovered == 0
    strict = replace(STEP, accepted=Accepted(loss=0.01, recovery=5))
    (busy,) = outcomes_of(hardened(), tmp_path / "busy", strict).outcomes
    assert busy.verdict == "fail" and busy.stepped.lost[0].estimate > 0.5
    assert busy.stepped.positions == 2 * len(TEXTS) * 16


def test_a_fault_that_cannot_be_planted_or_does_nothing_is_an_error_and_never_a_pass(tmp_path: Path) -> None:
    absent = replace(STEP, name="absent", layers=(7,))
    unread = replace(CHANNELS, name="unread", path="model.layers.0.self_attn.o_proj", channels=(1, 2, 3))
    nowhere = replace(CHANNELS, name="nowhere", path="model.layers.9.mlp.down_proj", side="output")
    never = replace(FLIPS, name="never", operators=("gelu",))
    silent = replace(FLIPS, name="silent", rate=0.0)
    found = outcomes_of(hardened(), tmp_path, absent, nowhere, never, silent, replace(unread, channels=(400,)))
    assert [outcome.verdict for outcome in found.outcomes] == ["error"] * 5
    reasons = [outcome.reasons[0] for outcome in found.outcomes]
    assert "layer" in reasons[0] and "runs no operator there" in reasons[1] and "never fired" in reasons[2]
    assert "changed none" in reasons[3] and "no single operator" in reasons[4]
    assert found.verdict == "error"


def test_what_was_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = brittle()
    first = outcomes_of(model, tmp_path, CHANNELS, STEP)
    held = {path.name: path.read_bytes() for path in tmp_path.glob("readings-*")}

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(fault_testing, "walk", refuse)
    monkeypatch.setattr(fault_testing, "locate", refuse)
    monkeypatch.setattr(ModelBench, "measure", refuse)
    assert outcomes_of(model, tmp_path, CHANNELS, STEP) == first
    assert {path.name: path.read_bytes() for path in tmp_path.glob("readings-*")} == held


def test_a_run_that_is_ended_keeps_what_it_had_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = outcomes_of(brittle(), tmp_path / "whole", CHANNELS, STEP)

    def end(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fault_testing, "walk", end)
        with pytest.raises(KeyboardInterrupt):
            outcomes_of(brittle(), tmp_path / "ended", CHANNELS, STEP)
    assert list((tmp_path / "ended").glob("readings-*")) and list((tmp_path / "ended").glob("kept-located-*"))
    assert outcomes_of(brittle(), tmp_path / "ended", CHANNELS, STEP) == whole


def test_the_curve_of_bits_is_steep_where_the_numbers_are(tmp_path: Path) -> None:
    with at_desk(hardened(), tmp_path) as desk:
        (curve,) = measured_curves(desk, ("rms_norm",), setting_for(desk, 1, 0), 1e-2)
    by_bit = {point.bit: point for point in curve.points}
    assert sorted(by_bit) == list(range(32)) and curve.dtype == "float32"
    assert by_bit[30].loss.estimate > 1.0 and by_bit[30].nonfinite >= 0.0
    assert by_bit[31].loss.estimate > by_bit[0].loss.estimate
    assert abs(by_bit[0].loss.estimate) < 1e-6 and by_bit[22].loss.estimate > abs(by_bit[10].loss.estimate)
    assert all(not point.gaps and point.loss.low <= point.loss.estimate <= point.loss.high for point in curve.points)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma", "gpt2", "gpt_neox", "phi"])
def test_a_channel_at_an_input_is_struck_by_the_operator_that_makes_it(name: str) -> None:
    model = make(name, "sdpa")
    inputs = {"input_ids": torch.arange(3, 15)[None]}
    found = tuple(sites(model, inputs))
    layer = layout_of(model).layers[1]
    reached = 0
    for path in [site.path for site in found if site.path.startswith(f"{layer}.") and site.operator == "linear"]:
        case = replace(CHANNELS, path=path, channels=(3,))
        try:
            injection = injection_of(case, model, found, inputs)
        except BadInputError:
            continue  # such as what attention gives: many operators make it together
        assert changed_inputs(model, injection, path, inputs) == {3}
        reached += 1
    assert reached >= 2, name


def changed_inputs(model: nn.Module, injection: Injection, path: str, inputs: dict[str, Any]) -> set[int]:
    seen: list[torch.Tensor] = []
    handle = model.get_submodule(path).register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    every = replace(injection, corruption=replace(CHANNELS, rate=1.0, channels=(3,)).corruption)
    with torch.no_grad():
        model(**inputs)
        with Injecting(model, every):
            model(**inputs)
    handle.remove()
    return set((seen[0] != seen[1]).reshape(-1, seen[0].shape[-1]).any(0).nonzero().flatten().tolist())


def test_a_path_is_struck_alone_and_one_that_is_not_there_is_an_error() -> None:
    model = make("llama")
    inputs = {"input_ids": torch.arange(3, 15)[None]}
    case = replace(CHANNELS, side="output")
    injection = injection_of(case, model, sites(model, inputs), inputs)
    with torch.no_grad(), Injecting(model, replace(injection, corruption=replace(case, rate=1.0).corruption)) as handle:
        model(**inputs)
    assert {site.path for site in handle.stats.by_site()} == {DOWN}
    lost = replace(injection, paths=(DOWN, "model.layers.1.mlp.nothing"))
    with (
        torch.no_grad(),
        pytest.raises(Exception, match=r"module model\.layers\.1\.mlp\.nothing"),
        Injecting(model, lost),
    ):
        model(**inputs)


def test_without_a_fault_the_brittle_model_and_its_twin_are_one() -> None:
    inputs = {"input_ids": torch.tensor([letters().encode(TEXTS[0])])}
    assert torch.equal(brittle()(**inputs).logits, hardened()(**inputs).logits)
