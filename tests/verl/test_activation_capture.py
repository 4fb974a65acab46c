"""The names that users of the verl fork know, on models with planted outlier channels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cases import batch, make
from noisescope.core.errors import BadInputError, NeverFiredError
from noisescope.verl.activation_capture import ActivationCapture

DOWN = "model.layers.1.mlp.down_proj"


def planted(channel: int = 9, factor: float = 30.0) -> nn.Module:
    model = make("llama")
    with torch.no_grad():
        model.get_submodule(DOWN).weight[channel] *= factor
    return model


def captured(model: nn.Module, **options: object) -> ActivationCapture:
    capture = ActivationCapture(model, **options)  # type: ignore[arg-type]
    capture.register_hooks()
    try:
        with torch.no_grad():
            for length in (6, 9):
                model(**batch(length=length))
    finally:
        capture.remove_hooks()
    return capture


def test_a_planted_channel_is_found() -> None:
    found = captured(planted(), layer_patterns=["down_proj", "o_proj"]).detect_outliers(threshold=10.0)
    assert set(found) == {f"model.layers.{i}.{name}" for i in (0, 1) for name in ("mlp.down_proj", "self_attn.o_proj")}
    layer = found[DOWN]
    assert layer["outlier_indices"] == [9]
    assert layer["num_outliers"] == 1
    assert layer["outlier_ratios"] == [layer["max_ratio"]]
    assert layer["max_ratio"] > 10
    assert (layer["num_channels"], layer["percentage"]) == (32, 100 / 32)
    assert layer["severity"] in ("moderate", "high", "critical")
    assert layer["places"] == ["every token"]
    assert layer["input"]["num_channels"] == 64
    assert all(not other["outlier_indices"] for path, other in found.items() if path != DOWN)


def test_nothing_planted_nothing_found() -> None:
    found = captured(make("llama")).detect_outliers()
    assert len(found) == 6
    for layer in found.values():
        assert layer["num_outliers"] == layer["input"]["num_outliers"] == 0
        assert layer["severity"] == "none"
        assert 1 <= layer["max_ratio"] <= 10


def test_the_threshold_is_the_callers() -> None:
    capture = captured(planted(factor=8.0))
    assert capture.detect_outliers()[DOWN]["outlier_indices"] == []
    assert capture.detect_outliers(threshold=3.0)[DOWN]["outlier_indices"] == [9]
    with pytest.raises(BadInputError, match=r"ratio 0\.5"):
        capture.detect_outliers(threshold=0.5)


def test_hooks_come_and_go() -> None:
    model = make("llama")
    clean = model(**batch()).logits
    capture = ActivationCapture(model, "o_proj")
    assert capture.register_hooks() == capture.register_hooks() == 2
    assert torch.equal(model(**batch()).logits, clean)
    capture.remove_hooks()
    capture.remove_hooks()
    model(**batch())
    assert [s.tokens for s in capture.observer.summaries()] == [12] * 4
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    capture.reset()
    with pytest.raises(NeverFiredError):
        capture.detect_outliers()
    with capture:
        model(**batch())
    assert set(capture.detect_outliers()) == {f"model.layers.{i}.self_attn.o_proj" for i in (0, 1)}


def test_a_pattern_that_names_nothing() -> None:
    with pytest.raises(BadInputError, match="gate_proj"):
        ActivationCapture(make("llama"), ["o_proj", "no_such_proj"])
