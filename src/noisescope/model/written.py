"""Recognises norms and activations that a model writes out by hand, by what they compute and not by their name.

A module is tried on a few vectors. One that calls the torch function itself needs no recognising and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

_TOLERANCE = 2e-2
_ACTIVATIONS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("silu", F.silu),
    ("gelu", F.gelu),
    ("gelu", lambda x: F.gelu(x, approximate="tanh")),
    ("gelu", lambda x: x * torch.sigmoid(1.702 * x)),
)
_FUNCTIONS = frozenset({F.silu, F.gelu, F.layer_norm, F.rms_norm, torch.layer_norm, torch.rms_norm})


class _Calls(TorchFunctionMode):
    """Notes whether one of the functions that need no recognising is called."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or func in _FUNCTIONS
        return func(*args, **(kwargs or {}))


def find_written_out(model: nn.Module) -> tuple[tuple[str, str], ...]:
    """(path, operator) of every module that computes a norm or an activation by hand."""
    known: dict[object, str | None] = {}
    found = []
    for path, module in model.named_modules():
        if type(module).__module__.startswith("torch.nn.") or any(True for _ in module.children()):
            continue
        # Modules of one class with weights of one shape compute the same thing.
        kind = (type(module), repr(module), tuple(w.shape for w in module.parameters()))
        if kind not in known:
            known[kind] = recognise(module)
        if operator := known[kind]:
            found.append((path, operator))
    return tuple(found)


def recognise(module: nn.Module) -> str | None:
    """The operator that a module without children writes out by hand, or None."""
    weights: list[Tensor] = list(module.parameters())
    if any(w.dim() != 1 for w in weights) or len(weights) > 2:
        return None
    if not weights and any(True for _ in module.buffers()):
        return None
    was_training = module.training
    try:
        with _without_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]), _whole(module):
            module.training = False
            weights = list(module.parameters())
            return _norm(module, weights) if weights else _activation(module) or _norm(module, weights)
    finally:
        module.training = was_training


@contextmanager
def _whole(module: nn.Module) -> Iterator[None]:
    """Weights that are on no device, or are sharded over several, have plain ones of their shape in their place."""
    kept = dict(module._parameters)
    for name, weight in kept.items():
        if weight is not None and (weight.is_meta or type(weight) not in (Tensor, nn.Parameter)):
            made = torch.linspace(0.5, 1.5, weight.numel(), dtype=weight.dtype)
            module._parameters[name] = nn.Parameter(made, requires_grad=False)
    try:
        yield
    finally:
        module._parameters.update(kept)


@contextmanager
def _without_modes() -> Iterator[None]:
    """No torch function mode of anybody, our own injections included, may take a trial for the model's own call."""
    modes = []
    while torch._C._len_torch_function_stack():
        modes.append(_pop_mode())
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)


def _run(module: nn.Module, x: Tensor) -> Tensor | None:
    """What the module makes of a tensor; None if it cannot, or if it calls a known function to do so."""
    calls = _Calls()
    try:
        with calls:
            # The class's own forward: hooks of the user must not see a trial.
            out = type(module).forward(module, x)
    except Exception:  # noqa: BLE001 - a module that was made for other inputs may raise anything
        return None
    fits = isinstance(out, Tensor) and out.shape == x.shape and not calls.seen
    return out.double() if fits else None


def _activation(module: nn.Module) -> str | None:
    x = torch.linspace(-4, 4, 65)
    out = _run(module, x.clone())
    if out is None:
        return None
    for operator, function in _ACTIVATIONS:
        if torch.allclose(out, function(x).double(), atol=1e-4):
            return operator
    return None


def _norm(module: nn.Module, weights: list[Tensor]) -> str | None:
    """Three inputs decide: a norm's output is the normalised input times one vector plus another, for all inputs."""
    width = weights[0].numel() if weights else 64
    like = weights[0] if weights else torch.empty(0)
    steps = torch.arange(3 * width, dtype=torch.float64).reshape(3, 1, width)
    # Of very different size: a module that only scales or passes on is no norm.
    sizes = torch.tensor([1.0, 4.0, 0.25], dtype=torch.float64).reshape(3, 1, 1)
    x = (sizes * (torch.sin(steps * 1.7) * 2 + torch.cos(steps * 0.3) + 0.5)).to(like.device, like.dtype)
    outs = [_run(module, row.clone()) for row in x]
    if any(out is None for out in outs) or width < 4:
        return None
    x, out = x.double(), torch.stack([o for o in outs if o is not None])
    centred = x - x.mean(-1, keepdim=True)
    for operator, normed in (
        ("rms_norm", x * x.pow(2).mean(-1, keepdim=True).rsqrt()),
        ("layer_norm", centred * centred.pow(2).mean(-1, keepdim=True).rsqrt()),
    ):
        if _is_affine(normed, out, with_offset=len(weights) == 2):
            return operator
    return None


def _is_affine(x: Tensor, y: Tensor, *, with_offset: bool) -> bool:
    """Whether y = a * x + b per channel, with b = 0 unless an offset is allowed."""
    if with_offset:
        x, y = x - x[:1], y - y[:1]
    gain = (x * y).sum(0) / (x * x).sum(0).clamp_min(1e-12)
    scale = y.abs().amax()
    return bool(scale > 0 and (y - gain * x).abs().amax() <= _TOLERANCE * scale)
