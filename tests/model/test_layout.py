"""Layers and hand-written operators are found by structure and by what they compute, on any model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from cases import CASES, SMALL, make
from noisescope.core.errors import BadInputError
from noisescope.model.layers import find_layers
from noisescope.model.layout import layout_of
from noisescope.model.sample import sample_batch
from noisescope.model.written import find_written_out, recognise

STACKS = {
    "gpt2": "transformer.h",
    "gpt_neox": "gpt_neox.layers",
    "opt": "model.decoder.layers",
    "bert": "bert.encoder.layer",
}


@pytest.mark.parametrize("name", CASES)
def test_the_layers_of_every_family_are_found(name: str) -> None:
    stack = STACKS.get(name, "model.layers")
    assert find_layers(make(name)) == (f"{stack}.0", f"{stack}.1")


def test_a_bare_model_has_the_same_layers() -> None:
    assert find_layers(make("llama").model) == ("layers.0", "layers.1")


def test_two_stacks_are_counted_through() -> None:
    config = transformers.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=128)
    with torch.random.fork_rng(devices=[]):
        model = transformers.T5ForConditionalGeneration(config)
    assert find_layers(model) == ("encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1")


def test_a_stack_under_a_name_of_its_own_is_found_and_small_lists_are_not() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.floors = nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(3))
            self.heads = nn.ModuleList([nn.Linear(8, 1)])

    assert find_layers(Model()) == ("floors.0", "floors.1", "floors.2")


def test_blocks_in_a_sequential_are_layers_and_a_plain_sequential_is_none() -> None:
    blocks = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)))
    assert find_layers(blocks) == ("0", "1")
    assert find_layers(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))) == ()


class Norm(nn.Module):
    """A norm over the last dimension, as its arguments say."""

    def __init__(self, *, centre: bool, offset: bool = False, plus_one: bool = False, weight: bool = True) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(-0.5, 1.5, 8)) if weight else None
        self.shift = nn.Parameter(torch.linspace(-1, 1, 8)) if offset else None
        self.centre, self.plus_one = centre, plus_one

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if self.centre else x
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        x = x if self.gain is None else x * (self.gain + 1 if self.plus_one else self.gain)
        return x if self.shift is None else x + self.shift


class Apply(nn.Module):
    """A module without weights that applies a function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("module", "operator"),
    [
        (Norm(centre=False), "rms_norm"),
        (Norm(centre=False, plus_one=True), "rms_norm"),
        (Norm(centre=False, weight=False), "rms_norm"),
        (Norm(centre=True), "layer_norm"),
        (Norm(centre=True, offset=True), "layer_norm"),
        (Apply(lambda x: x * torch.sigmoid(x)), "silu"),
        (Apply(lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5))), "gelu"),
        (Apply(lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))), "gelu"),
        (Apply(lambda x: x * torch.sigmoid(1.702 * x)), "gelu"),
        (Apply(torch.tanh), None),
        (Apply(lambda x: x), None),
        (Apply(F.silu), None),
        (Apply(lambda x: F.rms_norm(x, (x.shape[-1],))), None),
        (Apply(lambda x: x.missing), None),
        (nn.Dropout(), None),
        (nn.Embedding(4, 8), None),
    ],
)
def test_operators_are_recognised_by_what_they_compute(module: nn.Module, operator: str | None) -> None:
    assert recognise(module) == operator


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_are_recognised_in_short_formats(dtype: torch.dtype) -> None:
    assert recognise(Norm(centre=False).to(dtype)) == "rms_norm"


def test_a_learned_scale_is_no_norm() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 8))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.gain

    assert recognise(Scale()) is None


def test_recognising_leaves_module_and_generator_alone() -> None:
    model = nn.Sequential(Norm(centre=False), Apply(lambda x: x + torch.rand_like(x))).train()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    assert find_written_out(model) == (("0", "rms_norm"),)
    assert torch.equal(torch.rand(2), expected)
    assert model.training
    assert model[0].training


def test_rotary_tables_are_passed_over_and_conv1d_is_linear() -> None:
    assert layout_of(make("llama")).passed_over == ("model.rotary_emb",)
    assert "transformer.h.0.attn.c_attn" in layout_of(make("gpt2")).linear


def test_a_layout_follows_the_model() -> None:
    model = make("llama")
    assert layout_of(model) == layout_of(make("llama"))
    del model.model.layers[0]
    assert layout_of(model).layers == ("model.layers.0",)


def test_a_sample_batch_fits_the_vocabulary() -> None:
    ids = sample_batch(make("llama"))["input_ids"]
    assert int(ids.min()) >= 0
    assert int(ids.max()) < SMALL["vocab_size"]
    with pytest.raises(BadInputError, match="vocab_size"):
        sample_batch(nn.Linear(2, 2))


class Sharded(Tensor):
    """Stands for a weight of which no process holds the whole: it can be described, and not computed with."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("__get__", "dim", "numel"):
            return super().__torch_function__(func, types, args, kwargs or {})
        raise RuntimeError("a sharded weight was computed with")


@pytest.mark.parametrize("kind", ["sharded", "meta"])
def test_norms_are_told_by_their_formula_where_their_weights_are_not_at_hand(kind: str) -> None:
    model = make("llama")
    expected = layout_of(model).written_out
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and kind == "sharded":
                module._parameters[name] = weight.detach().as_subclass(Sharded)
            elif weight is not None:
                module._parameters[name] = nn.Parameter(weight.to("meta"))
    held = dict(model.named_parameters())
    assert layout_of(model).written_out == expected and len(expected) == 5
    assert all(weight is held[name] for name, weight in model.named_parameters())
