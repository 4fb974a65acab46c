"""A model that is ready to be asked: loaded, its layers and sites known, and checked to answer injections truly.

The check runs a handful of short forwards. It does not judge the model.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import SelfCheckError
from noisescope.core.records import Site, noise
from noisescope.model.layout import layout_of
from noisescope.model.load import load as load_model
from noisescope.model.sample import sample_batch
from noisescope.sweep.injecting import inject, sites

# Large enough to show through any number of layers and any format.
_LARGE = 0.5
_NORMS = ("layer_norm", "rms_norm")


@dataclass(frozen=True)
class Subject:
    """The model under test with its tokenizer, the paths of its layers in order, and its sites.

    `unseen` names modules that are called norms and at which no norm was ever seen to run.
    """

    model: nn.Module
    tokenizer: Any | None
    source: str
    fingerprint: str
    layers: tuple[str, ...]
    sites: tuple[Site, ...]
    unseen: tuple[str, ...] = ()


def load(source: str, **how: Any) -> Subject:
    """The subject that a source names; `how` is what `noisescope.model.load.load` takes.

    "demo" is SmolLM2-135M-Instruct; a Hugging Face folder or name, a GGUF file or a checkpoint does as well. A model
    for which no sample input can be made is not checked, and its sites are left empty.
    """
    loaded = load_model(source, **how)
    model = loaded.model
    found = self_check(model) if has_sample(model) else ()
    unseen = unseen_norms(model, found) if found else ()
    if unseen:
        warnings.warn(
            f"{len(unseen)} modules of {source} are called norms, but what they compute was not recognised, so they "
            f"get no noise: {', '.join(unseen[:3])}.",
            stacklevel=2,
        )
    return Subject(model, loaded.tokenizer, source, loaded.fingerprint, layout_of(model).layers, found, unseen)


def has_sample(model: nn.Module) -> bool:
    """Whether a sample input can be made from the model's configuration."""
    return hasattr(getattr(model, "config", None), "vocab_size")


def self_check(model: nn.Module) -> tuple[Site, ...]:
    """The sites of a model, after proof that injection there does what it says.

    The model repeats itself; strength 0 changes no bit; every operator that is listed fires and, at a large strength,
    changes the output; every layer has a site. Anything else raises SelfCheckError.
    """
    found = tuple(sites(model))
    was_training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            _check_answers(model, found)
    finally:
        for module, training in was_training.items():
            module.training = training
    bare = sorted(set(range(len(layout_of(model).layers))) - {site.layer for site in found})
    if bare:
        raise SelfCheckError(
            f"layers {bare} have no operator that can be seen: a fused or custom kernel computes them. Load the model "
            "with attn_implementation='sdpa' or 'eager' and without custom kernels."
        )
    return found


def _check_answers(model: nn.Module, found: tuple[Site, ...]) -> None:
    batch = sample_batch(model)
    clean = _output(model(**batch))
    if not torch.equal(_output(model(**batch)), clean):
        raise SelfCheckError(
            "the model gives two different answers to one input, so noise cannot be told from its own. Switch its "
            "sampling or dropout off, or locate the fault of the machine first."
        )
    with inject(model, noise(scale=0.0)):
        if not torch.equal(_output(model(**batch)), clean):
            raise SelfCheckError("injection of strength 0 changed the model's output; please report this model.")
    for operator in sorted({site.operator for site in found}):
        with inject(model, noise(scale=_LARGE), operators=[operator]):
            moved = not torch.equal(_output(model(**batch)), clean)
        if not moved:
            raise SelfCheckError(f"noise of {_LARGE:g} in {operator} did not reach the output of the model.")


def _output(out: Any) -> Tensor:
    """The first tensor that a model returns."""
    if isinstance(out, Tensor):
        return out
    values = out.values() if isinstance(out, dict) else out
    return next(value for value in values if isinstance(value, Tensor))


def unseen_norms(model: nn.Module, found: tuple[Site, ...]) -> tuple[str, ...]:
    """Modules that carry "Norm" in their class name and at which no norm is a site."""
    seen = {site.path for site in found if site.operator in _NORMS}
    return tuple(
        path for path, module in model.named_modules() if "norm" in type(module).__name__.lower() and path not in seen
    )
