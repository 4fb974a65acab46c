"""A recomputation inside backward meets the noise of its first run, however the training loop is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import noisescope as ns
from noisescope.core.errors import NoisescopeError

BOTH = ("forward", "backward")


class Blocks(nn.Module):
    """Blocks that are checkpointed in segments, or not at all."""

    def __init__(self, reentrant: bool | None, segment: int = 1, *, by_name: bool = False) -> None:
        super().__init__()
        self.reentrant, self.segment, self.by_name = reentrant, segment, by_name
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8)) for _ in range(4))

    def part(self, start: int) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            for layer in self.layers[start : start + self.segment]:
                x = layer(input=x) if self.by_name else layer(x)
            return x

        return run

    def forward(self, x: Tensor) -> Tensor:
        for start in range(0, len(self.layers), self.segment):
            run = self.part(start)
            plain = self.reentrant is None or not torch.is_grad_enabled()
            x = run(x) if plain else checkpoint(run, x, use_reentrant=self.reentrant)
        return x


Loop = Callable[[Blocks, Tensor, Tensor], None]


def one_after_the_other(model: Blocks, a: Tensor, b: Tensor) -> None:
    for x in (a, b):
        model(x).square().sum().backward()


def backwards_in_one(model: Blocks, a: Tensor, b: Tensor) -> None:
    (model(a).square().sum() + 2 * model(b).square().sum()).backward()


def last_first(model: Blocks, a: Tensor, b: Tensor) -> None:
    first, second = model(a).square().sum(), model(b).square().sum()
    first.backward()
    second.backward()


def with_an_evaluation_between(model: Blocks, a: Tensor, b: Tensor) -> None:
    loss = model(a).square().sum()
    with torch.no_grad():
        model(a.detach())
        model(b.detach())
    loss.backward()


def the_same_input_twice(model: Blocks, a: Tensor, b: Tensor) -> None:
    (model(a).square().sum() + 2 * model(a).square().sum()).backward()


LOOPS: list[Loop] = [
    one_after_the_other,
    backwards_in_one,
    last_first,
    with_an_evaluation_between,
    the_same_input_twice,
]


def gradients(model: Blocks, loop: Loop, *, outer: bool = False) -> list[Tensor]:
    a, b = (torch.linspace(-1, 1, 16).reshape(2, 8).mul(s).requires_grad_() for s in (1.0, 0.5))
    if outer:
        with ns.inject(model, ns.noise(scale=0.0)):
            model(a)
            model(b)
            with ns.inject(model, ns.noise(scale=0.2), phases=BOTH):
                loop(model, a, b)
    else:
        with ns.inject(model, ns.noise(scale=0.2), phases=BOTH):
            loop(model, a, b)
    return [*(weight.grad for weight in model.parameters()), a.grad]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("segment", [1, 2, 4])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_gradients_are_those_of_the_model_without_checkpointing(loop: Loop, segment: int, reentrant: bool) -> None:
    expected = gradients(Blocks(None), loop)
    seen = gradients(Blocks(reentrant, segment), loop)
    for of_plain, of_checkpointed in zip(expected, seen, strict=True):
        torch.testing.assert_close(of_checkpointed, of_plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
def test_an_injection_that_began_after_earlier_passes(reentrant: bool) -> None:
    expected = gradients(Blocks(None), backwards_in_one, outer=True)
    seen = gradients(Blocks(reentrant), backwards_in_one, outer=True)
    for of_plain, of_checkpointed in zip(expected, seen, strict=True):
        torch.testing.assert_close(of_checkpointed, of_plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
def test_layers_called_by_name(reentrant: bool) -> None:
    expected = gradients(Blocks(None, by_name=True), backwards_in_one)
    seen = gradients(Blocks(reentrant, by_name=True), backwards_in_one)
    for of_plain, of_checkpointed in zip(expected, seen, strict=True):
        torch.testing.assert_close(of_checkpointed, of_plain, rtol=1e-5, atol=1e-6)


def test_a_recomputation_that_cannot_be_matched_is_refused() -> None:
    model = Blocks(None)
    x = torch.ones(2, 8, requires_grad=True)

    def forgets_its_input(y: Tensor) -> Tensor:
        return model.layers[0](y * 1.0)

    def train() -> None:
        with ns.inject(model, ns.noise(scale=0.2)):
            losses = [checkpoint(forgets_its_input, x, use_reentrant=False).sum() for _ in range(2)]
            (losses[0] + losses[1]).backward()

    with pytest.raises(NoisescopeError, match="cannot be matched"):
        train()
