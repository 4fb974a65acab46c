"""Skipping clean layers: readings equal to the bit, and nothing skipped where a model does not allow it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import noisescope as ns
from cases import CASES, GROUPED, SMALL, batch, make
from contracts.checkpoints import SETTINGS, completions, questions, texts
from letters import letters
from noisescope.core.records import Injection, Trial
from noisescope.measure.batches import Samples, prepare
from noisescope.measure.calling import logits_of
from noisescope.model.layout import layout_of
from noisescope.sweep.bench import ModelBench
from noisescope.sweep.injecting import Injecting
from noisescope.sweep.kept import Kept, content_of, pack
from noisescope.sweep.prefix import Prefix

NOISE = ns.noise(scale=0.05)


def at(layers: int | tuple[int | None, ...] | None, corruption: ns.Corruption = NOISE, **more: object) -> Injection:
    return Injection.of(corruption, layers=layers, **more)


def deep(layers: int = 6, **more: object) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": layers, **more})
        return transformers.LlamaForCausalLM(config).eval()


def prefix_of(model: nn.Module, **more: Any) -> Prefix:
    return Prefix(model, lambda inputs: logits_of(model(**inputs)), batch(4, 20), **more)


@contextmanager
def runs_of(model: nn.Module) -> Iterator[list[int]]:
    """Which layers compute anything, in order; the skipped ones run neither their hooks nor their modules."""
    seen: list[int] = []
    layers = [model.get_submodule(path) for path in layout_of(model).layers]
    handles = [
        next(iter(layer.children())).register_forward_hook(lambda *_, i=i: seen.append(i))
        for i, layer in enumerate(layers)
    ]
    yield seen
    for handle in handles:
        handle.remove()


def samples_for(name: str) -> Samples:
    metric = "embedding_shift" if name == "bert" else "kl_to_clean"
    return prepare(texts() if name == "bert" else completions(), letters(), metric, SETTINGS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "attention"), [(name, attention) for name in CASES for attention in CASES[name].attention]
)
def test_readings_are_those_of_whole_runs_to_the_bit(name: str, attention: str, dtype: torch.dtype) -> None:
    model, samples = make(name, attention, dtype), samples_for(name)
    assert any((b.inputs["attention_mask"] == 0).any() for b in samples.batches()), "no padding is tested"
    assert len(samples.batches()) > 2
    asked = [
        Trial(injections, samples.key, samples.metric.name)
        for injections in (
            (at(1),),
            (at(1, seed=3), at(1, ns.fault("dead_zone", 0.5), operators="linear")),
            (at((None, 1)),),
            (at(None, operators="linear"),),
            (),
            (at((None,), operators=("linear",)),),
        )
    ]
    skipping, whole = ModelBench(model, samples), ModelBench(make(name, attention, dtype), samples, prefix_memory=0)
    with runs_of(model) as ran:
        readings = list(map(skipping.measure, asked))
        assert readings == list(map(whole.measure, asked))
        assert skipping.prefix_of(samples).off is None
        ran.clear()
        assert skipping.measure(asked[0]) == readings[0]
    assert ran == [1] * len(samples.batches())
    assert readings[0].values != readings[4].values


def test_every_boundary_is_taken_and_a_later_one_is_reached_from_an_earlier_one() -> None:
    model, samples = deep(), prepare(completions(), letters(), "nll", SETTINGS)
    bench, whole = ModelBench(model, samples), ModelBench(deep(), samples, prefix_memory=0)
    # A whole run at layer 0 keeps nothing; one at layer 2 keeps the first two; one at 5 starts there and goes on.
    trials = {0: range(6), 2: range(6), 5: range(2, 6), 4: range(4, 6), 1: range(1, 6)}
    for layer, run in trials.items():
        trial = Trial((at(layer),), samples.key, "nll")
        bench.prefix_of(samples).first(trial.injections)
        with runs_of(model) as ran:
            reading = bench.measure(trial)
        assert ran == [*run] * len(samples.batches())
        assert reading == whole.measure(trial)


def test_what_is_injected_is_counted_as_in_a_whole_run() -> None:
    model, inputs = deep(), batch(4, 20)
    prefix, tallies, outputs = prefix_of(model), [], []
    for skip in (False, True, True):
        injections = [at((3, 4)), at((4, None), operators="linear")]
        first = prefix.first(injections)
        skipping = prefix.skipping(first if skip else 0)
        with Injecting(model, injections[0]) as one, Injecting(model, injections[1]) as two, torch.no_grad(), skipping:
            outputs.append([model(**inputs).logits for _ in range(2)])
        tallies.append([handle.stats.by_site() for handle in (one, two)])
    assert first == 3
    assert tallies[0] == tallies[1] == tallies[2]
    assert all(torch.equal(a, b) for some in outputs for a, b in zip(some, outputs[0], strict=True))
    assert not torch.equal(*outputs[0]), "two passes of one trial have noise of their own"


def test_only_clean_layers_in_front_of_everything_injected_are_skipped() -> None:
    llama, bert = prefix_of(deep()), prefix_of(make("bert"))
    assert llama.first([]) == 6
    assert llama.first([at(4)]) == 4
    assert llama.first([at(4), at((2, 3))]) == 2
    assert llama.first([at(4), at(0)]) == 0
    assert llama.first([at(None, operators="softmax")]) == 0
    assert llama.first([at(4, phases=("forward", "backward"))]) == 0
    assert llama.first([at(4, phases="backward")]) == 0
    # The final norm and the head come behind the layers; BERT has a norm on its embeddings.
    assert llama.first([at((None,))]) == 6
    assert llama.first([at((5, None))]) == 5
    assert bert.first([at((None,))]) == 0
    assert bert.first([at((None,), operators="layer_norm")]) == 0
    assert bert.first([at((None, 1), operators="linear")]) == 1


def test_inputs_that_were_not_seen_run_whole() -> None:
    model = deep()
    prefix = prefix_of(model)
    first, inputs = prefix.first([]), [batch(4, 20), batch(4, 19), {"input_ids": batch(4, 20)["input_ids"] + 1}]
    masked = {**inputs[0], "attention_mask": torch.ones(4, 20, dtype=torch.long).tril(16)}
    for one in (*inputs, masked, inputs[0]):
        with torch.no_grad():
            expected = model(**one).logits
            with prefix.skipping(first), runs_of(model) as ran:
                assert torch.equal(model(**one).logits, expected)
    assert ran == []
    with runs_of(model) as ran, prefix.skipping(first):
        model(**inputs[0]).logits.sum().backward()
    assert ran == [*range(6)], "whatever needs gradients runs whole"


class Sum(nn.Module):
    """A stack whose layers write into what they are given."""

    def __init__(self, layer: Callable[[int], nn.Module], loops: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, 8)
        self.layers = nn.ModuleList(layer(i) for i in range(3))
        self.head = nn.Linear(8, 128)
        self.loops = loops

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        state: Any = self.embed(input_ids)
        for _ in range(self.loops):
            for layer in self.layers:
                state = layer(state)
        return self.head(state if isinstance(state, Tensor) else state.value)


class InPlace(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, state: Tensor) -> Tensor:
        return state.add_(self.linear(state).tanh())


@dataclass
class Boxed:
    value: Tensor


class Ahead(Sum):
    """Runs a part of its last layer in front of the first."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        state = self.layers[2].linear(self.embed(input_ids))
        for layer in self.layers:
            state = layer(state)
        return self.head(state)


