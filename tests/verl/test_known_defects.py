"""What noise that replaces torch functions for a whole process gets wrong most easily; each test says what ours does.

Labels such as "rollout" that a driver process would set have no counterpart: statistics go by what really ran.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import matmul as matmul_bound_early
from torch.nn.functional import softmax as softmax_bound_early
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import noisescope as ns
from cases import GROUPED, batch, make
from noisescope.core.errors import LayersNotFoundError
from noisescope.verl import noisy_ops

SHORT = [torch.bfloat16, torch.float16]


def counts() -> dict[str, tuple[int, int]]:
    return {k: (v["forward"], v["backward"]) for k, v in noisy_ops.get_operator_injection_stats().items()}


def by_layer() -> dict[int | str, tuple[int, int]]:
    return {k: (v["forward"], v["backward"]) for k, v in noisy_ops.get_layer_injection_stats().items()}


def step(model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one training step and the gradients it leaves."""
    loss = model(**batch(labels=True)).loss
    loss.backward()
    gradients = {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}
    model.zero_grad()
    return loss.detach(), gradients


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def checkpointed(model: nn.Module, reentrant: bool | None) -> nn.Module:
    """The model with gradient checkpointing, unless `reentrant` is None."""
    if reentrant is not None:
        # The name that all supported versions know, and that the newest warn about.
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    return model


def leaf(*shape: int, seed: int = 1) -> Tensor:
    return values(*shape, seed=seed).requires_grad_()


# ---- noise that really lands, and none where none is asked for


@pytest.mark.parametrize("scale", [1e-4, 1e-3, 5e-2])
@pytest.mark.parametrize("dtype", [torch.float32, *SHORT])
def test_the_noise_that_was_asked_for_arrives_in_every_number_format(dtype: torch.dtype, scale: float) -> None:
    x, weight = values(512, 16, dtype=dtype), values(1024, 16, dtype=dtype, seed=2)
    clean = F.linear(x, weight).double()
    with noisy_ops.noisy_ops_context(scale):
        noisy = F.linear(x, weight)
    moved = (noisy.double() - clean)[clean != 0] / clean[clean != 0]
    assert noisy.dtype is dtype
    # In bfloat16 a scale of 1e-4 moves a few hundred of the half million values, each by a whole step.
    assert float(moved.square().mean().sqrt()) == pytest.approx(scale, rel=0.15)
    # The statistics look at a part of a large tensor; four standard errors of a count of rare moves.
    stats = noisy_ops.get_injection_stats()
    assert stats["elements"] == noisy.numel() >= stats["elements_compared"] > 10_000
    doubt = max(0.05, 4 / stats["elements_changed"] ** 0.5)
    share = stats["elements_changed"] / stats["elements_compared"]
    assert share == pytest.approx(float((noisy.double() != clean).double().mean()), rel=doubt)
    assert stats["realised_relative_noise"] == pytest.approx(scale, rel=doubt)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, *SHORT])
def test_scale_zero_changes_no_bit_of_loss_or_gradients(dtype: torch.dtype, attention: str) -> None:
    model = make("qwen2", attention, dtype).train()
    loss, gradients = step(model)
    with noisy_ops.noisy_ops_context(0.0, all_ops_mode=True):
        same_loss, same_gradients = step(model)
    assert torch.equal(loss, same_loss)
    assert all(torch.equal(gradients[name], same_gradients[name]) for name in gradients)
    stats = noisy_ops.get_injection_stats()
    assert stats["total_forward"] > 0
    assert stats["elements_changed"] == 0


def test_a_bias_does_not_split_a_linear_in_two() -> None:
    x, weight, bias = (
        values(64, 64, dtype=torch.bfloat16),
        *(values(64, 64, dtype=torch.bfloat16), values(64).bfloat16()),
    )
    clean = F.linear(x, weight, bias)
    with noisy_ops.noisy_ops_context(0.0):
        assert torch.equal(F.linear(x, weight, bias), clean)
    assert counts() == {"linear": (1, 0)}


# ---- operators, however they are written


@pytest.mark.parametrize("name", ["layernorm", "rms_norm"])
def test_rms_norms_that_a_model_writes_out_by_hand_are_covered(name: str) -> None:
    model = make("llama").train()
    noisy_ops.set_selective_operators([name])
    noisy_ops.enable_noisy_ops()
    step(model)
    assert counts() == {"rms_norm": (5, 5)}
    assert noisy_ops.get_injection_stats()["elements_changed"] > 0


