"""Noise on norm weights against its formula, (Z + w) * x / rms(x), and against what bfloat16 leaves of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from noisescope.core.errors import BadInputError, NeverFiredError, NoEffectError
from noisescope.core.records import Site
from noisescope.inject.norm_weights import NAME, NormNoise

WIDTH, TOKENS = 64, 4096
SITE = Site(0, NAME, "norm")


class Model(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def tokens(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(0)).to(dtype)


def noisy_and_clean(norm: nn.Module, scale: float, dtype: torch.dtype, seed: int = 1) -> tuple[Tensor, Tensor]:
    model, x = Model(norm.to(dtype)), tokens(dtype)
    noise = NormNoise(model, {SITE: norm})
    clean = model(x)
    noise.start(scale, seed)
    noisy = model(x)
    noise.stop()
    assert torch.equal(model(x), clean) and noisy.dtype == clean.dtype
    return noisy.detach(), clean.detach()


def noise_by_channel(noisy: Tensor, clean: Tensor) -> Tensor:
    """Z of noisy - clean = Z * x / rms(x), by least squares over all tokens."""
    x = tokens().double()
    normed = x * x.square().mean(-1, keepdim=True).rsqrt()
    return ((noisy.double() - clean.double()) * normed).sum(0) / normed.square().sum(0)


NORMS = {
    "llama": lambda: LlamaRMSNorm(WIDTH),
    "gemma, whose gain is 1 + w": lambda: GemmaRMSNorm(WIDTH),
    "torch": lambda: nn.RMSNorm(WIDTH),
    "weights of 0": lambda: _filled(nn.RMSNorm(WIDTH), 0.0),
}


def _filled(norm: nn.Module, value: float) -> nn.Module:
    nn.init.constant_(norm.weight, value)
    return norm


@pytest.mark.parametrize("name", NORMS)
def test_every_channel_has_one_gain_for_all_tokens(name):
    noisy, clean = noisy_and_clean(NORMS[name](), 0.05, torch.float32)
    z = noise_by_channel(noisy, clean)
    x = tokens().double()
    normed = x * x.square().mean(-1, keepdim=True).rsqrt()
    torch.testing.assert_close(noisy.double() - clean.double(), z * normed, rtol=1e-3, atol=1e-5)
    assert float(z.std()) == pytest.approx(0.05, rel=0.3) and abs(float(z.mean())) < 0.02


def test_a_layer_norm_keeps_its_bias():
    norm = nn.LayerNorm(WIDTH)
    nn.init.constant_(norm.bias, 3.0)
    noisy, clean = noisy_and_clean(norm, 0.05, torch.float32)
    assert not torch.equal(noisy, clean)
    torch.testing.assert_close((noisy - clean).mean(), torch.tensor(0.0), atol=1e-2, rtol=0)
    assert float(noisy.mean()) == pytest.approx(3.0, abs=0.02)


@pytest.mark.parametrize("scale", [1e-2, 1e-3, 5e-4])
def test_small_noise_arrives_where_adding_it_to_the_weights_loses_it(scale):
    noisy, clean = noisy_and_clean(LlamaRMSNorm(WIDTH), scale, torch.bfloat16)
    assert float(noise_by_channel(noisy, clean).std()) == pytest.approx(scale, rel=0.3)
    weight = torch.ones(WIDTH, dtype=torch.bfloat16)
    added = weight + (scale * torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))).to(torch.bfloat16)
    if scale < 1e-3:
        assert int((added != weight).sum()) <= 1


def test_the_noise_is_a_function_of_the_seed():
    same, _ = noisy_and_clean(LlamaRMSNorm(WIDTH), 0.05, torch.float32)
    again, _ = noisy_and_clean(LlamaRMSNorm(WIDTH), 0.05, torch.float32)
    other, _ = noisy_and_clean(LlamaRMSNorm(WIDTH), 0.05, torch.float32, seed=2)
    assert torch.equal(same, again) and not torch.equal(same, other)


def test_the_weight_gets_the_gradient_of_its_own_and_the_input_that_of_the_noisy_norm():
    norm = LlamaRMSNorm(WIDTH)
    model, x = Model(norm), tokens().requires_grad_()
    noise = NormNoise(model, {SITE: norm})
    noise.start(0.05, 1)
    out = model(x)
    noise.stop()
    assert isinstance(norm.weight, nn.Parameter)
    out.sum().backward()
    normed = x.detach() * x.detach().square().mean(-1, keepdim=True).rsqrt()
    torch.testing.assert_close(norm.weight.grad, normed.sum(0), rtol=1e-3, atol=1e-3)
    assert x.grad is not None


def test_passes_without_gradients_are_clean_and_are_not_counted_as_noise():
    norm = LlamaRMSNorm(WIDTH)
    model, x = Model(norm), tokens()
    noise = NormNoise(model, {SITE: norm})
    clean = model(x).detach()
    noise.start(0.05, 1)
    with torch.no_grad():
        assert torch.equal(model(x), clean)
    with pytest.raises(NeverFiredError, match="1 norms"):
        noise.verify()


def test_a_norm_that_raises_has_its_weights_back():
    norm = LlamaRMSNorm(WIDTH)
    model, weight = Model(norm), norm.weight
    noise = NormNoise(model, {SITE: norm})
    noise.start(0.05, 1)
    with pytest.raises(RuntimeError):
        model(torch.zeros(2, WIDTH + 1))
    assert norm.weight is weight


def test_noise_that_changes_nothing_is_an_error():
    norm = LlamaRMSNorm(WIDTH)
    model = Model(norm)
    noise = NormNoise(model, {SITE: norm})
    noise.start(1e-12, 1)
    model(tokens())
    with pytest.raises(NoEffectError, match="changed none"):
        noise.verify()
    with pytest.raises(BadInputError, match="no norm"):
        NormNoise(model, {})
