"""Makes a small language model and its tokenizer from nothing, for experiments that train on a CPU.

It trains nothing. The same seed gives the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from noisescope.model.load import Loaded, fingerprint

PAD, END = "<pad>", "</s>"
_POSITIONS, _HEADS = 64, 4
# A word with the space before it, a letter alone, one digit, or any other character.
_PIECE = r"\d| ?[A-Za-z]+| ?[^\w\s]| "


def small_model(vocabulary: Sequence[str], *, width: int, layers: int, seed: int) -> Loaded:
    """A model of the Llama family with random weights, in float32, and a tokenizer of these pieces of text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tokenizer_of(vocabulary)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
        max_position_embeddings=_POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).eval()
    return Loaded(model, tokenizer, f"small model of width {width}", fingerprint(model))


def tokenizer_of(vocabulary: Sequence[str]) -> Any:
    """A tokenizer that knows these pieces; numbers are read digit by digit."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = {piece: number for number, piece in enumerate((PAD, END, *vocabulary))}
    backend = Tokenizer(models.WordLevel(pieces, unk_token=PAD))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECE), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=PAD, eos_token=END, unk_token=PAD)