@pytest.mark.parametrize("name", ["softmax", "matmul", "attention"])
def test_fused_attention_hides_neither_its_softmax_nor_its_products(name: str) -> None:
    found = {}
    for attention in ("sdpa", "eager"):
        model = make("qwen2", attention).train()
        noisy_ops.set_selective_operators([name])
        noisy_ops.enable_noisy_ops()
        step(model)
        found[attention] = counts()
        noisy_ops.disable_noisy_ops()
        noisy_ops.reset_injection_stats()
    calls = 4 if name == "matmul" else 2
    assert found["sdpa"][name][0] == found["eager"][name][0] == calls
    assert found["sdpa"][name][1] > 0


def test_selecting_the_softmax_of_fused_attention_perturbs_nothing_else() -> None:
    query = torch.zeros(1, 1, 4, 8)
    value = torch.zeros(1, 1, 4, 8)
    value[0, 0, 0] = 1.0
    noisy_ops.set_selective_operators(["softmax"])
    with noisy_ops.noisy_ops_context(0.05):
        out = F.scaled_dot_product_attention(query, query, value)
    # Each row reads one weight off the softmax eight times; noise in a product would differ from column to column.
    assert torch.equal(out, out[..., :1].expand_as(out))
    assert not torch.equal(out[0, 0, 0], out[0, 0, 1])
    assert counts() == {"softmax": (1, 0)}


A, B = values(4, 4), values(4, 4, seed=2)
A3, B3 = A.expand(2, 4, 4), B.expand(2, 4, 4)
SPELLINGS: dict[str, tuple[str, Callable[[], Tensor]]] = {
    "a @ b": ("matmul", lambda: A @ B),
    "Tensor.matmul": ("matmul", lambda: A.matmul(B)),
    "torch.mm": ("matmul", lambda: torch.mm(A, B)),
    "Tensor.mm": ("matmul", lambda: A.mm(B)),
    "torch.mv": ("matmul", lambda: torch.mv(A, B[0])),
    "torch.addmm": ("matmul", lambda: torch.addmm(A, A, B)),
    "Tensor.addmm": ("matmul", lambda: A.addmm(A, B)),
    "torch.einsum": ("matmul", lambda: torch.einsum("ij,jk->ik", A, B)),
    "torch.linalg.matmul": ("matmul", lambda: torch.linalg.matmul(A, B)),
    "torch.tensordot": ("matmul", lambda: torch.tensordot(A, B, 1)),
    "torch.bmm": ("bmm", lambda: torch.bmm(A3, B3)),
    "Tensor.bmm": ("bmm", lambda: A3.bmm(B3)),
    "torch.baddbmm": ("bmm", lambda: torch.baddbmm(A3, A3, B3)),
    "Tensor.baddbmm": ("bmm", lambda: A3.baddbmm(A3, B3)),
    "torch.softmax": ("softmax", lambda: torch.softmax(A, -1)),
    "Tensor.softmax": ("softmax", lambda: A.softmax(-1)),
    "torch.special.softmax": ("softmax", lambda: torch.special.softmax(A, -1)),
    "nn.Softmax": ("softmax", lambda: nn.Softmax(-1)(A)),
    "F.rms_norm": ("rms_norm", lambda: F.rms_norm(A, (4,))),
    "nn.RMSNorm": ("rms_norm", lambda: nn.RMSNorm(4)(A)),
    "torch.rms_norm": ("rms_norm", lambda: torch.rms_norm(A, (4,))),
    "torch.layer_norm": ("layer_norm", lambda: torch.layer_norm(A, (4,))),
    "nn.SiLU": ("silu", lambda: nn.SiLU()(A)),
    "nn.GELU": ("gelu", lambda: nn.GELU()(A)),
    "nn.Linear": ("linear", lambda: F.linear(A, B)),
    "scaled_dot_product_attention": ("attention", lambda: F.scaled_dot_product_attention(A3, A3, B3)),
    "matmul bound before": ("matmul", lambda: matmul_bound_early(A, B)),
    "softmax bound before": ("softmax", lambda: softmax_bound_early(A, -1)),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_spelling_of_an_operator_escapes(spelling: str) -> None:
    operator, run = SPELLINGS[spelling]
    clean = run()
    noisy_ops.set_selective_operators([operator])
    with noisy_ops.noisy_ops_context(0.05):
        noisy = run()
    assert counts() == {operator: (1, 0)}
    assert not torch.equal(noisy, clean)
    assert torch.allclose(noisy, clean, rtol=0.5)


@pytest.mark.parametrize("training", [True, False])
def test_attention_of_torch_itself_hides_nothing(training: bool) -> None:
    """In evaluation torch would run the whole block in one kernel of its own."""
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation=F.gelu, batch_first=True).train(training)
    noisy_ops.enable_noisy_ops(all_ops_mode=True)
    with torch.no_grad():
        block(values(2, 5, 8))
    forward = {"linear": 4, "matmul": 2, "softmax": 1, "gelu": 1, "layer_norm": 2}
    assert counts() == {operator: (calls, 0) for operator, calls in forward.items()}


