"""Injection leaves nothing behind, sees nobody else, and depends on nothing but its key."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import noisescope as ns
from cases import CASES, batch, make
from noisescope.inject import native

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def state_of(model: nn.Module) -> list[object]:
    return [
        (sorted(m.__dict__), len(m._forward_hooks), len(m._forward_pre_hooks), len(m._forward_hooks_always_called))
        for m in model.modules()
    ] + [len(_get_current_function_mode_stack())]


def noisy(model: nn.Module, seed: int = 0, **selection: object) -> torch.Tensor:
    with torch.no_grad(), ns.inject(model, ns.noise(scale=0.05), seed=seed, **selection):
        return model(**batch()).logits


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "bert"])
def test_scale_zero_changes_no_bit(name: str, dtype: torch.dtype, attention: str) -> None:
    if name == "mixtral" and dtype is torch.float64:
        dtype = torch.float32  # grouped products have no float64 kernel
    model = make(name, attention, dtype)
    with torch.no_grad():
        clean = model(**batch()).logits
        with ns.inject(model, ns.noise(scale=0.0)) as handle:
            assert torch.equal(model(**batch()).logits, clean)
    assert {k: c.forward for k, c in handle.stats.by_operator.items()} == CASES[name].counts
    assert handle.stats.changed == 0


def test_scale_zero_changes_no_bit_of_any_gradient() -> None:
    found = []
    for injected in (False, True):
        model = make("llama", "sdpa").train()
        if injected:
            with ns.inject(model, ns.noise(scale=0.0), phases=("forward", "backward")) as handle:
                model(**batch(labels=True)).loss.backward()
            assert handle.stats.total_forward > 0
        else:
            model(**batch(labels=True)).loss.backward()
        found.append([w.grad for w in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_nothing_is_left_behind() -> None:
    model = make("llama")
    before, clean = state_of(model), model(**batch()).logits
    noisy(model)
    assert state_of(model) == before
    assert torch.equal(model(**batch()).logits, clean)


class Breaks(nn.Module):
    """A model that raises in the middle of a layer when told to."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(3))
        self.broken = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if self.broken and index == 1:
                raise RuntimeError("broken on purpose")
        return x


def test_an_exception_leaves_nothing_behind_and_is_not_hidden() -> None:
    model, x = Breaks(), torch.ones(1, 4)
    before, clean = state_of(model), model(x)
    model.broken = True
    with pytest.raises(RuntimeError, match="on purpose"), ns.inject(model, ns.noise()):
        model(x)
    model.broken = False
    assert state_of(model) == before
    assert torch.equal(model(x), clean)


def test_an_exception_inside_the_block_does_not_shift_later_noise() -> None:
    model, x = Breaks(), torch.ones(1, 4)
    with ns.inject(model, ns.noise(), seed=1):
        model(x)
        expected = model(x)
    with ns.inject(model, ns.noise(), seed=1):
        model.broken = True
        with pytest.raises(RuntimeError, match="on purpose"):
            model(x)
        model.broken = False
        assert torch.equal(model(x), expected)


def test_the_global_generator_is_not_touched() -> None:
    model = make("llama").train()
    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    for corruption in (ns.noise(), ns.noise("ulp", 4.0), ns.fault("bit_flip"), ns.fault("spike")):
        with ns.inject(model, corruption, phases=("forward", "backward")):
            model(**batch(labels=True)).loss.backward()
    assert torch.equal(torch.rand(4), expected)


def test_the_same_seed_gives_the_same_noise_and_another_seed_another() -> None:
    model = make("llama")
    assert torch.equal(noisy(model, 1), noisy(model, 1))
    assert torch.equal(noisy(model, 1), noisy(copy.deepcopy(model), 1))
    assert not torch.equal(noisy(model, 1), noisy(model, 2))


