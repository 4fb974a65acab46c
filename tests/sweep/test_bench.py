"""Trials on a model: what is read, what is refused, what is kept, and that no process changes a reading."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import noisescope as ns
from cases import make
from contracts.checkpoints import SETTINGS, DyingMaker, choices, completions, maker, questions, save, texts
from letters import letters
from noisescope.core.codec import encode
from noisescope.core.errors import BadInputError, LoadError, NeverFiredError, NoEffectError
from noisescope.core.records import Corruption, Injection, Trial
from noisescope.measure.batches import Samples, prepare
from noisescope.measure.scoring import clean_run, evaluate
from noisescope.measure.workload import Workload
from noisescope.sweep.bench import BenchMaker, ModelBench, Task
from noisescope.sweep.executors.process import Processes
from noisescope.sweep.executors.serial import Serial

NOISE = ns.noise(scale=0.2)


def prepared(workload: Workload | None = None, metric: str = "nll") -> Samples:
    return prepare(workload or completions(), letters(), metric, SETTINGS)


def trial(samples: Samples, *injections: Injection, start: int = 0, stop: int | None = None) -> Trial:
    return Trial(injections, samples.key, samples.metric.name, start, stop)


def at(layers: int | tuple[int | None, ...] | None, corruption: Corruption = NOISE, **more: object) -> Injection:
    return Injection.of(corruption, layers=layers, **more)


@contextmanager
def calls_of(model: nn.Module) -> Iterator[list[int]]:
    seen: list[int] = []
    handle = model.register_forward_hook(lambda *_: seen.append(1))
    yield seen
    handle.remove()


@pytest.mark.parametrize(
    ("workload", "metric"),
    [
        (completions(), "nll"),
        (texts(), "perplexity"),
        (texts(), "kl_to_clean"),
        (completions(), "top1_agreement"),
        (choices(), "accuracy_plain"),
        (texts(), "embedding_shift"),
        (questions(), "accuracy"),
    ],
)
def test_a_reading_holds_the_scores_of_the_model_under_all_injections_of_the_trial(
    workload: Workload, metric: str
) -> None:
    model, samples = make("llama"), prepared(workload, metric)
    bench = ModelBench(model, samples)
    clean = clean_run(model, samples)
    asked = trial(samples, at(0, ns.noise(scale=2.0)), at((1, None), ns.fault("dead_zone", 1.5), operators="linear"))
    strong = ns.inject(model, ns.noise(scale=2.0), layers=0)
    with strong, ns.inject(model, ns.fault("dead_zone", 1.5), layers=(1, None), operators="linear"):
        expected = evaluate(model, samples, clean=clean)
    assert bench.measure(asked).values == expected.values
    assert bench.measure(trial(samples)).values == clean.scores.values
    assert len(expected.values) == len(workload)
    # An accuracy of a random model may well stay where it is.
    assert expected.values != clean.scores.values or metric.startswith("accuracy")


def test_each_injection_of_a_trial_counts() -> None:
    samples = prepared()
    bench = ModelBench(make("llama"), samples)
    one, other = at(0), at(1)
    values = [bench.measure(trial(samples, *some)).values for some in ((), (one,), (other,), (one, other))]
    assert len(set(values)) == 4
    assert bench.measure(trial(samples, other, one)).values == values[3]


def test_a_reading_does_not_depend_on_the_trials_before_it() -> None:
    samples = [prepared(metric=metric) for metric in ("nll", "kl_to_clean")]
    asked = [trial(one, at(layer), start=s, stop=e) for one in samples for layer in (0, 1) for s, e in ((0, 8), (3, 7))]
    asked += [trial(one, start=3, stop=7) for one in samples]
    bench = ModelBench(make("qwen2"), samples)
    there, back = [list(map(bench.measure, some)) for some in (asked, asked[::-1])]
    alone = [ModelBench(make("qwen2"), samples).measure(one) for one in asked]
    assert there == back[::-1] == alone


def test_a_slice_has_one_value_for_each_of_its_samples_in_their_order() -> None:
    samples = prepared()
    bench = ModelBench(make("gpt2"), samples)
    whole = bench.measure(trial(samples)).values
    parts = [bench.measure(trial(samples, start=i, stop=i + 1)).values for i in range(8)]
    assert [len(part) for part in parts] == [1] * 8
    assert whole == pytest.approx([value for part in parts for value in part], rel=1e-5)


@pytest.mark.parametrize("metric", ["nll", "kl_to_clean", "embedding_shift"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_control_of_strength_0_gives_exactly_the_clean_values(metric: str, dtype: torch.dtype) -> None:
    samples = prepared(metric=metric)
    bench = ModelBench(make("llama", "sdpa", dtype), samples)
    clean = bench.measure(trial(samples))
    for layers in (None, 1, (1, None)):
        assert bench.measure(trial(samples, at(layers, ns.noise(scale=0.0)))).values == clean.values
    if samples.metric.against_clean:
        assert set(clean.values) == {samples.metric.clean}


def test_an_injection_that_never_fires_or_changes_nothing_raises() -> None:
    samples = prepared()
    bench = ModelBench(make("llama"), samples)
    with pytest.raises(NeverFiredError, match="gelu"):
        bench.measure(trial(samples, at(1, operators="gelu")))
    with pytest.raises(NeverFiredError, match="no gradient passed"):
        bench.measure(trial(samples, at(1, phases="backward")))
    with pytest.raises(BadInputError, match="layer 7"):
        bench.measure(trial(samples, at(7)))
    # A fault leaves float64 alone.
    healthy = ModelBench(make("llama", dtype=torch.float64), samples)
    with pytest.raises(NoEffectError, match="changed none"):
        healthy.measure(trial(samples, at(1, ns.fault("dead_zone", 0.3))))
    assert bench.measure(trial(samples, at(1))) == ModelBench(make("llama"), samples).measure(trial(samples, at(1)))


def test_trials_of_another_workload_or_metric_are_refused() -> None:
    samples, other = prepared(), prepared(texts())
    bench = ModelBench(make("llama"), samples)
    with pytest.raises(BadInputError, match=f"a trial of nll on {other.key}: this bench has nll on {samples.key}"):
        bench.measure(trial(other))
    with pytest.raises(BadInputError, match="a trial of perplexity"):
        bench.measure(Trial((), samples.key, "perplexity"))
    with pytest.raises(BadInputError, match="items 4 to 99"):
        bench.measure(trial(samples, start=4, stop=99))


def test_outputs_that_are_not_finite_are_counted() -> None:
    model, samples = make("llama"), prepared()
    with torch.no_grad():
        model.lm_head.weight[5] = math.inf
    reading = ModelBench(model, samples).measure(trial(samples))
    scored = sum(len(batch.targets) for batch in samples.batches())
    assert reading.nonfinite == scored > 8
    assert set(reading.values) == {100.0}


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_injections_are_counted_whether_or_not_the_first_layers_run_again(memory: int) -> None:
    samples = prepared()
    bench = ModelBench(make("llama"), samples, prefix_memory=memory)
    batches = len(samples.batches())
    # A layer runs seven linear layers, two products, a softmax, a silu and two norms; the model has two such layers.
    assert bench.measure(trial(samples, at(1))).injections == 13 * batches
    assert bench.measure(trial(samples, at(1), at(0, operators="silu"))).injections == 14 * batches
    assert bench.measure(trial(samples)).injections == 0


def test_the_clean_run_of_a_slice_is_made_once() -> None:
    model, samples = make("llama"), prepared(metric="kl_to_clean")
    bench = ModelBench(model, samples)
    bench.measure(trial(samples, at(0)))
    batches = len(samples.batches())
    with calls_of(model) as calls:
        for seed in range(3):
            bench.measure(trial(samples, at(0, seed=seed)))
        bench.measure(trial(samples))
    assert len(calls) == 3 * batches


def test_clean_runs_are_let_go_when_memory_is_full_the_longest_unused_first() -> None:
    model, samples = make("llama"), prepared(metric="kl_to_clean")
    slices = [(0, 3), (3, 5), (5, 8)]
    sizes = [sum(r.nbytes for r in clean_run(model, samples, *one).references) for one in slices]
    bench = ModelBench(model, samples, memory=sizes[0] + sizes[2], prefix_memory=0)
    for one in slices[:2]:
        bench.clean(samples, *one)
    first = bench.clean(samples, *slices[0])
    bench.clean(samples, *slices[2])
    with calls_of(model) as calls:
        assert bench.clean(samples, *slices[0]) is first
        assert not calls
        bench.clean(samples, *slices[1])
        assert calls
    # One that is larger than all memory there is for it is of use all the same.
    small = ModelBench(model, samples, memory=1)
    assert small.measure(trial(samples, at(1))) == bench.measure(trial(samples, at(1)))


def test_dropout_is_off_while_a_trial_is_measured_and_the_model_is_given_back_as_it_was() -> None:
    model, samples = make("llama"), prepared()
    model.model.layers[1].mlp.register_module("drop", nn.Dropout(0.5))
    model.model.layers[1].mlp.register_forward_hook(lambda mlp, _, out: mlp.drop(out))
    model.train()
    model.lm_head.eval()
    bench = ModelBench(model, samples)
    assert bench.measure(trial(samples, at(0))) == bench.measure(trial(samples, at(0)))
    assert [name for name, m in model.named_modules() if not m.training] == ["lm_head"]


def test_keys_and_values_are_kept_for_generation_alone() -> None:
    model, kept = make("llama"), []
    model.config.use_cache = True
    model.register_forward_hook(lambda _, __, out: kept.append(out.get("past_key_values") is not None))
    for workload, metric, keeps in ((completions(), "nll", False), (questions(), "accuracy", True)):
        samples = prepared(workload, metric)
        for injections in ((), (at(0),), (at(1),)):
            kept.clear()
            ModelBench(model, samples).measure(trial(samples, *injections))
            # The check that a model does not look ahead runs before.
            assert set(kept) == {keeps}
    assert model.config.use_cache
    assert not model._forward_pre_hooks


def asked_of(folder: Path) -> tuple[BenchMaker, list[Trial]]:
    made = maker(folder)
    keys = made().prepared.items()
    injections = [(), (at(0),), (at(1),), (at((1, None)),), (at(0), at(1, ns.fault("stuck_at_zero")))]
    trials = [Trial(some, key, one.metric.name, s, s + 4) for key, one in keys for some in injections for s in (0, 4)]
    return made, trials


def test_a_killed_worker_changes_no_bit_of_any_reading(tmp_path: Path) -> None:
    made, trials = asked_of(tmp_path / "model")
    serial = list(Serial(made, threads=1).run(trials))
    assert all(reading.error is None for reading in serial)
    dying = DyingMaker(made, trials[9], str(tmp_path / "mark"))
    with Processes(dying, 2, threads=1) as executor:
        readings = list(executor.run(trials))
    assert (tmp_path / "mark").exists()
    assert sorted(map(encode, readings)) == sorted(map(encode, serial))


def test_a_maker_travels_and_makes_the_same_bench(tmp_path: Path) -> None:
    made = maker(tmp_path)
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    benches = made(), again()
    assert list(benches[0].prepared) == list(benches[1].prepared) and len(benches[0].prepared) == 2
    key = next(iter(benches[0].prepared))
    first, second = (bench.measure(Trial((at(1),), key, "nll")) for bench in benches)
    assert first == second


def test_a_maker_takes_options_and_refuses_a_model_that_was_changed(tmp_path: Path) -> None:
    place, tasks = save(tmp_path), (Task(completions(), "nll", SETTINGS),)
    half = BenchMaker(place, tasks, (("dtype", "bfloat16"),))()
    assert half.model.dtype == torch.bfloat16
    mark = ns.load(place).fingerprint
    assert BenchMaker(place, tasks, fingerprint=mark)().prepared
    model = make("llama")
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    model.save_pretrained(tmp_path)
    with pytest.raises(LoadError, match="no longer the model it was"):
        BenchMaker(place, tasks, fingerprint=mark)()
