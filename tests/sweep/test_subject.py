"""A subject is a model that was checked to answer injections truly; one that would not is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import noisescope as ns
from cases import CASES, make
from noisescope.core.errors import SelfCheckError
from noisescope.sweep.subject import self_check, unseen_norms


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", CASES)
def test_every_family_passes(name: str, attention: str) -> None:
    model = make(name, attention).train()
    found = self_check(model)
    assert model.training
    assert {site.operator for site in found} - {"attention"} == set(CASES[name].counts)
    assert unseen_norms(model, found) == ()


def test_a_subject_knows_its_layers_and_sites(tmp_path: Path) -> None:
    make("llama").save_pretrained(tmp_path)
    subject = ns.load(str(tmp_path))
    assert subject.layers == ("model.layers.0", "model.layers.1")
    assert list(subject.sites) == ns.sites(subject.model)
    assert len(subject.fingerprint) > 10
    assert subject.unseen == ()


def test_a_model_that_does_not_repeat_itself_is_refused() -> None:
    model = make("llama")
    model.lm_head.register_forward_hook(lambda m, args, out: out + torch.rand_like(out))
    with pytest.raises(SelfCheckError, match="two different answers"):
        self_check(model)


def test_a_layer_that_hides_its_operators_is_refused() -> None:
    model = make("llama")

    class Hidden(nn.Module):
        def forward(self, x: Tensor, **kwargs: object) -> Tensor:
            return x * 2

    model.model.layers[1] = Hidden()
    with pytest.raises(SelfCheckError, match=r"layers \[1\] have no operator"):
        self_check(model)


def test_an_operator_that_does_not_reach_the_output_is_refused() -> None:
    model = make("bert")
    model.cls.predictions.decoder.register_forward_hook(lambda m, args, out: torch.zeros_like(out))
    with pytest.raises(SelfCheckError, match="did not reach the output"):
        self_check(model)


def test_a_norm_that_is_not_recognised_is_named() -> None:
    class GatedNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(32))

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * self.weight * torch.sigmoid(x)

    model = make("llama")
    model.model.norm = GatedNorm()
    assert unseen_norms(model, self_check(model)) == ("model.norm",)
