"""A table of small models, one per family, built from their configurations. Each is made in well under a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import transformers
from torch import Tensor, nn

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}


@dataclass(frozen=True)
class Case:
    """A model family: how to build one, and how often each operator runs in one forward of it."""

    build: Callable[[], nn.Module]
    counts: dict[str, int]
    attention: tuple[str, ...] = ("eager", "sdpa")
    extra: dict[str, str] = field(default_factory=dict)


def _llama_like(**more: int) -> dict[str, int]:
    # Per layer q, k, v, o, gate, up, down; two products; one softmax, one silu, two norms. Then norm and head.
    return {"linear": 15, "matmul": 4, "softmax": 2, "silu": 2, "rms_norm": 5, **more}


CASES: dict[str, Case] = {
    "llama": Case(lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)), _llama_like()),
    "qwen2": Case(lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**GROUPED)), _llama_like()),
    # A norm on the queries and one on the keys in each layer.
    "qwen3": Case(
        lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**GROUPED, head_dim=8)), _llama_like(rms_norm=9)
    ),
    "gemma": Case(
        lambda: transformers.GemmaForCausalLM(transformers.GemmaConfig(**GROUPED, head_dim=8)),
        {"linear": 15, "matmul": 4, "softmax": 2, "gelu": 2, "rms_norm": 5},
    ),
    # A router in each layer (linear and softmax); the experts are two grouped products with one silu between them.
    "mixtral": Case(
        lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(**GROUPED, num_local_experts=4)),
        _llama_like(softmax=4),
    ),
    "gpt2": Case(
        lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                n_embd=32, n_layer=2, n_head=4, vocab_size=128, n_positions=64, bos_token_id=1, eos_token_id=2
            )
        ),
        {"linear": 9, "matmul": 4, "softmax": 2, "gelu": 2, "layer_norm": 5},
    ),
    "gpt_neox": Case(
        lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SMALL)),
        {"linear": 9, "matmul": 4, "softmax": 2, "gelu": 2, "layer_norm": 5},
    ),
    # ReLU is no operator of ours.
    "opt": Case(
        lambda: transformers.OPTForCausalLM(
            transformers.OPTConfig(
                hidden_size=32,
                ffn_dim=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                vocab_size=128,
                word_embed_proj_dim=32,
                max_position_embeddings=64,
            )
        ),
        {"linear": 13, "matmul": 4, "softmax": 2, "layer_norm": 5},
    ),
    "phi": Case(
        lambda: transformers.PhiForCausalLM(transformers.PhiConfig(**SMALL)),
        {"linear": 13, "matmul": 4, "softmax": 2, "gelu": 2, "layer_norm": 3},
    ),
    # Six linears a layer, two in the head; a gelu a layer and one in the head; two norms a layer, embedding, head.
    "bert": Case(
        lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SMALL)),
        {"linear": 14, "matmul": 4, "softmax": 2, "gelu": 3, "layer_norm": 6},
    ),
}


def make(name: str, attention: str = "eager", dtype: torch.dtype = torch.float32) -> nn.Module:
    """One model of the table, always with the same weights, without dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CASES[name].build()
    model.config.use_cache = False
    model.set_attn_implementation(attention)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model.to(dtype).eval()


def batch(rows: int = 2, length: int = 6, *, labels: bool = False) -> dict[str, Tensor]:
    """Token ids, and the same as labels if asked for."""
    ids = torch.arange(rows * length).reshape(rows, length) * 7 % 120 + 3
    return {"input_ids": ids, "labels": ids} if labels else {"input_ids": ids}


def sharp(layers: int = 6) -> nn.Module:
    """A small model whose answers are not all equally likely."""
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": layers})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(4.0)
    return model


class Wobbly(nn.Module):
    """A module of a kind that no check knows, which gives something else each time."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(())


class Unsteady(nn.Module):
    """Linear layers with a wobbly one between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), Wobbly(), nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def batches(rows: int = 40, width: int = 10) -> list[dict[str, Tensor]]:
    """Rows of random tokens, eight to a batch."""
    ids = torch.randint(1, 128, (rows, width), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": part} for part in ids.split(8)]