class Boxing(InPlace):
    def forward(self, state: Any) -> Any:
        return Boxed(super().forward(state.value if isinstance(state, Boxed) else state).clone())


def test_layers_that_write_into_their_inputs_spoil_nothing() -> None:
    torch.manual_seed(0)
    model = Sum(InPlace)
    prefix = prefix_of(model)
    with torch.no_grad():
        for layer in (2, 1, 2, 1, 2):
            seen = []
            for first in (0, prefix.first([at(layer)])):
                with ns.inject(model, NOISE, layers=layer), prefix.skipping(first):
                    seen.append(model(**batch()))
            assert torch.equal(*seen)
    assert prefix.off is None


def test_a_reason_is_kept_where_nothing_can_be_skipped() -> None:
    torch.manual_seed(0)
    compiled = deep(2)
    compiled.model.layers[1].compile()
    inside = deep(2)
    inside.forward = torch.compile(inside.forward)
    cases = {
        "compiled": [compiled, torch.compile(deep(2)), inside],
        "stack of layers was not found": [nn.Sequential(nn.Embedding(128, 8), nn.Linear(8, 128))],
        "once each and in order": [Sum(InPlace, loops=2)],
        "a Boxing gives more than tensors": [Sum(Boxing)],
        "layers.2.linear runs outside of layer 2": [Ahead(InPlace)],
    }
    for reason, models in cases.items():
        for model in models:
            prefix = prefix_of(model)
            assert prefix.first([at(1)]) == 0
            assert reason in str(prefix.off)


