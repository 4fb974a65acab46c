"""Traces against brute-force Hessians, Fisher matrices against closed forms, both against their standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cases import batch, make
from noisescope.core.errors import BadInputError
from noisescope.measure.curvature import (
    Batch,
    Groups,
    Labels,
    diagonal_fisher,
    gradient_norm,
    hessian_traces,
    parameter_groups,
)


class Small(nn.Module):
    """Two layers that interact, in float64."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.first = nn.Linear(4, 5, dtype=torch.float64)
            self.second = nn.Linear(5, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Linear(nn.Module):
    """Class probabilities softmax(W x)."""

    def __init__(self, inputs: int = 3, classes: int = 4) -> None:
        super().__init__()
        self.map = nn.Linear(inputs, classes, bias=False)
        with torch.no_grad():
            self.map.weight.copy_(values(classes, inputs, seed=5))

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x)


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def examples(seed: int = 1) -> dict[str, Tensor]:
    return {"x": values(6, 4, seed=seed, dtype=torch.float64), "y": torch.tensor([0, 1, 2, 0, 1, 2])}


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def brute_hessian(model: nn.Module, batches: list[dict[str, Tensor]], loss: Any = cross_entropy) -> Tensor:
    """The whole Hessian of the mean loss over batches, row by row."""
    weights = list(model.parameters())
    total = sum(loss(model, b) for b in batches) / len(batches)
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(total, weights, create_graph=True)])
    rows = [torch.autograd.grad(g, weights, retain_graph=True) for g in gradient]
    return torch.stack([torch.cat([r.flatten() for r in row]) for row in rows])


def brute_traces(model: nn.Module, batches: list[dict[str, Tensor]], groups: Groups) -> dict[str, float]:
    diagonal = brute_hessian(model, batches).diagonal()
    sizes = [p.numel() for p in model.parameters()]
    parts = {id(p): float(d.sum()) for p, d in zip(model.parameters(), diagonal.split(sizes), strict=True)}
    return {name: sum(parts[id(p)] for p in members) for name, members in groups.items()}


def test_traces_match_the_whole_hessian() -> None:
    model, batches = Small(), [examples(1), examples(2)]
    groups = parameter_groups(model)
    true = brute_traces(model, batches, groups)
    found = hessian_traces(model, batches, loss=cross_entropy, probes=400)
    assert list(found) == ["first", "second"]
    for name, estimate in found.items():
        assert abs(estimate.trace - true[name]) < 4 * estimate.standard_error
        assert estimate.standard_error < 0.1 * abs(true[name])
        assert estimate.is_resolved
        assert (estimate.probes, estimate.parameters) == (400, sum(p.numel() for p in groups[name]))


def test_the_estimate_is_unbiased_and_its_error_is_right() -> None:
    model, batches = Small(), [examples()]
    true = brute_traces(model, batches, parameter_groups(model))
    scores: dict[str, list[float]] = {name: [] for name in true}
    for seed in range(60):
        for name, e in hessian_traces(model, batches, loss=cross_entropy, probes=16, seed=seed).items():
            scores[name].append((e.trace - true[name]) / e.standard_error)
    for name, listed in scores.items():
        z = torch.tensor(listed)
        # The mean of 60 t-like scores, and their spread, with four standard errors of room.
        assert abs(z.mean()) < 4 / math.sqrt(60), name
        assert 0.7 < z.std() < 1.5, name


def test_more_probes_are_more_certain() -> None:
    few, many = (
        hessian_traces(Small(), [examples()], loss=cross_entropy, probes=probes)["first"].standard_error
        for probes in (25, 400)
    )
    # Four times less, as the square root says.
    assert many == pytest.approx(few / 4, rel=0.35)


def test_all_groups_share_one_product_per_probe() -> None:
    model, data = Small(), examples()
    passes: list[int] = []

    def loss(m: nn.Module, b: Batch) -> Tensor:
        hidden = torch.tanh(m.first(b["x"]))  # type: ignore[operator]
        hidden.register_hook(lambda _: passes.append(1))
        return nn.functional.cross_entropy(m.second(hidden), b["y"])  # type: ignore[operator]

    one_each = {name: [p] for name, p in model.named_parameters()}
    assert len(one_each) == 4
    hessian_traces(model, [data], one_each, loss=loss, probes=7)
    # The first derivative, then one pass a probe.
    assert len(passes) == 1 + 7


def test_a_diagonal_hessian_is_known_exactly_from_any_probe() -> None:
    model = nn.Module()
    model.w = nn.Parameter(torch.ones(4))
    scale = torch.tensor([1.0, -2.0, 3.0, 0.5])
    found = hessian_traces(model, [{}], loss=lambda m, _: (scale * m.w**2).sum() / 2, probes=2)[""]
    assert (found.trace, found.standard_error) == (2.5, 0.0)


