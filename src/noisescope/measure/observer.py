"""Watches chosen modules of a running model and feeds what goes through them to channel statistics.

It changes no output and leaves no hook behind; what the figures mean is `noisescope.measure.outliers`' business.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from noisescope.core.errors import BadInputError, NeverFiredError, unknown_name
from noisescope.measure.channels import NOWHERE, ChannelStatistics, Tokens
from noisescope.measure.outliers import ChannelSummary

DEFAULT_PATTERNS = ("o_proj", "down_proj", "gate_proj")
SIDES = ("input", "output")


def choose_modules(model: nn.Module, patterns: str | Sequence[str] | None = None) -> tuple[str, ...]:
    """Paths of the linear modules that any pattern names, in the order of the model.

    A pattern is compared with the whole path and with every ending of it that begins at a dot: `o_proj`,
    `layers.3.mlp.*_proj`. One that names nothing that way is searched for as a regular expression. A module that is
    not linear has to be named by its whole path. Without patterns, those of DEFAULT_PATTERNS that the model has.
    """
    linear = [path for path, module in model.named_modules() if path and _is_linear(module)]
    wanted = DEFAULT_PATTERNS if patterns is None else (patterns,) if isinstance(patterns, str) else tuple(patterns)
    chosen: set[str] = set()
    for pattern in wanted:
        found = _named(model, linear, pattern)
        if not found and patterns is not None:
            raise _no_module(pattern, linear)
        chosen.update(found)
    if not chosen and patterns is None:
        raise _no_module(", ".join(wanted), linear)
    return tuple(path for path, _ in model.named_modules() if path in chosen)


def _named(model: nn.Module, linear: Sequence[str], pattern: str) -> list[str]:
    exact = [path for path, _ in model.named_modules() if path and path == pattern]
    found = exact or [path for path in linear if any(fnmatch.fnmatchcase(end, pattern) for end in _endings(path))]
    if found:
        return found
    try:
        return [path for path in linear if re.search(pattern, path)]
    except re.error:
        return []


def _endings(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[i:]) for i in range(len(parts))]


def _is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer, also in the spelling of quantizers, adapters and GPT-2."""
    name = type(module).__name__
    return isinstance(module, nn.Linear) or "Linear" in name or name == "Conv1D"


def _no_module(pattern: str, linear: Sequence[str]) -> BadInputError:
    names = sorted({path.rpartition(".")[2] for path in linear})
    return BadInputError(f"{pattern!r} names no linear module; those of this model are called {', '.join(names)}.")


