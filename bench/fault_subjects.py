"""The models and batches that the benches of localisation run on.

Small ones are made from a configuration with random weights, the two large ones are those that come with the package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
import transformers

import noisescope as ns
from noisescope.measure.workload import demo_workload

DTYPES = ("float32", "bfloat16", "float16")
WIDTH = {"vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
PLAIN = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, **WIDTH}
TEXTS, LENGTH = 6, 24
REAL = {"smollm2": "demo", "minilm": "demo-encoder"}


def model_of(name: str, dtype: str, attention: str = "sdpa", device: str = "cpu") -> Any:
    """A model by name, without dropout."""
    if name in REAL:
        return ns.load(REAL[name], dtype=dtype).model.to(device)
    torch.manual_seed(1)
    made = SMALL[name]()
    made.set_attn_implementation(attention)
    return made.to(getattr(torch, dtype)).to(device).eval()


def _llama(**shape: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**PLAIN, **shape}))


def _gpt2() -> Any:
    shape = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 128, **WIDTH}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape))


def _mixtral() -> Any:
    shape = {**PLAIN, "num_key_value_heads": 2, "num_local_experts": 4}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**shape))


def _gemma() -> Any:
    return transformers.GemmaForCausalLM(transformers.GemmaConfig(**PLAIN, num_key_value_heads=2, head_dim=16))


def _with_outliers() -> Any:
    """Channels that are a thousand and a hundred times larger than the others."""
    made = _llama()
    with torch.no_grad():
        for layer in made.model.layers:
            layer.mlp.down_proj.weight[3] *= 1000
            layer.post_attention_layernorm.weight[5] *= 100
    return made


SMALL: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "gpt2": _gpt2,
    "gemma": _gemma,
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**PLAIN)),
    "mixtral": _mixtral,
    "tied": lambda: _llama(tie_word_embeddings=True),
    "tiny": lambda: _llama(hidden_size=8, intermediate_size=4),
    "outliers": _with_outliers,
}


def batch_of(model: Any, seed: int, rows: int = 2, length: int = 24) -> dict[str, torch.Tensor]:
    """Token ids by chance."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, model.config.vocab_size, (rows, length), generator=generator)
    return {"input_ids": ids.to(model.device)}


def texts() -> list[dict[str, Any]]:
    """A few texts of equal length in tokens, for the demo model."""
    tokenizer = ns.load("demo").tokenizer
    found = [tokenizer(item.text, return_tensors="pt")["input_ids"][0] for item in demo_workload("texts").items]
    rows = [ids[:LENGTH] for ids in found if len(ids) >= LENGTH][:TEXTS]
    return [{"input_ids": torch.stack(rows)}]


def chance(*parts: object) -> float:
    """A number in [0, 1) that belongs to a case."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:12], 16) / 16**12
