"""Reads a GGUF file into a dense model and a tokenizer that splits numbers as the model was trained to.

It does not keep the weights packed, and it does not write GGUF.
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from noisescope.core.errors import LoadError
from noisescope.model.pretrained import Manner, read_config, read_model, read_tokenizer

MAGIC = b"GGUF"
TWO_DIGITS = re.compile(r"[0-9]{2}")


def read_gguf(path: Path, manner: Manner) -> tuple[torch.nn.Module, Any]:
    """The model, in float32 unless the manner says otherwise, and the tokenizer of a GGUF file.

    float32, because neither 16-bit format holds a block scale times a code plus an offset without loss.
    """
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
    if begin != MAGIC:
        raise LoadError(f"{path}: begins with {begin!r}, expected {MAGIC!r}; not a GGUF file, or a damaged one.")
    where, place = str(path.parent), {"gguf_file": path.name}
    # The reader draws its progress bar on stderr whatever transformers is told.
    with contextlib.redirect_stderr(io.StringIO()):
        config = read_config(where, manner, **place)
        dense = _dense(path)
        manner = replace(manner, dtype=manner.dtype or torch.float32)
        model = read_model(where, config, manner, quantization_config=dense, **place)
        tokenizer: Any = read_tokenizer(where, manner, **place)
    split_digits(tokenizer)
    if tokenizer.model_max_length > (longest := getattr(config, "max_position_embeddings", None) or float("inf")):
        tokenizer.model_max_length = longest
    return model, tokenizer


def _dense(path: Path) -> Any:
    """What has transformers read the codes of a file as the numbers that they stand for."""
    import transformers

    try:
        return transformers.GgufConfig(dequantize=True)
    except AttributeError:
        seen = transformers.__version__
        raise LoadError(f"{path}: GGUF files need transformers 5.20 or newer; this is {seen}.") from None


def split_digits(tokenizer: Any) -> None:
    r"""Put back the split before and after every digit, which a GGUF file only names and transformers leaves out.

    A byte-level vocabulary in which no token holds two digits was learned with digits apart (SmolLM2, StarCoder,
    Command-R; llama.cpp splits these at every \p{N} first). The digits come out single either way; what is lost is
    the white space before them: "\n\n1" is two tokens with the split, three without.
    """
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    learned = tokenizer.get_vocab().keys() - tokenizer.get_added_vocab().keys()
    plain = isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel)
    if plain and "0" in learned and not any(map(TWO_DIGITS.search, learned)):
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