class ChannelObserver:
    """Statistics of chosen modules while it is attached; a context manager that detaches at the end of its block.

    `stream` names modules of any kind by path whose outputs are watched as well, such as the layers. Padding is told by
    the `attention_mask` that the model itself is called with (that of the encoder, if it has one), delimiters by
    `input_ids` and the ids in `delimiters`. With `gradients`, what is backpropagated through the watched tensors is
    kept too. What was met stays after detaching, and attaching again adds to it. One call of the model at a time.
    """

    def __init__(
        self,
        model: nn.Module,
        patterns: str | Sequence[str] | None = None,
        *,
        sides: Sequence[str] = ("output",),
        stream: Sequence[str] = (),
        delimiters: Collection[int] = (),
        gradients: bool = False,
    ) -> None:
        for side in sides:
            if side not in SIDES:
                raise unknown_name("side", side, SIDES)
        self.model = model
        self.sites = {path: tuple(sides) for path in choose_modules(model, patterns)}
        paths = {path for path, _ in model.named_modules()}
        for path in stream:
            if path not in paths:
                raise BadInputError(f"{path!r} is no module of this model; expected a path such as {max(paths)!r}.")
            self.sites[path] = tuple(dict.fromkeys((*self.sites.get(path, ()), "output")))
        if not self.sites:
            raise BadInputError("neither patterns nor a stream: nothing would be watched; name at least one module.")
        self.statistics: dict[tuple[str, str], ChannelStatistics] = {}
        self._delimiters = frozenset(delimiters)
        self._gradients = gradients
        self._tokens: Tokens | None = None
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Begin to watch; does nothing if it already does."""
        if self._handles:
            return
        try:
            self._handles.append(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
            self._handles.append(self.model.register_forward_hook(self._end, always_call=True))
            for path, sides in self.sites.items():
                hook = _Hook(self, path, sides)
                self._handles.append(self.model.get_submodule(path).register_forward_hook(hook, with_kwargs=True))
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Stop watching and leave no hook behind."""
        while self._handles:
            self._handles.pop().remove()
        self._tokens = None

    def __enter__(self) -> Self:
        self.attach()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def reset(self) -> None:
        """Forget what was met."""
        self.statistics.clear()

    @property
    def silent(self) -> tuple[str, ...]:
        """Paths of chosen modules that have not been called, such as experts that no token was sent to."""
        met = {path for path, _ in self.statistics}
        return tuple(path for path in self.sites if path not in met)

    def summaries(self) -> tuple[ChannelSummary, ...]:
        """What was met, in the order of the model; an error if no chosen module was ever called."""
        if not self.statistics:
            raise NeverFiredError(
                f"none of the {len(self.sites)} chosen modules was called while it was watched; run the model on a "
                "batch between attaching and detaching."
            )
        keys = [(path, side) for path, sides in self.sites.items() for side in sides]
        return tuple(self.statistics[key].summary(*key) for key in keys if key in self.statistics)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._tokens = _tokens_of(args, kwargs, self._delimiters)

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._tokens = None

    def see(self, path: str, side: str, values: Any) -> None:
        """Take in what went through one side of a module."""
        tensor = _first_tensor(values)
        if tensor is None or not tensor.numel():
            return
        tokens = _laid_out(tensor, self._tokens)
        key = (path, side)
        if key not in self.statistics:
            self.statistics[key] = ChannelStatistics(tensor.shape[-1], tensor.device)
        seen = self.statistics[key]
        kept = None if tokens is None else tokens.position >= 0
        rows = _kept(tensor, kept)
        seen.update(rows, tokens if tokens is None or kept is None else tokens.rows(kept))
        if self._gradients and tensor.requires_grad:
            tensor.register_hook(lambda gradient: seen.add_gradient(_kept(gradient, kept)))


class _Hook:
    """The forward hook of one module."""

    def __init__(self, observer: ChannelObserver, path: str, sides: Sequence[str]) -> None:
        self._observer, self._path, self._sides = observer, path, sides

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        if "input" in self._sides:
            self._observer.see(self._path, "input", (*args, *kwargs.values()))
        if "output" in self._sides:
            self._observer.see(self._path, "output", output)


def _first_tensor(values: Any) -> Tensor | None:
    """The first floating tensor among values; a model's output object counts as its values."""
    if isinstance(values, Tensor):
        return values if values.is_floating_point() and values.dim() else None
    parts = values.values() if isinstance(values, Mapping) else values if isinstance(values, tuple | list) else ()
    return next((found for part in parts if (found := _first_tensor(part)) is not None), None)


def _tokens_of(args: Sequence[Any], kwargs: Mapping[str, Any], delimiters: Collection[int]) -> Tokens | None:
    """The tokens that a model is called with; None if neither ids nor a mask say."""
    ids = kwargs.get("input_ids", args[0] if args else None)
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point():
        ids = None
    mask = kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        position = torch.where(mask > 0, mask.long().cumsum(1) - 1, NOWHERE)
        # With a cache, the mask covers what is in it too, and the tokens of this call are its end.
        position = position[:, -ids.shape[1] :] if ids is not None else position
    elif ids is not None:
        position = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)
    else:
        return None
    known = torch.full_like(position, NOWHERE) if ids is None or ids.shape != position.shape else ids.long()
    return Tokens.of(position, known.to(position.device), delimiters)


def _laid_out(tensor: Tensor, tokens: Tokens | None) -> Tokens | None:
    """The flattened tokens of a tensor's rows; None if it is not laid out as the batch is."""
    if tokens is None:
        if tensor.dim() != 3:
            return None
        tokens = Tokens.plain(tensor.shape, tensor.device)
    same = tensor.dim() == 3 and tensor.shape[:2] == tokens.position.shape
    flat = tensor.dim() == 2 and len(tensor) == tokens.position.numel()
    return tokens.to(tensor.device).rows(slice(None)) if same or flat else None


def _kept(tensor: Tensor, kept: Tensor | None) -> Tensor:
    rows = tensor.reshape(-1, tensor.shape[-1])
    return rows if kept is None or bool(kept.all()) else rows[kept]