class Sharing(nn.Module):
    """A layer that takes more from the ones before it than its input: they leave something on a board."""

    def __init__(self, index: int, board: dict[str, Tensor], needs: str) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.index, self.board, self.needs = index, board, needs

    def forward(self, state: Tensor) -> Tensor:
        out = self.linear(state)
        if self.index == 0:
            self.board["left"] = out
        if self.index < 2 or not self.needs:
            return state + out
        return state + out + (self.board.pop("left") if self.needs == "must" else self.board.pop("left", 0))


def test_a_model_whose_later_layers_take_more_from_earlier_ones_runs_whole() -> None:
    board: dict[str, Tensor] = {}
    reasons = {
        "": None,
        "must": "started behind layer 0, the model fails (KeyError: 'left')",
        "may": "started behind layer 0, the model gives something else than as a whole",
    }
    for needs, reason in reasons.items():
        torch.manual_seed(0)
        prefix = prefix_of(Sum(lambda i, needs=needs: Sharing(i, board, needs)))
        assert prefix.first([at(1)]) == (0 if needs else 1)
        assert prefix.off == reason


class Fixed(Sum):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if input_ids.shape[1] != 20:
            raise ValueError("20 positions, please")
        return super().forward(input_ids)


def test_a_model_that_cannot_be_tried_out_runs_whole() -> None:
    model, inputs = Fixed(InPlace), batch(4, 20)
    prefix = prefix_of(model)
    first = prefix.first([at(1)])
    assert (first, prefix.off) == (0, "a part of a batch cannot be run (ValueError: 20 positions, please)")
    with torch.no_grad(), prefix.skipping(first), runs_of(model) as ran:
        model(**inputs)
    assert ran == [0, 1, 2]


def test_a_model_whose_last_state_is_read_by_a_hook_runs_its_last_layer() -> None:
    model, states = deep(4), []
    model.model.layers[3].register_forward_hook(lambda layer, args, out: states.append(out))

    def see(inputs: Any) -> Tensor:
        states.clear()
        model(**inputs)
        return states[0]

    prefix, inputs = Prefix(model, see, batch(4, 20)), batch(4, 20)
    with torch.no_grad():
        expected = see(inputs)
        for _ in range(2):
            first = prefix.first([])
            with prefix.skipping(first), runs_of(model) as ran:
                assert torch.equal(see(inputs), expected)
    assert (first, prefix.off, ran) == (4, None, [3])


