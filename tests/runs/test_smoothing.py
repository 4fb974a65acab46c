"""A model with outlier channels profits from smoothing; one without them is left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cases import batches, make, sharp
from noisescope.core.errors import BadInputError
from noisescope.core.smoothing import ACTIVATIONS, Smoothing
from noisescope.measure.given import given
from noisescope.model.folds import folds_of
from noisescope.runs import smoothing
from noisescope.runs.smoothing import SmoothingWanted, smooth


def planted(layers: int = 3) -> nn.Module:
    """The sharp model, with an input channel of q, k and v and one of down 50 times as large, and the same answers."""
    model = sharp(layers)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight[5] *= 50
            for name in ("q_proj", "k_proj", "v_proj"):
                getattr(layer.self_attn, name).weight[:, 5] /= 50
            layer.mlp.up_proj.weight[7] *= 50
            layer.mlp.down_proj.weight[:, 7] /= 50
    return model


def smoothed(model: nn.Module, wanted: SmoothingWanted | None = None, rows: int = 48) -> Smoothing:
    return smooth(model, given(model, batches(rows=rows), "kl_to_clean"), wanted or SmoothingWanted())


@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_planted_outliers_are_folded_away(activations: str) -> None:
    model = planted()
    with torch.no_grad():
        own = model(**batches()[0]).logits
    found = smoothed(model, SmoothingWanted(activations=activations))
    kept = {(fold.layer, fold.writer.rpartition(".")[2]) for fold in found.folded}
    assert kept >= {(layer, name) for layer in range(3) for name in ("input_layernorm", "up_proj")}
    assert found.after.estimate < 0.1 * found.before.estimate and found.change.high < 0
    assert all(fold.ratio[0] > 20 and fold.ratio[1] < 10 for fold in found.folded if "up_proj" in fold.writer)
    assert found.moved == 0.0
    with torch.no_grad():
        assert torch.equal(model(**batches()[0]).logits, own)
    # Half of the 48 samples were for factors, a quarter to choose by.
    assert (found.samples, found.seen, found.linears) == (12, 36, 21)


def test_without_outliers_no_weight_changes() -> None:
    model = sharp(3)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = smoothed(model)
    assert found.folded == () and found.before == found.after and found.change.estimate == 0.0
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(fold.why for fold in found.folds) and len(found.folds) == 12


def test_an_alpha_that_is_asked_for_is_the_only_one() -> None:
    assert {fold.alpha for fold in smoothed(planted(), SmoothingWanted(0.7)).folded} == {0.7}


def test_what_is_no_cheaper_on_the_last_part_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = planted()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    # Whatever the factors, the model in int8 costs more where it is judged.
    own = smoothing.Ground.costs

    def costs(self, start, stop, clean, chosen=()):
        values = own(self, start, stop, clean, chosen)
        return tuple(value + 1.0 for value in values) if chosen and start == 36 else values

    monkeypatch.setattr(smoothing.Ground, "costs", costs)
    found = smoothed(model)
    assert found.folded == () and "gained nothing" in found.remark and found.after == found.before
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_planted_fold_that_is_none_is_caught_before_anything_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = planted()
    found = folds_of(model)
    wrong = found.folds[1]
    turned = type(wrong)(wrong.layer, wrong.writer, wrong.readers, wrong.channels[::-1])
    broken = type(found)((found.folds[0], turned, *found.folds[2:]), {})
    monkeypatch.setattr(smoothing, "folds_of", lambda _: broken)
    monkeypatch.setattr(smoothing, "WORTH", -1e9)
    chosen = smoothing._chosen
    everything = lambda ground, worth, stream: [(one.fold, one.candidates[1]) for one in worth] or chosen  # noqa: E731
    monkeypatch.setattr(smoothing, "_chosen", everything)
    with pytest.raises(Exception, match="folding moved an answer"):
        smoothed(model)


def test_an_encoder_is_judged_by_its_embeddings() -> None:
    model = make("bert")
    found = smooth(model, given(model, batches(rows=16), "embedding_shift"), SmoothingWanted())
    assert found.metric == "embedding_shift" and len(found.without) == 10 and found.change.estimate <= 0.0


def test_too_few_samples_and_a_strange_alpha_are_refused() -> None:
    with pytest.raises(BadInputError, match="7 samples: expected 8"):
        smoothed(sharp(1), rows=7)
    with pytest.raises(BadInputError, match=r"alpha 1\.5"):
        SmoothingWanted(1.5)
    with pytest.raises(BadInputError, match="unknown scale of activations 'row'"):
        SmoothingWanted(activations="row")
