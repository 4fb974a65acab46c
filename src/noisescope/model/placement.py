"""Where the parts of a model lie when one device is too small for it: the map that is asked for, and weights elsewhere.

accelerate moves the inputs of each part to where it lies, and brings in for a moment what lies on disk. This module
moves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from noisescope.core.errors import BadInputError

PLANS = ("auto", "balanced", "balanced_low_0", "sequential")


def device_map_of(device: str) -> str | dict[str, int | str] | None:
    """The map that a device stands for: a plan by name, or what a JSON file says; None for one device."""
    if device in PLANS:
        return device
    path = Path(device).expanduser()
    if path.suffix != ".json":
        return None
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise BadInputError(f"{path}: {problem.strerror}; expected a JSON file.") from None
    except (ValueError, RecursionError) as problem:
        raise BadInputError(f"{path}: not JSON ({problem}).") from None
    if not isinstance(plain, dict) or not plain or not all(_is_device(device) for device in plain.values()):
        raise BadInputError(f'{path}: expected module paths with devices, such as {{"model.layers.0": "cuda:1"}}.')
    return plain


def _is_device(device: object) -> bool:
    return isinstance(device, int | str) and not isinstance(device, bool)


def is_spread(model: nn.Module) -> bool:
    """Whether a model's parts lie in more than one place, the disk included."""
    return len({weight.device for weight in model.parameters()}) > 1 or any(w.is_meta for w in model.parameters())


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and buffer by name, and those that are elsewhere as they are there."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield name, _elsewhere(model, name) if tensor.is_meta else tensor


def _elsewhere(model: nn.Module, name: str) -> Tensor:
    path, _, own = name.rpartition(".")
    hook: Any = getattr(model.get_submodule(path), "_hf_hook", None)
    for one in getattr(hook, "hooks", (hook,)):
        kept = getattr(one, "weights_map", None)
        if kept is not None and own in kept:
            found: Tensor = kept[own]
            return found
    raise BadInputError(f"{name} has no values: the model was made without them, and nothing says where they are.")