def test_shared_keys_and_values_are_noticed_at_the_boundary_where_they_are_shared() -> None:
    config = transformers.Gemma3nTextConfig(
        **{**GROUPED, "num_hidden_layers": 4},
        head_dim=8,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        vocab_size_per_layer_input=128,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        altup_num_inputs=2,
        activation_sparsity_pattern=[0.0] * 4,
    )
    model = transformers.Gemma3nForCausalLM(config).eval()
    prefix = prefix_of(model)
    # The last two layers use keys and values of the first two: a run from the very first boundary lacks some.
    assert prefix.first([at(3)]) == 0
    assert prefix.off.startswith("started behind layer 2, the model fails (KeyError")


@dataclass
class Seen:
    calls: list[int] = field(default_factory=list)

    def hook(self, index: int) -> Callable[..., None]:
        return lambda *_: self.calls.append(index)


def test_hooks_of_the_user_run_on_the_layers_that_run_and_what_they_change_is_kept() -> None:
    inputs, results = batch(4, 20), []
    for skip in (False, True):
        model, seen = deep(3), Seen()
        for index, layer in enumerate(model.model.layers):
            layer.register_forward_hook(lambda m, args, out: out + args[0])
            layer.register_forward_hook(seen.hook(index))
        prefix = prefix_of(model)
        first = prefix.first([at(2)]) if skip else 0
        for _ in range(2):
            seen.calls.clear()
            with torch.no_grad(), ns.inject(model, NOISE, layers=2), prefix.skipping(first):
                results.append(model(**inputs).logits)
        assert seen.calls == ([2] if skip else [0, 1, 2])
        assert prefix.off is None
    assert all(torch.equal(result, results[0]) for result in results)


def state_of(model: nn.Module) -> list[Any]:
    return [
        (sorted(m.__dict__), id(m._forward_hooks), list(m._forward_hooks), list(m._forward_pre_hooks))
        for m in model.modules()
    ]


def test_nothing_is_left_on_the_model() -> None:
    model, samples = deep(), prepare(completions(), letters(), "nll", SETTINGS)
    model.model.layers[0].forward = model.model.layers[0].forward
    model.model.layers[1].register_forward_hook(lambda *_: None)
    before = state_of(model)
    bench = ModelBench(model, samples)
    asked = [Trial((at(layer),), samples.key, "nll") for layer in (5, 4)]
    expected = list(map(bench.measure, asked))
    assert state_of(model) == before
    for problem in (ValueError, KeyboardInterrupt):

        def fail(*_: object, problem: type[BaseException] = problem) -> None:
            raise problem

        handle = model.model.layers[5].mlp.register_forward_hook(fail)
        with pytest.raises(problem):
            bench.measure(asked[1])
        handle.remove()
        assert state_of(model) == before
        assert list(map(bench.measure, asked)) == expected
    assert bench.prefix_of(samples).off is None


def test_generation_is_never_cut_short() -> None:
    samples = prepare(questions(), letters(), "accuracy", SETTINGS)
    bench = ModelBench(deep(), samples)
    assert bench.prefix_of(samples) is None
    assert len(bench.measure(Trial((at(5),), samples.key, "accuracy")).values) == 4


def test_two_models_in_two_threads_do_not_see_each_other() -> None:
    samples = samples_for("llama")
    asked = [Trial((at(layer, seed=s),), samples.key, samples.metric.name) for s in range(4) for layer in (3, 1, 4, 5)]
    kinds = [deep, lambda: deep(rms_norm_eps=1e-3)]
    expected = [list(map(ModelBench(kind(), samples, prefix_memory=0).measure, asked)) for kind in kinds]
    found: dict[int, list[Any]] = {}

    def work(number: int, bench: ModelBench) -> None:
        found[number] = list(map(bench.measure, asked))

    threads = [
        threading.Thread(target=work, args=(number, ModelBench(kind(), samples))) for number, kind in enumerate(kinds)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[0], found[1]] == expected
    assert expected[0] != expected[1]


