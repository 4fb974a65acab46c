"""Where a factor can move without a change is found in every family, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import transformers
from torch import Tensor, nn

from cases import CASES, GROUPED, make
from noisescope.model.folds import NO_WRITER, ONE_PLUS, PLAIN, Fold, folds_of

GATED = ["input_layernorm", "v_proj", "post_attention_layernorm", "up_proj"]
# The writers of one layer, by hand. Behind gelu nothing is in proportion; behind relu, which OPT has, it is.
WRITERS = {
    "llama": GATED,
    "qwen2": GATED,
    "qwen3": GATED,
    "gemma": GATED,
    "mixtral": ["input_layernorm", "v_proj"],
    "gpt2": ["ln_1", "c_attn", "ln_2"],
    "gpt_neox": ["input_layernorm", "query_key_value", "post_attention_layernorm"],
    "opt": ["self_attn_layer_norm", "v_proj", "final_layer_norm", "fc1"],
    # Attention and MLP read one norm.
    "phi": ["input_layernorm", "v_proj"],
    # Its norms come behind the residual sum, which goes on with what they give.
    "bert": ["value"],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_the_folds_of_every_family(name: str, dtype: torch.dtype) -> None:
    model = make(name, "sdpa", dtype)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = folds_of(model)
    assert [fold.writer.rpartition(".")[2] for fold in found.folds] == WRITERS[name] * 2
    assert [fold.layer for fold in found.folds] == sorted([0, 1] * len(WRITERS[name]))
    norms = {fold.gain for fold in found.folds if "norm" in fold.writer or ".ln_" in fold.writer}
    assert norms <= {ONE_PLUS if name == "gemma" else PLAIN}
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def fold_of(name: str, writer: str) -> Fold:
    return next(fold for fold in folds_of(make(name)).folds if fold.writer.endswith(writer))


def test_every_channel_is_traced_to_the_row_that_it_comes_from() -> None:
    # Four heads of 8 channels share two heads of values: 0 and 1 the first, 2 and 3 the second.
    first, second = [*range(8)], [*range(8, 16)]
    assert list(fold_of("qwen2", "v_proj").channels) == first + first + second + second
    # Queries, keys and values one behind the other.
    assert list(fold_of("gpt2", "c_attn").channels) == [*range(64, 96)]
    # Queries, keys and values of each head in turn, 8 channels each.
    assert list(fold_of("gpt_neox", "query_key_value").channels) == [
        24 * h + 16 + c for h in range(4) for c in range(8)
    ]
    assert fold_of("phi", "input_layernorm").readers[-1].endswith("mlp.fc1")


def test_values_behind_grouped_queries_and_keys_in_one_layer_are_found() -> None:
    config = transformers.Phi3Config(**GROUPED, max_position_embeddings=64)
    found = folds_of(transformers.Phi3ForCausalLM(config).eval())
    assert not found.without
    fused = {fold.writer.rpartition(".")[2]: fold for fold in found.folds}
    # 32 rows of queries and 16 of keys come first; of gate and up the second half goes on in proportion.
    assert sorted(set(fused["qkv_proj"].channels)) == [*range(48, 64)]
    assert list(fused["gate_up_proj"].channels) == [*range(64, 128)]


def test_what_is_left_says_why() -> None:
    assert folds_of(make("gpt2")).without["transformer.h.0.mlp.c_proj"] == NO_WRITER
    bert = folds_of(make("bert")).without
    assert (
        bert["bert.encoder.layer.0.attention.self.query"] == "something else reads what bert.embeddings.LayerNorm gives"
    )


class Block(nn.Module):
    """A norm that a linear layer reads and, if that is planted, something else as well."""

    def __init__(self, *, is_read_twice: bool) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.is_read_twice = is_read_twice

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        more = 1e-6 * normed.abs() if self.is_read_twice else 0.0
        return x + self.outer(self.inner(normed)) + more


class Stack(nn.Module):
    def __init__(self, twice: Sequence[bool]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block(is_read_twice=each) for each in twice)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_second_reader_that_hardly_shows_ends_a_fold_and_no_other() -> None:
    found = folds_of(Stack([False, True, False]).eval(), {"x": torch.randn(2, 5, 8)})
    norms = [fold.writer for fold in found.folds if fold.gain]
    assert norms == ["layers.0.norm", "layers.2.norm"]
    assert found.without == {"layers.1.inner": "something else reads what layers.1.norm gives"}
    assert [fold.writer for fold in found.folds if not fold.gain] == [f"layers.{i}.inner" for i in range(3)]