def test_the_trace_matches_finite_differences_of_the_gradient() -> None:
    model, data, step = Small(), examples(), 1e-5
    weight = model.second.bias

    def slope(i: int, offset: float) -> float:
        with torch.no_grad():
            weight[i] += offset
        value = float(torch.autograd.grad(cross_entropy(model, data), weight)[0][i])
        with torch.no_grad():
            weight[i] -= offset
        return value

    by_differences = sum((slope(i, step) - slope(i, -step)) / (2 * step) for i in range(3))
    found = hessian_traces(model, [data], {"bias": [weight]}, loss=cross_entropy, probes=2000)["bias"]
    assert abs(found.trace - by_differences) < 4 * found.standard_error


def test_a_loss_that_is_linear_in_the_weights_has_no_curvature() -> None:
    model = nn.Linear(3, 1)
    found = hessian_traces(model, [{}], loss=lambda m, _: m(torch.ones(3)).sum())
    assert (found[""].trace, found[""].standard_error, found[""].is_resolved) == (0, 0, False)


def test_a_closed_form_for_a_linear_softmax() -> None:
    # For one example H = (diag(p) - p p^T) x (x x^T): its trace is (1 - p.p) |x|^2.
    model, x = Linear(), values(5, 3, seed=2)
    p = model(x).softmax(-1)
    true = ((1 - p.square().sum(1)) * x.square().sum(1)).mean().item()
    data = {"x": x, "y": torch.tensor([0, 1, 2, 3, 0])}
    found = hessian_traces(model, [data], loss=cross_entropy, probes=1000)["map"]
    assert abs(found.trace - true) < 4 * found.standard_error


def test_a_group_that_the_loss_does_not_use_is_refused() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Linear(2, 2)})

    def loss(m: nn.Module, _: Batch) -> Tensor:
        return m["used"](torch.ones(2)).square().sum()  # type: ignore[index]

    with pytest.raises(BadInputError, match="any weight of 'idle'"):
        hessian_traces(model, [{}], loss=loss)
    assert list(hessian_traces(model, [{}], parameter_groups(model["used"]), loss=loss)) == [""]


def test_fused_attention_is_named_with_what_to_do() -> None:
    data = [batch(labels=True)]
    with pytest.raises(BadInputError, match=r"differentiated twice.*set_attn_implementation\('eager'\)"):
        hessian_traces(make("llama", "sdpa"), data, probes=2)
    eager = hessian_traces(make("llama", "eager"), data, probes=2)
    with sdpa_kernel(SDPBackend.MATH):
        unfused = hessian_traces(make("llama", "sdpa"), data, probes=2)
    for name, estimate in eager.items():
        assert unfused[name].trace == pytest.approx(estimate.trace, rel=1e-3, abs=1e-4)


def test_an_error_of_the_loss_itself_comes_through() -> None:
    def loss(m: nn.Module, _: Batch) -> Tensor:
        raise RuntimeError("the disk is full")

    model = Small().requires_grad_(False)
    with pytest.raises(RuntimeError, match="disk"):
        hessian_traces(model, [examples()], loss=loss)
    assert not any(p.requires_grad for p in model.parameters())


