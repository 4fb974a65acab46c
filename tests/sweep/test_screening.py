"""The one-pass prediction is the harm that injection then measures."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import noisescope as ns
from cases import batch, make
from noisescope.core.errors import BadInputError
from noisescope.core.records import Site
from noisescope.sweep.progress import Progress

HEAD = Site(None, "linear", "lm_head")


def sharp(name: str = "llama", attention: str = "eager") -> nn.Module:
    """A small model whose answers are not all equally likely."""
    model = make(name, attention)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(4.0)
    return model


def measured(model: nn.Module, layer: int | None, operator: str, scale: float, seeds: int) -> float:
    """Mean KL per token of injected noise."""
    found = []
    with torch.no_grad():
        clean = model(**batch()).logits.double().log_softmax(-1)
        for seed in range(seeds):
            with ns.inject(model, ns.noise(scale=scale), layers=[layer], operators=[operator], seed=seed):
                noisy = model(**batch()).logits.double().log_softmax(-1)
            found.append(float((clean.exp() * (clean - noisy)).sum(-1).mean()))
    return float(np.mean(found))


def test_at_the_logits_the_harm_is_that_of_the_formula() -> None:
    """F of a softmax is diag(p) - p p^T, so the harm of noise s |z| on the logits z is s^2 / 2 sum z^2 p (1 - p)."""
    model = sharp()
    logits = model(**batch()).logits.detach().double()
    chances = logits.softmax(-1)
    expected = 0.5 * 0.05**2 * float((logits**2 * chances * (1 - chances)).sum(-1).mean())
    profile = ns.screen(model, [batch()], draws=200)
    assert profile.by_site[HEAD] == pytest.approx(expected, rel=0.05)
    assert profile.tokens == 12


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_prediction_and_injection_agree_at_every_layer_and_operator(attention: str) -> None:
    model = sharp(attention=attention)
    profile = ns.screen(model, [batch()], scale=0.01, draws=50)
    keys = [key for key in profile.harm if key[1] != "attention"]
    assert len(keys) == 12
    predicted = np.array([profile.harm[key] for key in keys])
    seen = np.array([measured(model, *key, scale=0.01, seeds=60) for key in keys])
    # 60 injections of a sum of few large terms: about 10 % of standard error.
    assert 0.85 < np.median(predicted / seen) < 1.15
    assert all(0.6 < ratio < 1.6 for ratio in predicted / seen)
    assert spearmanr(predicted, seen).statistic > 0.95


def test_a_planted_fragile_channel_is_found() -> None:
    model = sharp()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[17] *= 50
    profile = ns.screen(model, [batch()], draws=10)
    channels = profile.channels[Site(1, "linear", "model.layers.1.mlp.up_proj")]
    assert int(channels.argmax()) == 17
    assert channels.shape == (64,)


def test_harm_sums_over_sites_and_grows_with_the_square_of_the_scale() -> None:
    profile = ns.screen(sharp(), [batch()])
    of_layer = [value for site, value in profile.by_site.items() if (site.layer, site.operator) == (0, "linear")]
    assert profile.harm[(0, "linear")] == pytest.approx(sum(of_layer))
    assert profile.at_scale(0.1).harm[(0, "linear")] == pytest.approx(4 * profile.harm[(0, "linear")])
    assert {key for key in profile.harm if key[0] is None} == {(None, "rms_norm"), (None, "linear")}


def test_the_same_seed_predicts_the_same_and_another_another() -> None:
    model = sharp()
    assert ns.screen(model, [batch()], seed=1).harm == ns.screen(model, [batch()], seed=1).harm
    assert ns.screen(model, [batch()], seed=1).harm != ns.screen(model, [batch()], seed=2).harm


def left_padded() -> dict[str, torch.Tensor]:
    """Two rows, the second with two tokens of padding in front."""
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, :2] = 0
    return batch() | {"attention_mask": mask}


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma", "bert"])
@pytest.mark.parametrize("inputs", [batch(), left_padded()], ids=["whole rows", "padded rows"])
def test_what_fused_attention_hides_is_what_unfused_attention_shows(name: str, inputs: dict[str, torch.Tensor]) -> None:
    """The same directions through the fused kernel, with its inside computed anew, and through the parts."""
    eager, fused = (ns.screen(sharp(name, attention), [inputs], draws=3) for attention in ("eager", "sdpa"))
    assert set(eager.by_site) == set(fused.by_site)
    for site, value in eager.by_site.items():
        assert fused.by_site[site] == pytest.approx(value, rel=2e-3, abs=1e-12), site


def test_memory_is_freed_without_waiting_for_the_garbage_collector() -> None:
    model, outputs = sharp(), []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _m, _a, out: outputs.append(weakref.ref(out)))
    gc.collect()
    gc.disable()
    try:
        ns.screen(model, [batch()], draws=2)
        assert len(outputs) == 15
        assert not [out for out in outputs if out() is not None]
    finally:
        gc.enable()


def test_short_formats_predict_what_float32_does() -> None:
    plain, short = (make("llama", dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    expected, found = (ns.screen(model, [batch(4, 8)], draws=20).harm for model in (plain, short))
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=0.25)
    assert np.median([found[key] / expected[key] for key in expected]) == pytest.approx(1.0, abs=0.05)


def test_a_site_that_runs_twice_gets_the_harm_of_both_runs() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(3, 3, bias=False)
            torch.nn.init.eye_(self.map.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.map(self.map(x))

    model, x = Twice(), torch.tensor([[2.0, 0.5, -1.0]])
    # Both runs give the logits x, so each has the harm of noise on the logits: s^2 / 2 sum x^2 p (1 - p).
    p = x.softmax(-1)
    once = 0.5 * 0.05**2 * float((x**2 * p * (1 - p)).sum())
    assert ns.screen(model, [{"x": x}], draws=4000).harm == pytest.approx({(None, "linear"): 2 * once}, rel=0.05)
    assert model.map.weight.grad is None
    assert not x.requires_grad


def test_a_compiled_model_is_screened_as_what_it_was_made_from() -> None:
    model = sharp()
    assert ns.screen(torch.compile(model), [batch()]).harm == ns.screen(model, [batch()]).harm


def test_a_model_that_answers_with_no_number_is_refused() -> None:
    model = sharp()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = math.nan
    with pytest.raises(BadInputError, match="not finite"):
        ns.screen(model, [batch()])


def test_a_model_without_a_way_for_gradients_is_refused() -> None:
    class Shut(nn.Module):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(input_ids, 200).float()

    with pytest.raises(BadInputError, match="no gradient leads"):
        ns.screen(Shut(), [batch()])


def test_padding_does_not_count() -> None:
    model = sharp()
    ids = batch(1, 6)["input_ids"]
    padded = {
        "input_ids": torch.cat([ids, torch.zeros(1, 3, dtype=ids.dtype)], 1),
        "attention_mask": torch.tensor([[1] * 6 + [0] * 3]),
    }
    profile = ns.screen(model, [padded], draws=300)
    assert profile.tokens == 6
    assert profile.by_site[HEAD] == pytest.approx(
        ns.screen(model, [{"input_ids": ids}], draws=300).by_site[HEAD], rel=0.1
    )


def test_an_encoder_without_logits_is_judged_by_its_hidden_state() -> None:
    model = make("bert").bert
    profile = ns.screen(model, [batch()], draws=20)
    assert profile.harm[(1, "linear")] > 0
    assert all(math.isfinite(value) for value in profile.harm.values())


def test_screening_leaves_the_model_as_it_was() -> None:
    model = sharp().train()
    model.lm_head.weight.requires_grad_(False)
    wanted = [weight.requires_grad for weight in model.parameters()]
    ns.screen(model, [batch()])
    assert [weight.requires_grad for weight in model.parameters()] == wanted
    assert all(weight.grad is None for weight in model.parameters())
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "scale 0.0"),
        ({"scale": math.nan}, "scale nan"),
        ({"draws": 0}, "draws 0"),
        ({"seed": 0.5}, "seed 0.5"),
        ({"batches": []}, "at least one dict"),
        ({"batches": batch()}, "expected a list"),
        ({"batches": [{**batch(), "attention_mask": torch.zeros(2, 6)}]}, "no token counts"),
    ],
)
def test_wrong_values_are_named(options: dict[str, object], message: str) -> None:
    batches = options.pop("batches", [batch()])
    with pytest.raises(BadInputError, match=message):
        ns.screen(make("llama"), batches, **options)


def test_a_batch_counts_as_done_once_it_is_screened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking whether the batches are fit to be screened is no progress."""
    model, progress, done = sharp(), Progress("screening", None, "batches"), []
    monkeypatch.setattr(progress, "advance", lambda: done.append("batch"))
    model.register_forward_hook(lambda *_: done.append("pass"))
    ns.screen(model, progress.over([batch(), batch(3)]))
    assert done == ["pass", "batch", "pass", "batch"]