def test_projections_written_as_addmm_are_linear_layers() -> None:
    model = make("gpt2").train()
    noisy_ops.set_selective_operators(["linear"])
    noisy_ops.enable_noisy_ops()
    step(model)
    # Four projections in each of two layers, and the head.
    assert counts() == {"linear": (9, 9)}
    assert by_layer() == {0: (4, 4), 1: (4, 4), "unknown": (1, 1)}


@pytest.mark.parametrize(
    ("chosen", "forward"),
    [(["linear"], {"linear": (15, 15)}), (["matmul"], {"matmul": (4, 4)}), (["bmm"], {})],
)
def test_linear_and_matmul_are_two_operators_in_both_phases(
    chosen: list[str], forward: dict[str, tuple[int, int]]
) -> None:
    model = make("llama").train()
    noisy_ops.set_selective_operators(chosen)
    noisy_ops.enable_noisy_ops()
    step(model)
    assert counts() == forward
    assert noisy_ops.get_selective_operators() == chosen


# ---- layers


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("reentrant", [None, True, False], ids=["plain", "reentrant", "not reentrant"])
def test_noise_lands_in_the_selected_layer_in_both_phases_with_checkpointing_too(
    reentrant: bool | None, layer: int
) -> None:
    model = make("llama").train()
    noisy_ops.set_selective_layers([layer])

    def two_losses() -> list[dict[str, Tensor]]:
        with noisy_ops.noisy_ops_context(0.05, all_ops_mode=True):
            # Both forwards before the first backward, as with pairs of answers.
            losses = [model(**batch(labels=True)).loss for _ in range(2)]
            assert not torch.equal(*losses)
            found = []
            for loss in reversed(losses):
                loss.backward()
                found.append({name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None})
                model.zero_grad()
        return found

    expected = two_losses()
    assert by_layer() == {layer: (26, 26)}
    noisy_ops.reset_injection_stats()
    checkpointed(model, reentrant)
    gradients = two_losses()
    assert by_layer() == {layer: (26, 26)}
    # What is computed anew in backward meets the noise of its first run, so the gradients are those of the loss.
    for of_plain, of_checkpointed in zip(expected, gradients, strict=True):
        assert all(torch.equal(of_plain[name], of_checkpointed[name]) for name in of_plain)


@pytest.mark.parametrize("layer", [0, 1])
def test_backward_noise_of_a_layer_reaches_only_what_gradients_reach_through_it(layer: int) -> None:
    model = make("llama").train()
    _, clean = step(model)
    noisy_ops.set_selective_layers([layer])
    noisy_ops.set_noise_phases(forward=False, backward=True)
    with noisy_ops.noisy_ops_context(0.05):
        _, noisy = step(model)
    changed = {name for name in clean if not torch.equal(clean[name], noisy[name])}
    above = {n for n in clean if n.startswith(("lm_head", "model.norm")) or (layer == 0 and ".layers.1." in n)}
    assert not changed & above
    assert {n for n in clean if f".layers.{layer}.self_attn.q_proj" in n} <= changed
    assert all(name in changed for name in clean if layer == 1 and ".layers.0." in name)


