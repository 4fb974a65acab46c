"""Compiled models get the noise of eager ones, and nothing that varies between trials recompiles them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import noisescope as ns
from cases import CASES, batch, make
from noisescope.core.errors import CannotCompileError

BOTH = ("forward", "backward")
TRIALS = [
    {"seed": 1},
    {"seed": 2},
    {"seed": 2, "corruption": ns.noise(scale=0.01)},
    {"seed": 1, "layers": [0]},
    {"seed": 1, "operators": ["softmax", "linear"]},
    {"seed": 1, "operators": ["attention"]},
    {"seed": 1, "corruption": ns.fault("dead_zone", 0.3), "layers": [1]},
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(model: nn.Module, seed: int, corruption=None, **selection):
    """Two passes under one injection."""
    with torch.no_grad(), ns.inject(model, corruption or ns.noise(), seed=seed, **selection) as handle:
        outs = [model(**batch()).logits.clone() for _ in range(2)]
    return torch.stack(outs), {name: c.forward for name, c in handle.stats.by_operator.items()}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "bert"])
def test_compiled_and_eager_inject_the_same_and_trials_do_not_recompile(name: str, attention: str) -> None:
    model = make(name, attention)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    with torch.no_grad():
        clean = compiled(**batch()).logits
    for trial in TRIALS:
        expected, counts = run(model, **trial)
        seen, counts_seen = run(compiled, **trial)
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-6)
        assert counts_seen == counts
        assert not torch.allclose(seen[0], clean, atol=1e-4)
    # One graph without injection, one with it.
    assert counter.frame_count == 2
    with torch.no_grad():
        assert torch.equal(compiled(**batch()).logits, clean)
    assert counter.frame_count == 2


def test_inductor_injects_the_same_noise() -> None:
    model = make("qwen2")
    compiled = torch.compile(model, fullgraph=True)
    for trial in TRIALS[:4]:
        expected, counts = run(model, **trial)
        seen, counts_seen = run(compiled, **trial)
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)
        assert counts_seen == counts


@pytest.mark.parametrize("through", ["model", "compiled"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_model_that_ran_compiled_before_does_not_ignore_injection(in_place: bool, through: str) -> None:
    model = make("llama")
    compiled = model if in_place else torch.compile(model, fullgraph=True, backend="aot_eager")
    if in_place:
        model.compile(fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        clean = compiled(**batch()).logits
        with ns.inject(model if through == "model" else compiled, ns.noise()) as handle:
            noisy = compiled(**batch()).logits
        assert handle.stats.total_forward == sum(CASES["llama"].counts.values())
        assert not torch.equal(noisy, clean)
        assert torch.equal(compiled(**batch()).logits, clean)


def test_layers_compiled_one_by_one_keep_their_own_sites() -> None:
    model = make("llama")
    expected, counts = run(model, seed=3)
    in_layer_0, _ = run(model, seed=3, layers=[0])
    for layer in model.model.layers:
        layer.compile(fullgraph=True, backend="aot_eager")
    seen, counts_seen = run(model, seed=3)
    torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-6)
    assert counts_seen == counts
    torch.testing.assert_close(run(model, seed=3, layers=[0])[0], in_layer_0, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_compiled_training_step_is_that_of_eager_mode(name: str) -> None:
    found = []
    for backend in (None, "aot_eager"):
        model = make(name).train()
        call = model if backend is None else torch.compile(model, fullgraph=True, backend=backend)
        with ns.inject(model, ns.noise(), phases=BOTH, seed=4) as handle:
            call(**batch()).logits.square().mean().backward()
        found.append([w.grad for w in model.parameters()])
        counts = {k: (c.forward, c.backward) for k, c in handle.stats.by_operator.items()}
        found[-1].append(counts)
    assert found[0].pop() == found[1].pop()
    for expected, seen in zip(*found, strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-6)


def test_checkpointing_inside_a_compiled_model_is_refused() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.utils.checkpoint.checkpoint(lambda y, f=layer: f(y).sin(), x, use_reentrant=False)
            return x

    model = Checkpointed()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with pytest.raises(CannotCompileError, match="hides its operators"), ns.inject(model, ns.noise()):
        compiled(torch.randn(2, 4, requires_grad=True)).sum().backward()


def test_a_composite_of_torch_is_refused_when_compiled() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with (
        pytest.raises(CannotCompileError, match="multi_head_attention_forward"),
        torch.no_grad(),
        ns.inject(model, ns.noise()),
    ):
        compiled(torch.randn(1, 3, 8))


def test_a_compiled_model_without_children_gets_its_own_noise() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x @ self.weight, -1)

    # Two models of one class share their code; each must be traced for itself.
    for model in (Product(), Product()):
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        for seed in (1, 2):
            with torch.no_grad(), ns.inject(model, ns.noise(), seed=seed):
                expected = model(torch.ones(2, 4))
            with torch.no_grad(), ns.inject(model, ns.noise(), seed=seed) as handle:
                seen = compiled(torch.ones(2, 4))
            torch.testing.assert_close(seen, expected)
            assert handle.stats.total_forward == 2


def test_a_graph_break_neither_loses_nor_doubles_injections() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
                torch._dynamo.graph_break()
            return x

    model = Broken()
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.ones(2, 4)
    for seed in (1, 2, 2):
        with torch.no_grad(), ns.inject(model, ns.noise(), seed=seed) as handle:
            expected = [model(x), model(x)]
        with torch.no_grad(), ns.inject(model, ns.noise(), seed=seed) as in_graph:
            seen = [compiled(x), compiled(x)]
        assert in_graph.stats.total_forward == handle.stats.total_forward == 6
        torch.testing.assert_close(seen, expected)
