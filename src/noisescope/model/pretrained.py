"""Reads a model and its tokenizer with transformers, and refuses a model any weight of which was not in the file.

It does not decide what a source is: `noisescope.model.load` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from noisescope.core.errors import LoadError, unknown_name
from noisescope.model.hushing import hushed

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "float64": torch.float64,
    "fp64": torch.float64,
}
ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.tiktoken", "spiece.model")
REMOTE_HEADS = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel")
HEAD_MAPPINGS = ("MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "MODEL_MAPPING")
LISTED = 3
# transformers loads torchao where it is installed, which notes what it was not built with.
_CHATTY = ("torchao", "torch.utils._pytree")


@dataclass(frozen=True)
class Manner:
    """How a model is to be read. No dtype: the one its weights are kept in; no attention: the model's own choice."""

    dtype: torch.dtype | None = None
    attention: str | None = None
    trust_remote_code: bool = False
    device_map: str | dict[str, int | str] | None = None

    @classmethod
    def of(cls, dtype: str | None, attention: str | None, trust_remote_code: bool) -> Manner:
        """A manner from the words a person writes."""
        if dtype is not None and dtype not in DTYPES:
            raise unknown_name("dtype", dtype, DTYPES)
        if attention is not None and attention not in ATTENTIONS:
            raise unknown_name("attention", attention, ATTENTIONS)
        return cls(DTYPES[dtype] if dtype else None, attention, trust_remote_code)


def read_config(where: str, manner: Manner, **place: Any) -> PretrainedConfig:
    """The configuration at a folder, a config.json or a hub name."""
    from transformers import AutoConfig

    config: PretrainedConfig = AutoConfig.from_pretrained(where, trust_remote_code=manner.trust_remote_code, **place)
    return config


def read_model(where: str, config: PretrainedConfig, manner: Manner, **place: Any) -> PreTrainedModel:
    """The model of a configuration with the weights found there, or with those of `place["state_dict"]`."""
    kind = model_class(config, where, manner)
    options: dict[str, Any] = {"dtype": manner.dtype or "auto", "trust_remote_code": manner.trust_remote_code, **place}
    if manner.attention:
        options["attn_implementation"] = manner.attention
    if manner.device_map:
        options["device_map"] = manner.device_map
    given = "state_dict" in place
    model, seen = kind.from_pretrained(
        None if given else where, config=config, ignore_mismatched_sizes=True, output_loading_info=True, **options
    )
    refuse_gaps(where, seen, strict=given)
    ready: PreTrainedModel = model.eval()
    return ready


def read_tokenizer(where: str, manner: Manner, **place: Any) -> Any | None:
    """The tokenizer at a folder or hub name; None for a folder that holds none."""
    from transformers import AutoTokenizer

    folder = Path(where)
    if folder.is_dir() and not place and not any(any(folder.glob(name)) for name in TOKENIZER_FILES):
        return None
    return AutoTokenizer.from_pretrained(where, trust_remote_code=manner.trust_remote_code, **place)


def model_class(config: PretrainedConfig, where: str, manner: Manner) -> Any:
    """The class that the configuration names; if it names none, the first that fits: causal, seq2seq, bare."""
    import transformers

    remote = getattr(config, "auto_map", None) or {}
    brought = [remote[head] for head in REMOTE_HEADS if head in remote]
    if manner.trust_remote_code and brought:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        return get_class_from_dynamic_module(brought[0], where)
    named = [getattr(transformers, name, None) for name in config.architectures or ()]
    known = [kind for kind in named if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)]
    if not config.architectures:
        mappings = [getattr(transformers, name) for name in HEAD_MAPPINGS]
        known = [mapping[type(config)] for mapping in mappings if type(config) in mapping]
    if known:
        return known[0][0] if isinstance(known[0], tuple) else known[0]
    raise LoadError(
        f"{where}: no model class for architecture {', '.join(config.architectures or ('(none named)',))} of type "
        f"{config.model_type!r}; expected one that transformers {transformers.__version__} has. Upgrade transformers; "
        "or, if the model brings its own code and you trust it, pass trust_remote_code=True (--trust-remote-code)."
    )


def refuse_gaps(where: str, seen: Mapping[str, Any], *, strict: bool) -> None:
    """Raise if a weight of the model was not in the file, or had another shape; strict: or was of no use."""
    shapes = [f"{name}: {list(found)} in place of {list(asked)}" for name, found, asked in seen["mismatched_keys"]]
    complaints = (
        _listed("weights missing", seen["missing_keys"]),
        _listed("of another shape", shapes),
        _listed("that the model does not have", seen["unexpected_keys"] if strict else ()),
    )
    if any(complaints):
        raise LoadError(
            f"{where}: {'; '.join(filter(None, complaints))}. Expected exactly the weights that the config describes: "
            "give the config that belongs to this file."
        )


def _listed(what: str, names: Any) -> str:
    ordered = sorted(names)
    more = f", and {len(ordered) - LISTED} more" if len(ordered) > LISTED else ""
    return f"{len(ordered)} {what} ({', '.join(ordered[:LISTED])}{more})" if ordered else ""


@contextlib.contextmanager
def quiet(*, bars: bool = False) -> Iterator[None]:
    """transformers without its warnings and, unless asked for, without progress bars; its own settings return after."""
    with hushed(*_CHATTY):
        yield from _quiet(bars=bars)


def _quiet(*, bars: bool) -> Iterator[None]:
    from transformers.utils import logging

    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