def test_head_and_final_norm_belong_to_no_layer() -> None:
    model = make("llama").train()
    noisy_ops.enable_noisy_ops(all_ops_mode=True)
    step(model)
    assert by_layer() == {0: (13, 13), 1: (13, 13), "unknown": (2, 2)}


@pytest.mark.parametrize("layers", [[0], [1], []])
def test_what_lies_outside_the_layers_is_not_hit_when_layers_are_selected(layers: list[int]) -> None:
    model = make("llama")
    noisy_ops.set_selective_layers(layers)
    noisy_ops.enable_noisy_ops(all_ops_mode=True)
    for _ in range(2):
        model(**batch())
        torch.matmul(A, B)
    assert set(by_layer()) == set(layers)


@pytest.mark.parametrize(
    ("name", "part"),
    [("llama", "model"), ("llama", ""), ("gpt2", "transformer"), ("gpt2", ""), ("bert", "bert"), ("gpt_neox", "")],
)
def test_layers_are_found_in_bare_models_and_under_every_name(name: str, part: str) -> None:
    model = make(name).get_submodule(part)
    assert noisy_ops.register_layer_hooks(model) == 2
    noisy_ops.set_selective_layers([1])
    noisy_ops.enable_noisy_ops()
    model(**batch())
    assert set(by_layer()) == {1}


def test_registering_again_changes_nothing_and_leaves_with_the_noise() -> None:
    model = make("llama")
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    assert [noisy_ops.register_layer_hooks(model) for _ in range(3)] == [2, 2, 2]
    noisy_ops.enable_noisy_ops()
    noisy_ops.register_layer_hooks(model)
    model(**batch())
    assert by_layer() == {0: (9, 0), 1: (9, 0), "unknown": (1, 0)}
    noisy_ops.disable_noisy_ops()
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks


def test_a_model_without_layers_is_an_error_and_not_a_count_of_zero() -> None:
    with pytest.raises(LayersNotFoundError, match="ModuleList"):
        noisy_ops.register_layer_hooks(nn.Linear(4, 4))


# ---- autograd


def test_autocast_with_float32_weights_trains() -> None:
    model = make("llama", "sdpa").train()
    with torch.autocast("cpu", torch.bfloat16):
        _, clean = step(model)
    with noisy_ops.noisy_ops_context(0.05, all_ops_mode=True), torch.autocast("cpu", torch.bfloat16):
        _, noisy = step(model)
    assert noisy_ops.get_injection_stats()["total_backward"] > 0
    for name, gradient in noisy.items():
        assert gradient.dtype is torch.float32
        assert gradient.isfinite().all()
        assert not torch.equal(gradient, clean[name])


@pytest.mark.parametrize(("affine", "bias"), [(True, True), (True, False), (False, False)])
def test_layer_norms_without_bias_or_weight_train(affine: bool, bias: bool) -> None:
    norm, x = nn.LayerNorm(8, elementwise_affine=affine, bias=bias), leaf(4, 8)
    noisy_ops.enable_noisy_ops(all_ops_mode=True)
    (norm(x) * values(4, 8, seed=3)).sum().backward()
    assert counts() == {"layer_norm": (1, 1)}
    assert x.grad is not None
    assert (norm.weight is None) or norm.weight.grad is not None


