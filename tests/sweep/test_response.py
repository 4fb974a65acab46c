"""The harm of injected noise at rising scales: against a slow measurement, and the law that it follows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import noisescope as ns
from cases import batch, make
from noisescope.core.errors import BadInputError
from noisescope.core.records import Injection
from noisescope.sweep.response import Responses, validity


def sharp(name: str = "llama") -> nn.Module:
    """A small model whose answers are not all equally likely."""
    model = make(name)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(4.0)
    return model


def test_responses_are_the_divergence_by_hand_and_padding_does_not_count() -> None:
    model = sharp()
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, :2] = 0
    inputs = batch() | {"attention_mask": mask}
    noise = ns.noise(scale=0.05)
    found = Responses(model, [inputs]).measure(Injection.of(noise, layers=[1], operators=["silu"]), [0.05], [3])
    with torch.no_grad():
        clean = model(**inputs).logits.double().log_softmax(-1)
        with ns.inject(model, noise, layers=[1], operators=["silu"], seed=3):
            noisy = model(**inputs).logits.double().log_softmax(-1)
    harm = (clean.exp() * (clean - noisy)).sum(-1) * mask
    # Rows of 6 and 4 tokens: their plain mean is to be that per token.
    assert found.shape == (1, 2)
    assert found[0] == pytest.approx((harm.sum(-1) / 5).numpy(), rel=1e-3, abs=1e-7)
    assert found.mean() == pytest.approx(float(harm.sum()) / 10, rel=1e-3)


def test_scales_share_their_draws_and_seeds_do_not() -> None:
    responses = Responses(sharp(), [batch()])
    found = responses.of_group((0, "linear"), [0.01, 0.02], [0, 1])
    assert found.shape == (2, 4)
    assert found[1] / found[0] == pytest.approx(np.full(4, 4.0), rel=0.3)
    assert not np.allclose(found[0, :2], found[0, 2:])


def test_small_noise_follows_the_law_and_great_noise_leaves_it() -> None:
    model, group = sharp(), (1, "linear")
    inputs = [batch(8, 12)]
    (small,) = validity(model, inputs, [group], scales=(0.005, 0.01, 0.02), seeds=range(4))
    assert small.group == "linear in layer 1"
    assert small.is_decided and small.left_at is None
    assert small.law.exponent.estimate == pytest.approx(2.0, abs=0.1)
    (great,) = validity(model, inputs, [group], scales=(0.01, 0.1, 2.0), seeds=range(4))
    # The divergence of two answers is bounded by what the model can be sure of.
    assert great.left_at is not None and 0.1 < great.left_at < 2.0
    assert great.departures[-1].high < 0.5


def test_what_lies_outside_the_layers_and_encoders_can_be_asked_about() -> None:
    (head,) = validity(sharp(), [batch()], [(None, "linear")], scales=(0.01, 0.02))
    assert head.group == "linear outside the layers"
    encoder = make("bert").bert
    (layer,) = validity(encoder, [batch()], [(0, "linear")], scales=(0.01, 0.02))
    assert layer.law.exponent.estimate == pytest.approx(2.0, abs=0.1)


def test_batches_have_to_be_a_list() -> None:
    with pytest.raises(BadInputError, match="at least one dict"):
        Responses(sharp(), batch())
