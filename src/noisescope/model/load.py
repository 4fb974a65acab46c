"""Loads the model that a source names: an embedded one, a Hugging Face folder or name, a GGUF file, a checkpoint.

It does not look for layers or sites, and it never runs code that comes with a model unless that is asked for.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from noisescope.core.errors import BadInputError, LoadError
from noisescope.model.embedded import EMBEDDED, embedded_folder
from noisescope.model.failures import first_line, one_line
from noisescope.model.gguf_file import read_gguf
from noisescope.model.placement import device_map_of, tensors_of
from noisescope.model.pretrained import Manner, quiet, read_config, read_model, read_tokenizer

CHECKPOINTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
ACCEPTED = f"a Hugging Face folder or name, a .gguf file, a checkpoint of bare weights, {' or '.join(EMBEDDED)}"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
HUB_SECONDS = 10
# Devices whose support for torch is a package of its own, which is loaded only where one of them is asked for.
EXTENSIONS = {"npu": "torch_npu"}
NESTED_STATES = ("state_dict", "model_state_dict", "model", "module")
WRAPPED = re.compile(r"^(module\.|_orig_mod\.)+")

Read = tuple[torch.nn.Module, Any]


@dataclass(frozen=True)
class Loaded:
    """A model in eval mode, its tokenizer if it has one, where it came from, and a hash of its weights and config."""

    model: torch.nn.Module
    tokenizer: Any | None
    source: str
    fingerprint: str


def load(
    source: str,
    *,
    dtype: str | None = None,
    device: str = "cpu",
    config_from: str | None = None,
    attention: str | None = None,
    trust_remote_code: bool = False,
) -> Loaded:
    """The model that a source names. No dtype means the one that its weights are kept in; float32 for GGUF.

    A checkpoint of bare weights needs `config_from`: a folder, a config.json, a hub name or an embedded model. A
    `device` for a model that is too large for one is auto, another plan of accelerate, or a JSON file with a map.
    """
    manner = Manner.of(dtype, attention, trust_remote_code)
    target = None if (places := device_map_of(device)) else _device(device)
    manner = replace(manner, device_map=places)
    if not isinstance(source, str) or not source.strip():
        raise BadInputError(f"model {source!r}: expected {ACCEPTED}.")
    place = str(embedded_folder(source)) if source in EMBEDDED else source
    path = Path(place).expanduser()
    bare = path.is_file() and path.suffix in CHECKPOINTS
    if config_from is not None and not bare:
        raise BadInputError(f"config_from {config_from!r} with {source}: only a checkpoint needs it; leave it out.")
    if places and path.is_file():
        raise BadInputError(f"device {device!r} with the file {source}: only a Hugging Face folder or name is spread.")
    with one_line(source), quiet(bars=not path.exists()):
        model, tokenizer = _read_checkpoint(path, config_from, manner) if bare else _read(place, path, manner)
        mark = fingerprint(model)
        return Loaded(model if target is None else model.to(target), tokenizer, source, mark)


def _read(place: str, path: Path, manner: Manner) -> Read:
    if path.is_dir():
        return _read_folder(path, manner)
    if path.is_file():
        if path.suffix != ".gguf":
            raise BadInputError(f"{place}: a file of a kind that is not known; expected {ACCEPTED}.")
        return read_gguf(path, manner)
    if not HUB_NAME.fullmatch(place) or path.suffix in (*CHECKPOINTS, ".gguf"):
        raise LoadError(f"{place}: no such file or folder.{_nearest(path)} Expected {ACCEPTED}.")
    return _read_hub(place, manner)


def _read_folder(folder: Path, manner: Manner) -> Read:
    if not (folder / "config.json").is_file():
        inside = sorted(folder.glob("*.gguf"))
        hint = f"Give the file in it: {inside[0]}." if inside else "Expected config.json, weights and tokenizer in it."
        raise LoadError(f"{folder}: a folder without config.json. {hint}")
    return read_model(str(folder), read_config(str(folder), manner), manner), read_tokenizer(str(folder), manner)


def _read_hub(name: str, manner: Manner) -> Read:
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        # One quick question first: the library itself asks an unreachable hub six times, for 23 seconds.
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            HfApi().model_info(name, timeout=HUB_SECONDS)
    except Exception as problem:
        raise LoadError(
            f"{name}: no file or folder of that name here, and the hub did not give it ({first_line(problem)})."
            f"{_nearest(Path(name), *EMBEDDED)} Expected {ACCEPTED}."
        ) from problem
    return read_model(name, read_config(name, manner), manner), read_tokenizer(name, manner)


def _read_checkpoint(path: Path, config_from: str | None, manner: Manner) -> Read:
    if config_from is None:
        beside = " Or give the folder it is in: that has one." if (path.parent / "config.json").is_file() else ""
        raise BadInputError(
            f"{path}: weights alone; name the folder or config.json that describes them with config_from "
            f"(--config-from).{beside}"
        )
    place = str(embedded_folder(config_from) if config_from in EMBEDDED else Path(config_from).expanduser())
    with one_line(config_from):
        config = read_config(place, manner)
    state = read_state(path)
    if manner.dtype is None:
        manner = replace(manner, dtype=_main_dtype(state))
    model = read_model(str(path), config, manner, state_dict=state)
    folder = Path(place).parent if Path(place).is_file() else Path(place)
    return model, read_tokenizer(str(folder), manner)


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint file by name, without the wrappers that training leaves around them."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return _unwrapped(load_file(path))
    whole = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    inside = whole if isinstance(whole, dict) else {}
    inside = next((inside[k] for k in NESTED_STATES if isinstance(inside.get(k), dict)), inside)
    tensors = {name: value for name, value in inside.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise LoadError(
            f"{path}: a {type(whole).__name__} without named tensors; expected a state_dict, alone or under one of "
            f"{', '.join(NESTED_STATES)}."
        )
    return _unwrapped(tensors)


def _unwrapped(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {WRAPPED.sub("", name): tensor for name, tensor in state.items()}


def _main_dtype(state: dict[str, torch.Tensor]) -> torch.dtype | None:
    sizes: Counter[torch.dtype] = Counter()
    for tensor in state.values():
        if tensor.is_floating_point():
            sizes[tensor.dtype] += tensor.numel()
    return sizes.most_common(1)[0][0] if sizes else None


def fingerprint(model: torch.nn.Module) -> str:
    """A hash of every weight's name, type, shape and bytes, and of the configuration without what names its origin."""
    named = list(tensors_of(model))
    with ThreadPoolExecutor(max_workers=4) as pool:
        digests = list(pool.map(lambda item: _digest(item[1]), named))
    config: Any = getattr(model, "config", None)
    about = [
        type(model).__name__,
        _plain(config.to_dict() if config else None),
        [[name, digest] for (name, _), digest in zip(named, digests, strict=True)],
    ]
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _digest(tensor: Any) -> str:
    if is_traceable_wrapper_subclass(tensor):
        # A quantized weight is made of other tensors.
        inner = [(name, _digest(getattr(tensor, name))) for name in tensor.__tensor_flatten__()[0]]
        return hashlib.sha256(repr((type(tensor).__name__, inner)).encode()).hexdigest()
    kept = tensor.detach().cpu().contiguous()
    seen = hashlib.sha256(f"{kept.dtype}{tuple(kept.shape)}".encode())
    seen.update(kept.reshape(-1).view(torch.uint8).numpy().data)
    return seen.hexdigest()


def _plain(config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    return {str(k): _plain(v) for k, v in config.items() if not str(k).startswith("_") and k != "transformers_version"}


def _device(name: str) -> torch.device:
    kind = name.partition(":")[0]
    if kind in EXTENSIONS and not hasattr(torch, kind):
        try:
            import_module(EXTENSIONS[kind])
        except (ImportError, OSError, RuntimeError) as problem:  # the last two where its driver is missing
            raise BadInputError(
                f"device {name!r}: needs {EXTENSIONS[kind]}, which is not here ({first_line(problem)}). Install it, "
                "or choose another device."
            ) from None
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, ImportError) as problem:
        raise BadInputError(f"device {name!r}: {first_line(problem)}. Expected one that is here.") from None


def _nearest(path: Path, *names: str) -> str:
    here = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, [*names, *here], n=1)
    return f" Did you mean {str(path.with_name(near[0]))!r}?" if near else ""