@pytest.mark.parametrize("shapes", [((4,), (4,)), ((4,), (4, 3)), ((3, 4), (4,)), ((2, 3, 4), (4,))])
def test_products_of_vectors_train(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = leaf(*shapes[0]), leaf(*shapes[1], seed=2)
    noisy_ops.enable_noisy_ops(0.05)
    torch.matmul(a, b).square().sum().backward()
    assert counts() == {"matmul": (1, 1)}
    assert (a.grad.shape, b.grad.shape) == (a.shape, b.shape)


def test_integer_products_pass_untouched() -> None:
    a = torch.arange(16).reshape(4, 4)
    clean = a @ a
    noisy_ops.enable_noisy_ops(0.5)
    assert torch.equal(a @ a, clean)
    assert noisy_ops.get_injection_stats()["elements_changed"] == 0


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_keeps_its_approximation_and_its_own_gradient(approximate: str) -> None:
    weights = values(64, seed=5)

    def run() -> tuple[Tensor, Tensor]:
        x = leaf(64)
        out = F.gelu(x, approximate=approximate)
        (out * weights).sum().backward()
        return out.detach(), x.grad

    noisy_ops.set_noise_phases(forward=True, backward=False)
    clean, gradient = run()
    with noisy_ops.noisy_ops_context(0.0, all_ops_mode=True):
        assert all(torch.equal(a, b) for a, b in zip((clean, gradient), run(), strict=True))
    # Noise has no derivative, so forward noise leaves this operator's gradient as it is.
    with noisy_ops.noisy_ops_context(0.1, all_ops_mode=True):
        noisy, same = run()
    assert not torch.equal(noisy, clean)
    assert torch.equal(same, gradient)


@pytest.mark.parametrize("shape", [(64, 32), (8, 8, 32)], ids=["64 rows", "8 x 8 rows"])
@pytest.mark.parametrize("coherent", [True, False])
def test_weight_gradient_noise_is_relative_to_the_gradient_of_the_whole_batch(
    shape: tuple[int, ...], coherent: bool
) -> None:
    linear = nn.Linear(32, 32, bias=False)
    x = torch.ones(shape) if coherent else values(*shape, seed=3)
    out_gradient = torch.ones(shape) if coherent else values(*shape, seed=4)
    noisy_ops.set_noise_phases(forward=False, backward=True)
    linear(x).backward(out_gradient)
    clean = linear.weight.grad.clone()
    linear.zero_grad()
    with noisy_ops.noisy_ops_context(0.05):
        linear(x).backward(out_gradient)
    # 1024 values: the standard error of the estimate is 2.2 %, more where the gradients differ in size.
    assert float((linear.weight.grad - clean).norm() / clean.norm()) == pytest.approx(0.05, rel=0.15)
    assert counts() == {"linear": (0, 1)}
    assert noisy_ops.get_injection_stats()["elements"] == 32 * 32


def test_softmax_noise_is_not_normalised_away() -> None:
    logits = values(4000, 8)
    logits[:, 0] += 8.0
    clean = torch.softmax(logits, -1)
    noisy_ops.set_selective_operators(["softmax"])
    with noisy_ops.noisy_ops_context(0.05):
        noisy = torch.softmax(logits, -1)
    sure = clean > 0.95
    assert int(sure.sum()) > 3000
    assert float((noisy / clean - 1)[sure].std()) == pytest.approx(0.05, rel=0.05)
    assert float((noisy.sum(-1) - 1).std()) > 0.04


def test_noise_on_a_softmax_leaves_its_gradient_that_of_the_clean_softmax() -> None:
    def gradient() -> Tensor:
        x = leaf(8, 8)
        (torch.softmax(x, -1) * values(8, 8, seed=3)).sum().backward()
        return x.grad

    clean = gradient()
    noisy_ops.set_noise_phases(forward=True, backward=False)
    with noisy_ops.noisy_ops_context(0.3, all_ops_mode=True):
        assert torch.equal(gradient(), clean)
    assert noisy_ops.get_injection_stats()["elements_changed"] > 0


@pytest.mark.parametrize(
    "run", [lambda out: torch.matmul(A, B, out=out), lambda out: torch.mm(A, B, out=out)], ids=["matmul", "mm"]
)
def test_the_out_argument_is_filled_with_the_noisy_result(run: Callable[[Tensor], Tensor]) -> None:
    buffer = torch.zeros(4, 4)
    with noisy_ops.noisy_ops_context(0.05):
        returned = run(buffer)
    assert returned is buffer
    assert not torch.equal(buffer, A @ B)
    assert torch.allclose(buffer, A @ B, rtol=0.5)


# ---- the switch and its statistics


def test_leaving_an_inner_context_gives_the_outer_one_back() -> None:
    with noisy_ops.noisy_ops_context(0.05, all_ops_mode=True):
        with noisy_ops.noisy_ops_context(0.2, "absolute_gaussian"):
            assert noisy_ops.get_injection_stats()["error_scale"] == 0.2
        stats = noisy_ops.get_injection_stats()
        assert (stats["enabled"], stats["error_scale"], stats["error_type"]) == (True, 0.05, "relative_gaussian")
        torch.softmax(A, -1)
        torch.matmul(A, B)
    assert counts() == {"softmax": (1, 0), "matmul": (1, 0)}
    assert not noisy_ops.get_injection_stats()["enabled"]


def test_statistics_have_one_set_of_names_and_the_summary_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    model = make("llama").train()
    noisy_ops.enable_noisy_ops()
    step(model)
    first = noisy_ops.get_injection_stats()
    noisy_ops.enable_noisy_ops(0.1)
    step(model)
    stats = noisy_ops.get_injection_stats()
    assert set(stats) == set(first)
    assert (first["total_forward"], stats["total_forward"], stats["total_backward"]) == (19, 38, 38)
    assert noisy_ops.get_operator_injection_stats()["linear"] == {"forward": 30, "backward": 30}
    noisy_ops.print_injection_summary()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["injections:", "38", "forward,", "38", "backward"] in lines
    assert ["linear", "30", "forward", "30", "backward"] in lines
    assert ["matmul", "8", "forward", "8", "backward"] in lines


class _HostReads(TorchDispatchMode):
    """Counts the calls that make the host wait for a value of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::")
        if name in ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select"):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["relative_gaussian", "rms_gaussian", "ulp", "int8"])
def test_no_value_is_read_back_from_the_device_until_somebody_looks(kind: str) -> None:
    """In float16 noise takes the path that every accelerator takes."""
    x, weight = leaf(8, 16), leaf(8, 16, seed=2)
    noisy_ops.enable_noisy_ops(0.05, kind, all_ops_mode=True)
    with _HostReads() as reads:
        F.silu(F.linear(x.half(), weight.half())).sum().backward()
    assert reads.found == []
    assert noisy_ops.get_injection_stats()["elements_changed"] > 0


def test_four_threads_in_one_model_share_no_current_layer() -> None:
    models = [make("llama", "sdpa").train() for _ in range(4)]
    seen: list[list[int | None]] = [[] for _ in models]
    noisy_ops.set_selective_layers([1])
    for model, of_model in zip(models, seen, strict=True):
        noisy_ops.register_layer_hooks(model)
        for layer in model.model.layers:
            layer.mlp.register_forward_hook(lambda *_, of=of_model: of.append(noisy_ops.get_current_layer()))
    noisy_ops.enable_noisy_ops()
    gate = threading.Barrier(len(models))

    def work(model: nn.Module) -> None:
        gate.wait()
        for _ in range(3):
            step(model)

    threads = [threading.Thread(target=work, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Seven linear layers and two products, three steps, four threads.
    assert by_layer() == {1: (9 * 12, 9 * 12)}
    assert seen == [[0, 1] * 3] * 4


# The board follows every module of the process, which torch mentions on each call of a compiled one.
@pytest.mark.filterwarnings("ignore:.*global hooks:UserWarning")
def test_a_compiled_model_is_one_graph_with_the_noise_of_eager_and_settings_do_not_recompile() -> None:
    model = make("llama")
    noisy_ops.register_layer_hooks(model)
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    def logits(run: Callable[..., Any], scale: float, layers: list[int]) -> Tensor:
        noisy_ops.set_selective_layers(layers)
        with torch.no_grad(), noisy_ops.noisy_ops_context(scale, all_ops_mode=True):
            return run(**batch()).logits

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    asked = [(0.05, [1]), (0.2, [0]), (0.0, [0, 1])]
    for scale, layers in asked:
        eager = logits(model, scale, layers)
        noisy_ops.reset_injection_stats()
        torch.testing.assert_close(logits(compiled, scale, layers), eager)
        assert by_layer() == dict.fromkeys(layers, (13, 0))
    assert len(graphs) == 1


def test_the_global_random_stream_is_not_touched() -> None:
    model = make("gpt2").train()
    torch.manual_seed(7)
    expected = F.dropout(torch.ones(64))
    for kind in ("relative_gaussian", "rms_gaussian", "ulp"):
        torch.manual_seed(7)
        with noisy_ops.noisy_ops_context(0.05, kind, all_ops_mode=True):
            step(model)
        assert torch.equal(F.dropout(torch.ones(64)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, *SHORT])
def test_infinities_stay_and_large_values_stay_finite(dtype: torch.dtype) -> None:
    top = torch.finfo(dtype).max
    row = torch.tensor([math.inf, -math.inf, math.nan, top, -top, 1.0], dtype=dtype).repeat(200)
    with noisy_ops.noisy_ops_context(0.5, all_ops_mode=True):
        # Products with a single 1 hand the values on as they are.
        out = torch.matmul(row[:, None], torch.ones(1, 1, dtype=dtype))[:, 0]
    assert counts() == {"matmul": (1, 0)}
    assert torch.equal(out.isnan(), row.isnan())
    assert torch.equal(out.isinf(), row.isinf())
    assert torch.equal(out[row.isinf()], row[row.isinf()])
    assert not torch.equal(out[row == 1], row[row == 1])


# ---- training


@pytest.mark.parametrize("reentrant", [None, True, False], ids=["plain", "reentrant", "not reentrant"])
def test_with_training_only_an_update_is_noisy_and_all_else_is_clean(reentrant: bool | None) -> None:
    model = checkpointed(make("llama", "sdpa"), reentrant)
    _, clean = step(model.train())
    with torch.no_grad():
        expected = model.eval()(**batch()).logits
    said = model.generate(batch()["input_ids"], max_new_tokens=3, do_sample=False)
    noisy_ops.set_training_only()
    noisy_ops.enable_noisy_ops(0.05, all_ops_mode=True)
    for _ in range(2):
        model.eval()
        with torch.no_grad():
            assert torch.equal(model(**batch()).logits, expected)
        with torch.inference_mode():
            assert torch.equal(model(**batch()).logits, expected)
        assert torch.equal(model.generate(batch()["input_ids"], max_new_tokens=3, do_sample=False), said)
        noisy_ops.reset_injection_stats()
        _, noisy = step(model.train())
        assert by_layer() == {0: (13, 13), 1: (13, 13), "unknown": (2, 2)}
        assert not any(torch.equal(noisy[name], clean[name]) for name in clean if ".layers." in name)


def test_with_training_only_calls_outside_every_module_go_by_gradients_too() -> None:
    a, clean = leaf(4, 4), A @ B
    noisy_ops.set_training_only()
    noisy_ops.enable_noisy_ops(0.05)
    for _ in range(2):
        torch.matmul(a, B).sum().backward()
        with torch.no_grad():
            assert torch.equal(A @ B, clean)
    assert counts() == {"matmul": (2, 2)}


def test_the_reference_model_stays_clean_when_noise_is_scoped_to_the_actor() -> None:
    actor, reference = make("qwen2").train(), make("qwen2")
    with torch.no_grad():
        clean = reference(**batch()).logits
    with ns.inject(actor, ns.noise(scale=0.05), phases=("forward", "backward")) as handle:
        step(actor)
        with torch.no_grad():
            assert torch.equal(reference(**batch()).logits, clean)
    assert handle.stats.total_forward > 0
    assert noisy_ops.get_injection_stats()["total_forward"] == 0


def test_noise_of_the_board_and_of_a_scoped_injection_add_up() -> None:
    model = make("llama")
    noisy_ops.set_selective_layers([0])
    noisy_ops.enable_noisy_ops(0.05)
    with torch.no_grad(), ns.inject(model, ns.noise(scale=0.05), layers=[1], operators=["linear"]) as handle:
        model(**batch())
    assert by_layer() == {0: (9, 0)}
    assert handle.stats.total_forward == 7


def test_checkpointed_modules_of_a_users_own_meet_the_noise_of_their_first_run() -> None:
    found = []
    for reentrant in (None, True, False):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            block = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        x = leaf(2, 8)
        with noisy_ops.noisy_ops_context(0.2, all_ops_mode=True):
            out = block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant)
            out.square().sum().backward()
        found.append([x.grad, *(w.grad for w in block.parameters())])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_grouped_query_attention_is_taken_apart_without_changing_it() -> None:
    assert GROUPED["num_key_value_heads"] < GROUPED["num_attention_heads"]
    model = make("qwen2", "sdpa")
    with torch.no_grad():
        clean = model(**batch()).logits
        noisy_ops.set_selective_layers([0])
        noisy_ops.set_selective_operators(["softmax"])
        # The smallest noise there is: what differs is the rounding of the unfused path.
        with noisy_ops.noisy_ops_context(1e-7):
            torch.testing.assert_close(model(**batch()).logits, clean, rtol=1e-4, atol=1e-5)
