"""Every operator of every family fires exactly as often as it runs, however the model spells it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import noisescope as ns
from cases import CASES, GROUPED, batch, make

IMPLEMENTATIONS = ("eager", "sdpa")


def counts(stats) -> dict[str, int]:
    return {name: count.forward for name, count in stats.by_operator.items()}


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", CASES)
def test_each_operator_fires_as_often_as_it_runs(name: str, attention: str) -> None:
    model = make(name, attention)
    with torch.no_grad(), ns.inject(model, ns.noise(scale=0.05)) as handle:
        model(**batch())
    assert counts(handle.stats) == CASES[name].counts


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
def test_an_eight_layer_qwen2_fires_106_times(attention: str) -> None:
    config = transformers.Qwen2Config(**{**GROUPED, "num_hidden_layers": 8})
    model = transformers.Qwen2ForCausalLM(config).eval()
    model.set_attn_implementation(attention)
    with torch.no_grad(), ns.inject(model, ns.noise(scale=0.05)) as handle:
        model(**batch())
    # 8 * 7 + head; 8 * 2; 8; 8; 8 * 2 + final norm
    assert counts(handle.stats) == {"linear": 57, "matmul": 16, "softmax": 8, "silu": 8, "rms_norm": 17}
    assert handle.stats.total_forward == 106


@pytest.mark.parametrize("name", CASES)
def test_fused_and_eager_attention_get_the_same_noise(name: str) -> None:
    outs = []
    for attention in IMPLEMENTATIONS:
        model = make(name, attention)
        with torch.no_grad(), ns.inject(model, ns.noise(scale=0.05), seed=5):
            outs.append(model(**batch()).logits)
    torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)


def test_softmax_of_fused_attention_is_perturbed_in_the_selected_layer_only() -> None:
    model = make("llama", "sdpa")
    with torch.no_grad():
        clean = model(**batch(), output_hidden_states=True).hidden_states
        with ns.inject(model, ns.noise(scale=0.05), layers=[1], operators=["softmax"]) as handle:
            noisy = model(**batch(), output_hidden_states=True).hidden_states
    assert counts(handle.stats) == {"softmax": 1}
    assert torch.equal(clean[1], noisy[1])
    assert not torch.equal(clean[2], noisy[2])


def test_attention_as_a_whole_leaves_the_fused_kernel_in_place() -> None:
    model = make("llama", "sdpa")
    with torch.no_grad():
        clean = model(**batch()).logits
        with ns.inject(model, ns.noise(scale=0.0), operators=["attention"]):
            assert torch.equal(model(**batch()).logits, clean)
        with ns.inject(model, ns.noise(scale=0.05), operators=["attention"]) as handle:
            assert not torch.equal(model(**batch()).logits, clean)
    assert counts(handle.stats) == {"attention": 2}


def test_attention_as_a_whole_is_found_in_an_unfused_model_too() -> None:
    outs = []
    for attention in IMPLEMENTATIONS:
        model = make("llama", attention)
        with torch.no_grad(), ns.inject(model, ns.noise(scale=0.05), operators=["sdpa"], seed=2) as handle:
            outs.append(model(**batch()).logits)
        assert counts(handle.stats) == {"attention": 2}
    torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)


class Computes(nn.Module):
    """A model that is one function of its input and a square weight."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


SPELLINGS = {
    "linear": {"F.linear": F.linear},
    "matmul": {
        "@": lambda x, w: x @ w,
        "torch.matmul": torch.matmul,
        "Tensor.matmul": lambda x, w: x.matmul(w),
        "reversed @": lambda x, w: w.__rmatmul__(x),
        "torch.mm": torch.mm,
        "Tensor.mm": lambda x, w: x.mm(w),
        "addmm": lambda x, w: torch.addmm(w[0], x, w),
        "Tensor.addmm": lambda x, w: w.addmm(x, w),
        "einsum": lambda x, w: torch.einsum("ij,jk->ik", x, w),
        "mv": lambda x, w: torch.mv(x, w[0]),
        "vector @": lambda x, w: x[0] @ w[0],
        "linalg": torch.linalg.matmul,
        "tensordot": lambda x, w: torch.tensordot(x, w, 1),
        "out": lambda x, w: torch.matmul(x, w, out=torch.empty(4, 4)) if not w.requires_grad else x @ w,
    },
    "bmm": {
        "torch.bmm": lambda x, w: torch.bmm(x[None], w[None]),
        "Tensor.bmm": lambda x, w: x[None].bmm(w[None]),
        "baddbmm": lambda x, w: torch.baddbmm(w[None], x[None], w[None]),
    },
    "softmax": {
        "F.softmax": lambda x, w: F.softmax(x, -1),
        "torch.softmax": lambda x, w: torch.softmax(x, -1),
        "Tensor.softmax": lambda x, w: x.softmax(-1),
        "special": lambda x, w: torch.special.softmax(x, -1),
    },
    "silu": {"F.silu": lambda x, w: F.silu(x), "in place": lambda x, w: F.silu(x.clone(), inplace=True)},
    "gelu": {"erf": lambda x, w: F.gelu(x), "tanh": lambda x, w: F.gelu(x, approximate="tanh")},
    "layer_norm": {
        "F.layer_norm": lambda x, w: F.layer_norm(x, (4,)),
        "torch.layer_norm": lambda x, w: torch.layer_norm(x, (4,), w[0]),
    },
    "rms_norm": {"F.rms_norm": lambda x, w: F.rms_norm(x, (4,), w[3])},
}
SPELLED = [(operator, name) for operator, spellings in SPELLINGS.items() for name in spellings]


