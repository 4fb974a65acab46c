"""Makes a small batch that a model accepts, from its configuration alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError


def sample_batch(model: nn.Module, length: int = 8) -> dict[str, Tensor]:
    """A batch of one short sequence of token ids. The same for every call."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = getattr(config, "vocab_size", None)
    if not isinstance(vocabulary, int):
        raise BadInputError(
            f"{type(model).__name__} has no config with a vocab_size, so no sample input can be made for it. "
            "Run the model on a batch of your own under noisescope.inject(...) and read handle.stats.by_site()."
        )
    ids = (torch.arange(length) * 7919 + 11).remainder(vocabulary).unsqueeze(0)
    batch = {"input_ids": ids.to(_device(model))}
    if getattr(config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = batch["input_ids"]
    return batch


def _device(model: nn.Module) -> torch.device:
    return next((w.device for w in model.parameters() if not w.is_meta), torch.device("cpu"))