def keys_drawn(model: nn.Module, monkeypatch: pytest.MonkeyPatch, **selection: object) -> list[int]:
    keys: list[int] = []
    original = native.perturb_

    def spy(tensor: torch.Tensor, key: int, *rest: object) -> object:
        keys.append(key)
        return original(tensor, key, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(native, "perturb_", spy)
        noisy(model, 3, **selection)
    return keys


def test_noise_at_a_site_does_not_depend_on_what_else_is_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama")
    few = keys_drawn(model, monkeypatch, layers=[1], operators=["linear"])
    everything = keys_drawn(model, monkeypatch)
    assert len(few) == 7
    assert len(set(everything)) == 28
    assert set(few) < set(everything)


def test_successive_passes_and_neighbouring_seeds_draw_independent_noise() -> None:
    model = nn.Sequential(nn.Linear(64, 512, bias=False))
    x = torch.ones(64, 64)
    draws = []
    with torch.no_grad():
        clean = model(x)
        for seed in (0, 1, 2):
            with ns.inject(model, ns.noise(scale=0.1), seed=seed):
                draws += [(model(x) / clean - 1).flatten() for _ in range(2)]
    correlation = torch.corrcoef(torch.stack(draws)) - torch.eye(6)
    # 32768 values: four standard errors are 0.022.
    assert correlation.abs().max() < 0.022
    shifted = torch.corrcoef(torch.stack([draws[0][1:], draws[2][:-1]]))[0, 1]
    assert abs(float(shifted)) < 0.022


def test_two_threads_inject_differently_into_two_models() -> None:
    settings = [
        ("llama", {"operators": ["linear"], "layers": [0]}, 7),
        ("gpt2", {"operators": ["softmax"], "layers": [1]}, 1),
    ]
    models = [make(name) for name, _, _ in settings]
    expected = [noisy(model, 9, **selection) for model, (_, selection, _) in zip(models, settings, strict=True)]
    failures: list[object] = []
    gate = threading.Barrier(2)

    def work(index: int) -> None:
        _, selection, fires = settings[index]
        gate.wait()
        for _ in range(20):
            with torch.no_grad(), ns.inject(models[index], ns.noise(scale=0.05), seed=9, **selection) as handle:
                out = models[index](**batch()).logits
            if not torch.equal(out, expected[index]) or handle.stats.total_forward != fires:
                failures.append((index, handle.stats.total_forward))

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_model_that_is_not_injected_stays_clean_inside_the_block() -> None:
    actor, reference = make("llama"), make("llama")
    with torch.no_grad():
        clean = reference(**batch()).logits
        with ns.inject(actor, ns.noise()):
            assert not torch.equal(actor(**batch()).logits, clean)
            assert torch.equal(reference(**batch()).logits, clean)
            assert torch.equal(torch.softmax(torch.ones(3), 0), torch.full((3,), 1 / 3))


def test_nested_injections_compose_and_the_outer_one_survives_the_inner() -> None:
    model = make("llama")
    noise, fault = ns.noise(scale=0.05), ns.fault("gain_drift", 0.5)
    with torch.no_grad():
        clean = model(**batch()).logits
        with ns.inject(model, fault, layers=[0], operators=["linear"]) as outer:
            only_outer = model(**batch()).logits
            with ns.inject(model, noise, layers=[1], operators=["linear"], seed=2) as inner:
                both = model(**batch()).logits
            again = model(**batch()).logits
    assert torch.equal(only_outer, again)
    assert not torch.equal(both, only_outer)
    assert not torch.equal(clean, only_outer)
    assert (outer.stats.total_forward, inner.stats.total_forward) == (21, 7)


def test_the_inner_injection_draws_as_if_it_were_alone() -> None:
    model = make("llama")
    alone = noisy(model, 2, layers=[1])
    with torch.no_grad(), ns.inject(model, ns.noise(scale=0.0)):
        model(**batch())
        model(**batch())
        assert torch.equal(noisy(model, 2, layers=[1]), alone)


def test_layers_called_one_by_one_get_the_noise_of_the_full_run() -> None:
    blocks = Breaks()
    x = torch.ones(1, 4)
    with ns.inject(blocks, ns.noise(), seed=6):
        whole = blocks(x)
    with ns.inject(blocks, ns.noise(), seed=6):
        for layer in blocks.layers:
            x = layer(x)
    assert torch.equal(x, whole)


def test_one_handle_can_be_entered_again_and_starts_from_zero() -> None:
    model = make("llama")
    injecting = ns.inject(model, ns.noise(), seed=1)
    outs = []
    for _ in range(2):
        with torch.no_grad(), injecting as handle:
            outs.append(model(**batch()).logits)
        assert handle.stats.total_forward == 28
    assert torch.equal(*outs)


def test_a_handle_cannot_be_on_twice_at_once() -> None:
    model = make("llama")
    injecting = ns.inject(model, ns.noise())
    with pytest.raises(ns.NoisescopeError, match="already on"), injecting, injecting:
        pass
    assert torch.equal(model(**batch()).logits, make("llama")(**batch()).logits)


def test_an_inner_block_that_never_ran_does_not_blame_the_outer_one() -> None:
    model = make("llama")
    with torch.no_grad(), ns.inject(model, ns.noise(), layers=[0]) as outer:
        model(**batch())
        with pytest.raises(ns.NoisescopeError, match="not called"), ns.inject(model, ns.noise(), layers=[1]):
            pass
    assert outer.stats.total_forward == 13


def test_a_model_whose_layers_were_changed_is_learned_anew() -> None:
    model = make("llama")
    noisy(model)
    del model.model.layers[0]
    model.config.num_hidden_layers = 1
    assert {site.layer for site in ns.sites(model)} == {0, None}
    with pytest.raises(ns.NoisescopeError, match="unknown layer 1"):
        ns.inject(model, ns.noise(), layers=[1])
    model.model.layers[0] = copy.deepcopy(model.model.layers[0])
    with torch.no_grad(), ns.inject(model, ns.noise()) as handle:
        model(**batch())
    assert {layer: count.forward for layer, count in handle.stats.by_layer.items()} == {0: 13, None: 2}


def test_tensors_that_are_no_memory_are_refused_and_not_written_to() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
    with pytest.raises(ns.NoisescopeError, match="NestedTensor"), ns.inject(model, ns.noise()):
        model(nested)
    with pytest.raises(ns.NoisescopeError, match="no plain tensor"), ns.inject(model, ns.noise()):
        torch.func.vmap(model)(torch.ones(3, 4))