@pytest.mark.parametrize("share", [0.02, 0.2, 0.3, 0.6, 0.9])
def test_readings_are_the_same_whatever_there_is_room_for(share: float) -> None:
    model, samples = deep(), prepare(completions(), letters(), "nll", SETTINGS)
    tokens = sum(b.inputs["input_ids"].numel() for b in samples.batches())
    everything = tokens * 32 * 4 * 6
    bench = ModelBench(model, samples, prefix_memory=int(share * everything))
    whole = ModelBench(deep(), samples, prefix_memory=0)
    for layers in [(5,), (3,), (4,), (5,), (None,), (1,), (2,)]:
        trial = Trial((at(layers),), samples.key, "nll")
        assert bench.measure(trial) == whole.measure(trial)
    prefix = bench.prefix_of(samples)
    assert prefix.off is None
    assert prefix.kept.room >= 0
    assert prefix.kept.step == {0.02: 8, 0.2: 4, 0.3: 4, 0.6: 2, 0.9: 2}[share]


def test_half_the_boundaries_go_when_there_is_no_more_room() -> None:
    # Of one value of four bytes each: 12 boundaries of one input, then of a second.
    kept = Kept(48)
    for boundary in range(1, 13):
        kept.keep(b"one", boundary, torch.full((1,), float(boundary)))
    assert (kept.room, kept.step) == (0, 1)
    assert [kept.nearest(b"one", range(limit)) for limit in (1, 2, 6, 99)] == [0, 1, 5, 12]
    kept.keep(b"two", 1, torch.zeros(1))
    assert (kept.room, kept.step) == (24, 2)
    for boundary in range(1, 13):
        kept.keep(b"two", boundary, torch.zeros(1))
    assert (kept.room, kept.step) == (0, 2)
    assert kept.nearest(b"two", range(99)) == 12 and kept.nearest(b"two", range(6)) == 4
    for boundary in range(1, 13):
        kept.keep(b"three", boundary, torch.zeros(1))
        kept.keep(b"four", boundary, torch.zeros(1))
        kept.keep(b"five", boundary, torch.zeros(1))
        kept.keep(b"six", boundary, torch.zeros(1))
    assert (kept.room, kept.step) == (24, 8)
    assert kept.get(b"one", 8).unpacked() == 8.0
    kept.keep(b"large", 8, torch.zeros(7))
    assert kept.nearest(b"large", [8]) == 0
    assert kept.room == 24
    kept.clear()
    assert kept.room == 48


def test_what_a_layer_gave_comes_back_with_its_structure_and_layout() -> None:
    given = (torch.arange(6.0).view(2, 3).t(), None, {"more": torch.ones(2, dtype=torch.bfloat16)}, 3)
    packed = pack(given)
    assert packed.nbytes == 28
    given[0].zero_()
    packed.unpacked()[0].zero_()
    again = packed.unpacked()
    assert type(again) is tuple and again[1] is None and again[3] == 3
    assert torch.equal(again[0], torch.arange(6.0).view(2, 3).t()) and again[0].stride() == (1, 3)
    assert again[2]["more"].dtype == torch.bfloat16
    assert pack((torch.ones(1), object())) is None


def test_inputs_are_told_apart_by_all_that_is_in_them() -> None:
    ids = torch.arange(6).view(2, 3)
    several = [
        ((), {"input_ids": ids}),
        ((ids,), {}),
        ((), {"input_ids": ids.view(3, 2)}),
        ((), {"input_ids": ids.int()}),
        ((), {"input_ids": ids + 1}),
        ((), {"input_ids": ids, "use_cache": False}),
        ((), {"input_ids": ids, "use_cache": None}),
        ((), {"inputs_embeds": ids.bfloat16()}),
        ((), {"input_ids": torch.tensor(3)}),
    ]
    keys = [content_of(*one) for one in several]
    assert None not in keys and len(set(keys)) == len(several)
    assert content_of((), {"a": ids, "b": None}) == content_of((), {"b": None, "a": ids.clone()})
    assert content_of((), {"past": object()}) is None