@pytest.mark.parametrize(("operator", "name"), SPELLED)
def test_every_spelling_is_seen(operator: str, name: str) -> None:
    model = Computes(SPELLINGS[operator][name])
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    clean = model(x)
    with ns.inject(model, ns.noise(scale=0.1), operators=[operator]) as handle:
        noisy = model(x)
    assert counts(handle.stats) == {operator: 1}
    assert not torch.equal(clean, noisy)
    assert torch.equal(model(x), clean)


@pytest.mark.parametrize(("operator", "name"), [pair for pair in SPELLED if pair[1] != "in place"])
def test_every_spelling_sends_back_noisy_gradients(operator: str, name: str) -> None:
    model = Computes(SPELLINGS[operator][name])
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))

    def gradients() -> tuple[Tensor, ...]:
        leaf = x.clone().requires_grad_()
        model(leaf).square().sum().backward()
        return leaf.grad, model.weight.grad

    clean = gradients()[0]
    with ns.inject(model, ns.noise(scale=0.1), operators=[operator], phases=["backward"]) as handle:
        noisy = gradients()[0]
    assert handle.stats.total_backward == 1
    assert not torch.equal(clean, noisy)
    assert (clean - noisy).abs().max() <= clean.abs().max()


def test_a_call_that_overwrites_its_input_refuses_backward_noise_loudly() -> None:
    model = Computes(SPELLINGS["silu"]["in place"])
    x = torch.randn(4, 4, requires_grad=True)
    with (
        pytest.raises(ns.NoisescopeError, match="no gradient passed"),
        ns.inject(model, ns.noise(), operators=["silu"], phases=["backward"]),
    ):
        model(x).sum().backward()


class HandNorm(nn.Module):
    """RMS norm written out, under a name that says nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale


class HandSilu(nn.Module):
    """SiLU written out."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


def test_operators_written_out_by_hand_are_recognised_by_what_they_compute() -> None:
    model = nn.Sequential(HandNorm(8), nn.Linear(8, 8), HandSilu())
    x = torch.randn(3, 8, requires_grad=True)
    with ns.inject(model, ns.noise(scale=0.1), phases=("forward", "backward")) as handle:
        model(x).sum().backward()
    assert counts(handle.stats) == {"rms_norm": 1, "linear": 1, "silu": 1}
    assert handle.stats.by_operator["rms_norm"].backward == 1


def test_weight_and_input_of_a_written_out_norm_both_get_noisy_gradients() -> None:
    model = nn.Sequential(HandNorm(8))
    x = torch.randn(3, 8)

    def gradients() -> tuple[Tensor, Tensor]:
        leaf = x.clone().requires_grad_()
        model.zero_grad()
        (model(leaf) ** 2).sum().backward()
        return leaf.grad, model[0].scale.grad

    clean = gradients()
    with ns.inject(model, ns.noise(scale=0.1), operators=["rms_norm"], phases=["backward"]) as handle:
        noisy = gradients()
    assert handle.stats.total_backward == 1
    for before, after in zip(clean, noisy, strict=True):
        assert not torch.equal(before, after)
        assert (before - after).norm() < 0.5 * before.norm()


def test_composite_attention_of_torch_is_looked_into() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad(), ns.inject(model, ns.noise(scale=0.05)) as handle:
        model(torch.randn(1, 3, 8))
    # in-projection, out-projection and two of the feed-forward; two norms
    assert counts(handle.stats)["linear"] == 4
    assert counts(handle.stats)["layer_norm"] == 2
    assert counts(handle.stats)["softmax"] == 1


def test_sites_lists_what_can_be_reached() -> None:
    model = make("llama", "sdpa").train()
    found = ns.sites(model)
    assert model.training
    assert len(found) == len(set(found))
    layer = [(site.operator, site.path.removeprefix("model.layers.0.")) for site in found if site.layer == 0]
    assert ("softmax", "self_attn") in layer
    assert ("attention", "self_attn") in layer
    assert ("rms_norm", "input_layernorm") in layer
    assert ("silu", "mlp.act_fn") in layer
    assert [(s.operator, s.path) for s in found if s.layer is None] == [
        ("rms_norm", "model.norm"),
        ("linear", "lm_head"),
    ]


@pytest.mark.parametrize(("name", "norm"), [("llama", "rms_norm"), ("gpt2", "layer_norm")])
def test_layernorm_means_whichever_norm_the_model_has(name: str, norm: str) -> None:
    model = make(name)
    with torch.no_grad(), ns.inject(model, ns.noise(), operators="layernorm") as handle:
        model(**batch())
    assert counts(handle.stats) == {norm: 5}
    with (
        pytest.raises(ns.NoisescopeError, match="never fired"),
        torch.no_grad(),
        ns.inject(model, ns.noise(), operators=["layer_norm", "rms_norm"]),
    ):
        model(**batch())


class HandLayerNorm(nn.Module):
    """Layer norm written out, with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.bias = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)) + self.bias


def test_backward_noise_leaves_the_bias_and_the_users_own_gradient_alone() -> None:
    model = nn.Sequential(HandLayerNorm())
    sent = torch.randn(8)
    kept = sent.clone()
    x = torch.randn(8, requires_grad=True)
    with ns.inject(model, ns.noise(scale=0.3), phases="backward"):
        model(x).backward(sent)
    assert torch.equal(sent, kept)
    assert torch.equal(model[0].bias.grad, kept)
