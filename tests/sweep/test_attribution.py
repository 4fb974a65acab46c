"""Noise lands in the layer that was asked for, forward and backward, whatever the training loop does around it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import noisescope as ns
from cases import batch, make

BOTH = ("forward", "backward")


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}
    model.zero_grad()
    return found


def by_layer(stats) -> dict[object, tuple[int, int]]:
    return {layer: (count.forward, count.backward) for layer, count in stats.by_layer.items()}


def test_head_and_final_norm_are_not_charged_to_the_last_layer() -> None:
    model = make("llama")
    with torch.no_grad(), ns.inject(model, ns.noise(), layers=[1]) as handle:
        model(**batch())
    # 7 linears, 2 products, softmax, silu, 2 norms
    assert by_layer(handle.stats) == {1: (13, 0)}
    with torch.no_grad(), ns.inject(model, ns.noise(), layers=[None]) as handle:
        model(**batch())
    assert {site.path for site in handle.stats.by_site()} == {"model.norm", "lm_head"}


@pytest.mark.parametrize("layer", [0, 1])
def test_backward_noise_lands_in_the_layer_that_was_asked_for(layer: int) -> None:
    model = make("llama").train()
    model(**batch(labels=True)).loss.backward()
    clean = gradients(model)
    with ns.inject(model, ns.noise(scale=0.05), layers=[layer], phases="backward") as handle:
        model(**batch(labels=True)).loss.backward()
    noisy = gradients(model)
    assert by_layer(handle.stats) == {layer: (0, 13)}
    changed = {name for name in clean if not torch.equal(clean[name], noisy[name])}
    # Gradients flow from the head down: what lies above the layer is untouched.
    above = [n for n in clean if n.startswith(("lm_head", "model.norm")) or (layer == 0 and ".layers.1." in n)]
    assert above
    assert not changed & set(above)
    assert all(name in changed for name in clean if f".layers.{layer}." in name)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "bert"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_neither_gradients_nor_counts(name: str, reentrant: bool, attention: str) -> None:
    found = []
    for checkpointing in (False, True):
        model = make(name, attention).train()
        if checkpointing:
            model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": reentrant})
        with ns.inject(model, ns.noise(scale=0.05), phases=BOTH, seed=3) as handle:
            # Two forwards before the first backward: the recomputation must find its own pass.
            first, second = (model(**batch(labels=True)).loss for _ in range(2))
            assert first != second
            second.backward()
            of_second = gradients(model)
            first.backward()
        found.append((gradients(model), of_second, by_layer(handle.stats)))
    plain, recomputed = found
    assert plain[2] == recomputed[2]
    for expected, seen in zip(plain[:2], recomputed[:2], strict=True):
        for weight, gradient in expected.items():
            assert torch.equal(gradient, seen[weight]), weight


def test_checkpointing_of_a_users_own_blocks_changes_nothing() -> None:
    class Checkpointed(nn.Module):
        def __init__(self, reentrant: bool | None) -> None:
            super().__init__()
            self.reentrant = reentrant
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.SiLU()) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                if self.reentrant is None:
                    x = layer(x)
                else:
                    x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=self.reentrant)
            return x

    found = []
    for reentrant in (None, True, False):
        model = Checkpointed(reentrant)
        x = torch.ones(2, 8, requires_grad=True)
        with ns.inject(model, ns.noise(scale=0.1), phases=BOTH):
            model(x).square().sum().backward()
        found.append([*gradients(model).values(), x.grad])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_autocast_with_float32_weights_trains(name: str) -> None:
    model = make(name).train()
    with torch.autocast("cpu", torch.bfloat16):
        model(**batch(labels=True)).loss.backward()
    clean = gradients(model)
    with (
        ns.inject(model, ns.noise(scale=0.05), phases=BOTH) as handle,
        torch.autocast("cpu", torch.bfloat16),
    ):
        model(**batch(labels=True)).loss.backward()
    noisy = gradients(model)
    assert handle.stats.total_forward == handle.stats.total_backward
    for weight, gradient in noisy.items():
        assert gradient.dtype is torch.float32
        assert torch.isfinite(gradient).all()
        assert (gradient - clean[weight]).norm() < 0.6 * clean[weight].norm() + 1e-6


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_without_bias_or_weight(affine: bool, bias: bool) -> None:
    model = nn.Sequential(nn.LayerNorm(8, elementwise_affine=affine, bias=bias))
    x = torch.randn(4, 8, requires_grad=True)
    with ns.inject(model, ns.noise(scale=0.05), phases=BOTH) as handle:
        model(x).square().sum().backward()
    assert by_layer(handle.stats) == {None: (1, 1)}
    assert x.grad is not None


def test_gradients_pass_straight_through_forward_noise() -> None:
    """y = W x + error: the derivative of the error is none, so x gets exactly W^T g."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False))
    x = torch.randn(2, 4, requires_grad=True)
    with ns.inject(model, ns.noise(scale=0.3)):
        model(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(2, 3) @ model[0].weight)


def test_softmax_backward_uses_the_clean_softmax() -> None:
    class Softmax(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x, -1)

    model = Softmax()
    x = torch.randn(3, 5, requires_grad=True)
    weights = torch.randn(3, 5)
    (expected,) = torch.autograd.grad((torch.softmax(x, -1) * weights).sum(), x)
    with ns.inject(model, ns.noise(scale=0.3)):
        (seen,) = torch.autograd.grad((model(x) * weights).sum(), x)
    torch.testing.assert_close(seen, expected)


def test_weight_gradient_noise_is_relative_to_the_gradient_of_the_whole_batch() -> None:
    model = nn.Sequential(nn.Linear(32, 32, bias=False))
    x = torch.ones(64, 32)
    model(x).sum().backward()
    clean = gradients(model)["0.weight"]
    with ns.inject(model, ns.noise(scale=0.05), phases="backward"):
        model(x).sum().backward()
    error = gradients(model)["0.weight"] - clean
    # 1024 values: the standard error of the estimate is 2.2 %.
    assert float(error.norm() / clean.norm()) == pytest.approx(0.05, rel=0.1)


def test_double_backward_sees_noise_and_stays_finite() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 1))
    x = torch.randn(2, 4, requires_grad=True)
    with ns.inject(model, ns.noise(scale=0.05), phases=BOTH):
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()
    assert torch.isfinite(model[0].weight.grad).all()


def test_a_model_called_in_a_thread_of_its_own_is_followed_there() -> None:
    import threading

    model, seen = make("llama"), []

    def work() -> None:
        with torch.no_grad():
            seen.append(model(**batch()).logits)

    with torch.no_grad(), ns.inject(model, ns.noise(), seed=4) as handle:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        here = model(**batch()).logits
    assert handle.stats.total_forward == 56  # two passes
    # The first pass of each thread is pass 0: noise does not depend on threads.
    assert torch.equal(seen[0], here)
