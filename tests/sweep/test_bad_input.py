"""Bad input gives one line that says what was seen, what is accepted and what is nearest; nothing stays injected."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import noisescope as ns
from cases import batch, make
from noisescope.core.errors import BadInputError, LayersNotFoundError

WRONG = [
    (
        lambda m: ns.noise("relative_gausian"),
        "unknown noise kind 'relative_gausian'.* 'relative_gaussian'",
    ),
    (lambda m: ns.noise("dead_zone"), "unknown noise kind"),
    (lambda m: ns.fault("relative_gaussian"), "unknown fault kind"),
    (lambda m: ns.fault("deadzone"), "Did you mean 'dead_zone'"),
    (lambda m: ns.noise(scale=-0.1), "scale -0.1 .*finite number >= 0"),
    (lambda m: ns.noise(scale=math.nan), "scale nan"),
    (lambda m: ns.noise(scale=math.inf), "scale inf"),
    (lambda m: ns.noise(scale="0.1"), "scale '0.1'"),
    (lambda m: ns.noise(scale=True), "scale True"),
    (lambda m: ns.fault("spike", rates=0.1), "unknown parameter of spike 'rates'.*Did you mean 'rate'"),
    (lambda m: ns.fault("spike", rate=1.5), "rate 1.5: expected a share between 0 and 1"),
    (lambda m: ns.noise(fraction=-1), "fraction -1"),
    (lambda m: ns.noise(channels=[-1]), "channels"),
    (lambda m: ns.inject(m, ns.noise(), operators=["lineer"]), "unknown operator 'lineer'.*Did you mean 'linear'"),
    (lambda m: ns.inject(m, ns.noise(), operators=[]), "empty selection of operators"),
    (lambda m: ns.inject(m, ns.noise(), layers=[]), "empty selection of layers"),
    (lambda m: ns.inject(m, ns.noise(), phases=[]), "empty selection of phases"),
    (lambda m: ns.inject(m, ns.noise(), phases=["foward"]), "unknown phase 'foward'.*Did you mean 'forward'"),
    (lambda m: ns.inject(m, ns.noise(), layers=[2]), "unknown layer 2; accepted: 0, 1"),
    (lambda m: ns.inject(m, ns.noise(), layers=[-1]), "unknown layer -1"),
    (lambda m: ns.inject(m, ns.noise(), layers=["1"]), "layer '1'"),
    (lambda m: ns.inject(m, ns.noise(), layers="all"), "layers 'all': expected a layer number, a list"),
    (lambda m: ns.inject(m, ns.noise(), layers=1.0), "layers 1.0: expected a layer number, a list"),
    (lambda m: ns.inject(m, ns.noise(), layers=True), "layer True: expected an integer"),
    (lambda m: ns.inject(m, ns.noise(), layers=torch.tensor([0])), r"layer tensor\(0\): expected an integer"),
    (lambda m: ns.inject(m, ns.noise(), operators=3), "operators 3: expected one or more of linear"),
    (lambda m: ns.inject(m, ns.noise(), phases=None), "phases None: expected one or more of forward, backward"),
    (lambda m: ns.noise(channels=0), "channels 0: expected a list of channel indices"),
    (lambda m: ns.inject(m, ns.noise(), seed=1.5), "seed 1.5: expected an integer"),
    (lambda m: ns.inject(m, "noise"), "corruption 'noise'"),
    (lambda m: ns.inject("model", ns.noise()), "model str: expected a torch.nn.Module"),
    (lambda m: ns.inject(m, ns.fault("exp_lut"), operators=["linear"]), "exp_lut cannot be applied to linear"),
    (lambda m: ns.sites(nn.Linear(2, 2)), "no config with a vocab_size"),
    (lambda m: ns.sites(m, {"x": torch.ones(1, 2)}), r"cannot be called with batch 1, as model\(x \(1, 2\)\)"),
]


@pytest.mark.parametrize(("act", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_wrong_values_are_named(act, message: str) -> None:
    model = make("llama")
    clean = model(**batch()).logits
    with pytest.raises(BadInputError, match=message) as caught:
        act(model)
    assert "\n" not in str(caught.value)
    assert torch.equal(model(**batch()).logits, clean)
    assert not any(module._forward_hooks for module in model.modules())


def test_layers_of_a_model_without_a_stack_cannot_be_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(LayersNotFoundError, match=r"layers \[0\] were asked for.*ModuleList"):
        ns.inject(model, ns.noise(), layers=[0])
    with ns.inject(model, ns.noise()) as handle:
        model(torch.ones(1, 2))
    assert handle.stats.by_layer[None].forward == 1


def test_a_bad_value_found_while_the_model_runs_leaves_nothing_injected() -> None:
    model = make("llama")
    clean = model(**batch()).logits
    with pytest.raises(BadInputError, match="channels"), ns.inject(model, ns.noise(channels=[10_000])):
        model(**batch())
    assert torch.equal(model(**batch()).logits, clean)
    assert not any(module._forward_hooks for module in model.modules())
