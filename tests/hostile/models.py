"""Small models in folders, for whole commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from letters import letters

SHAPE = {"vocab_size": 128, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}


def saved(folder: Path, layers: int = 3, change: Callable[[nn.Module], object] = lambda model: None) -> Path:
    """A model with its tokenizer, changed before it is saved."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=layers, max_position_embeddings=512))
    with torch.no_grad():
        change(model)
    model.save_pretrained(folder)
    letters().save_pretrained(folder)
    return folder