def test_a_model_is_left_as_it_was() -> None:
    model = make("qwen2")
    model.model.embed_tokens.weight.requires_grad_(False)
    before = {name: (p.clone(), p.requires_grad) for name, p in model.named_parameters()}
    layers = parameter_groups(model, ["model.layers.0", "model.layers.1"])
    with torch.no_grad():
        found = hessian_traces(model, [batch(labels=True)], layers, probes=2)
        diagonal_fisher(model, [batch()], layers)
    assert list(found) == ["model.layers.0", "model.layers.1", ""]
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name][0])
        assert p.requires_grad == before[name][1]
        assert p.grad is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hessian_traces(Small(), [examples()], loss=cross_entropy, probes=1), "2 or more"),
        (lambda: hessian_traces(Small(), [], loss=cross_entropy), "no batches"),
        (lambda: hessian_traces(make("llama"), [batch()]), "add labels"),
        (lambda: diagonal_fisher(make("llama"), []), "no row"),
        (lambda: diagonal_fisher(make("llama"), [{}]), "tensor with rows"),
        (lambda: diagonal_fisher(make("llama"), [batch()], labels=Labels("data")), "no labels"),
        (lambda: diagonal_fisher(make("llama").model, [batch()]), "no logits"),
        (lambda: Labels("datum"), "Did you mean 'data'"),  # type: ignore[arg-type]
        (lambda: Labels(draws=0), "draws 0"),
    ],
)
def test_what_cannot_be_done_says_why(call: Callable[[], object], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        call()


def test_the_true_fisher_of_a_linear_softmax() -> None:
    # F of W_kj is p_k (1 - p_k) x_j^2, whatever the labels are.
    model, x = Linear(), values(8, 3, seed=2)
    p = model(x).softmax(-1).detach()
    true = torch.einsum("nk,nj->kj", p * (1 - p), x.square()) / 8
    found = diagonal_fisher(model, [{"x": x}], labels=Labels(draws=3000), keep_diagonal=True)
    assert torch.allclose(found.diagonal["map.weight"], true, rtol=0.15, atol=0.01)
    assert found.groups["map"].trace == pytest.approx(true.sum().item(), rel=0.03)
    assert found.groups["map"].trace == pytest.approx(found.diagonal["map.weight"].sum().item(), rel=1e-3)
    estimate = found.groups["map"]
    assert (estimate.samples, estimate.tokens, estimate.parameters) == (8, 8, 12)
    assert estimate.per_token == estimate.trace


def test_the_empirical_fisher_of_a_linear_softmax() -> None:
    model, x, y = Linear(), values(4, 3, seed=2), torch.tensor([0, 3, 1, 1])
    p = model(x).softmax(-1).detach()
    rows = torch.einsum("nk,nj->nkj", (nn.functional.one_hot(y, 4) - p).square(), x.square())
    found = diagonal_fisher(model, [{"x": x, "labels": y}], labels=Labels("data"), keep_diagonal=True)
    assert torch.allclose(found.diagonal["map.weight"], rows.mean(0), rtol=1e-5)
    sums = rows.sum((1, 2))
    assert found.groups["map"].trace == pytest.approx(sums.mean().item(), rel=1e-5)
    assert found.groups["map"].standard_error == pytest.approx(sums.std().item() / 2, rel=1e-5)


def test_rows_are_squared_before_they_are_added() -> None:
    """The square of a batch's mean gradient is what a fit model makes 0; the mean of the rows' squares is not."""
    model = Linear(1, 2)
    with torch.no_grad():
        model.map.weight.zero_()
    data = {"x": torch.ones(2, 1), "labels": torch.tensor([0, 1])}
    found = diagonal_fisher(model, [data], labels=Labels("data"))
    # The gradients are (0.5, -0.5) and (-0.5, 0.5): they cancel, their squares are 0.25 each.
    assert found.groups["map"].trace == pytest.approx(0.5)


def test_the_true_fisher_is_the_hessian_of_the_cross_entropy_for_a_linear_softmax() -> None:
    model, x = Linear(), values(6, 3, seed=4)
    hessian = hessian_traces(model, [{"x": x, "y": torch.zeros(6).long()}], loss=cross_entropy, probes=1000)["map"]
    fisher = diagonal_fisher(model, [{"x": x}], labels=Labels(draws=1500)).groups["map"]
    assert fisher.trace == pytest.approx(hessian.trace, rel=0.05)


def test_a_language_model_is_scored_where_labels_and_mask_say() -> None:
    model, data = make("llama"), batch(rows=2, length=6)
    head = {"head": [model.lm_head.weight]}
    assert diagonal_fisher(model, [data], head).groups["head"].tokens == 12
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    assert diagonal_fisher(model, [{**data, "attention_mask": mask}], head).groups["head"].tokens == 9
    labels = data["input_ids"].clone()
    labels[0, :4] = -100
    found = diagonal_fisher(model, [{**data, "labels": labels}], head, Labels("data"))
    assert found.groups["head"].tokens == 2 + 5
    aligned = diagonal_fisher(model, [{**data, "labels": labels}], head, Labels("data", shift=0))
    assert aligned.groups["head"].tokens == 2 + 6


def test_the_empirical_fisher_of_a_language_model_is_that_of_its_loss() -> None:
    model, data = make("gpt2"), batch(rows=2, length=5, labels=True)
    weight = model.transformer.h[0].mlp.c_fc.weight
    found = diagonal_fisher(model, [data], {"fc": [weight]}, Labels("data")).groups["fc"]
    squares = []
    for i in range(2):
        loss = model(**{name: value[i : i + 1] for name, value in data.items()}).loss
        # The model reports the mean over the four positions that have a next token.
        squares.append(float((4 * torch.autograd.grad(loss, weight)[0]).square().sum()))
    assert found.trace == pytest.approx(sum(squares) / 2, rel=1e-4)


def test_fisher_repeats_and_follows_the_seed() -> None:
    model, data = make("llama"), [batch()]
    layers = parameter_groups(model, ["model.layers.0", "model.layers.1"])
    one, two, three = (diagonal_fisher(model, data, layers, Labels(seed=seed)).groups for seed in (0, 0, 1))
    assert one == two
    assert one != three
    single = diagonal_fisher(model, [batch(rows=1)], layers).groups[""]
    assert math.isnan(single.standard_error)


def test_a_short_dtype_gives_about_the_same() -> None:
    full, short = (
        diagonal_fisher(model, [batch(labels=True)], {"head": [model.lm_head.weight]}, Labels("data")).groups["head"]
        for model in (make("llama", dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    )
    assert short.trace == pytest.approx(full.trace, rel=0.05)


def test_gradient_norm() -> None:
    assert gradient_norm([torch.tensor([3.0, 0.0]), None, torch.tensor([[4.0]])]) == 5.0
    assert gradient_norm([torch.full((4,), 60000.0, dtype=torch.float16)]) == pytest.approx(120000, rel=1e-3)
    assert gradient_norm([]) == 0.0
