"""Skips the layers below the first that is corrupted: they hand on what they gave in an earlier run on the same inputs.

Readings stay the same to the bit, noise included, because the key of a draw holds nothing of what ran before. It
measures nothing, and where a model does not allow it, it does nothing and says why.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from noisescope.core.records import Injection, Site, noise
from noisescope.core.vocabulary import OPERATORS
from noisescope.measure.head import is_compiled
from noisescope.model.layout import layout_of
from noisescope.sweep.injecting import Injecting
from noisescope.sweep.kept import Kept, content_of, pack

MEMORY = 2 << 30
See = Callable[[Mapping[str, Tensor]], Tensor]
Hook = Callable[[nn.Module, Any, Any], None]
# Rows and columns of a batch that are enough to see whether a run can start from the middle.
_ROWS, _COLUMNS = 2, 8


class Prefix:
    """What the first layers of a model gave on clean runs, and the skipping of those layers.

    `see` calls the model and finds in its output what is judged; `inputs` is a batch to check with. `off` says why
    nothing is skipped. The weights must not change while it lives.
    """

    def __init__(self, model: nn.Module, see: See, inputs: Mapping[str, Tensor], memory: int = MEMORY) -> None:
        self.model = model
        self.layers = tuple(model.get_submodule(path) for path in layout_of(model).layers)
        self.kept = Kept(memory)
        self.off = _hindrance(model, self.layers)
        self._see, self._probe = see, _small(inputs)
        # What the probe gave, and what all layers gave on it.
        self._whole: Tensor | None = None
        self._scratch = Kept(float("inf"))
        self._early: frozenset[Site] = frozenset()
        self._checked: set[int] = set()
        self._last = len(self.layers)

    def first(self, injections: Sequence[Injection]) -> int:
        """How many layers run before anything is corrupted; 0 if that is not known or nothing may be skipped."""
        if not self._ready():
            return 0
        first = min((self._first_of(injection) for injection in injections), default=len(self.layers))
        boundary = min(first, self._last)
        self._check(boundary - boundary % self.kept.step)
        return 0 if self.off else first

    @contextmanager
    def skipping(self, first: int) -> Iterator[None]:
        """Let each call of the model start behind what is kept of its first layers; what else they give is kept.

        `first` says how many layers are clean, and must come from the method of that name.
        """
        if self.off or not first:
            yield
            return
        with _watching(self.model, _Calls(self.layers, self.kept, first, self._checked)):
            yield

    def _first_of(self, injection: Injection) -> int:
        if injection.layers is None or injection.phases != ("forward",):
            return 0
        if None in injection.layers and any(injection.takes(None, site.operator) for site in self._early):
            return 0
        return min((layer for layer in injection.layers if layer is not None), default=len(self.layers))

    def _ready(self) -> bool:
        """Whether layers may be skipped; the first time, run the probe to see in which order things happen."""
        if self.off is None and self._whole is None:
            try:
                with torch.no_grad():
                    self._learn()
            except Exception as problem:  # noqa: BLE001 - a trial on whole batches shows whether it is the model's fault
                self._switch_off(f"a part of a batch cannot be run ({type(problem).__name__}: {problem})")
        return self.off is None

    def _learn(self) -> None:
        look = _Look(self.layers)
        nothing = Injection(noise(scale=0.0), operators=OPERATORS)
        with _hooked(look.handles()), Injecting(self.model, nothing, strict=False, sensor=look.listen):
            self._see(self._probe)
        self.off = look.hindrance
        self._early = frozenset(look.early)
        if self.off is None:
            with _watching(self.model, _Calls(self.layers, self._scratch, len(self.layers), ())):
                self._whole = self._see(self._probe)

    def _check(self, boundary: int) -> None:
        """See that a clean run from this boundary on gives the same bits as a whole one, or switch off.

        Every boundary is checked: layers may take from earlier ones more than the hidden state, and not all of them.
        """
        if not boundary or boundary in self._checked or self.off:
            return
        problem = self._problem_behind(boundary)
        if problem is None:
            self._checked.add(boundary)
        elif boundary == self._last == len(self.layers):
            # The last hidden state may be read by a hook of the last layer, which then has to run.
            self._last -= 1
            self._check(self._last)
        else:
            self._switch_off(f"started behind layer {boundary - 1}, {problem}")

    def _problem_behind(self, boundary: int) -> str | None:
        calls = _Calls(self.layers, self._scratch, boundary, (boundary,))
        try:
            with torch.no_grad(), _watching(self.model, calls):
                part = self._see(self._probe)
        except Exception as problem:  # noqa: BLE001 - what a model does not stand shows in its own ways
            return f"the model fails ({type(problem).__name__}: {problem})"
        same = calls.skipped == boundary and _same_bits(part, self._whole)
        return None if same else "the model gives something else than as a whole"

    def _switch_off(self, reason: str) -> None:
        self.off = reason
        self.kept.clear()
        self._scratch.clear()


class _Look:
    """What runs in which order in one call of a model."""

    def __init__(self, layers: tuple[nn.Module, ...]) -> None:
        self.layers = layers
        self.order: list[int] = []
        self.odd: list[str] = []
        self.astray: list[Site] = []
        # Sites outside the layers that run before the last layer has.
        self.early: set[Site] = set()

    def handles(self) -> list[RemovableHandle]:
        """Hooks that note which layer has run."""
        return [layer.register_forward_hook(self._note(index)) for index, layer in enumerate(self.layers)]

    def _note(self, index: int) -> Hook:
        def hook(layer: nn.Module, _: Any, out: Any) -> None:
            self.order.append(index)
            if pack(out) is None:
                self.odd.append(type(layer).__name__)

        return hook

    def listen(self, site: Site, _: Tensor) -> None:
        """An operator has run."""
        if site.layer is None and len(self.order) < len(self.layers):
            self.early.add(site)
        if site.layer not in (None, len(self.order)):
            self.astray.append(site)

    @property
    def hindrance(self) -> str | None:
        """Why layers of this model cannot be skipped."""
        if self.order != list(range(len(self.layers))):
            return "the layers do not run once each and in order"
        if self.astray:
            return f"{self.astray[0].path} runs outside of layer {self.astray[0].layer}"
        return f"a {self.odd[0]} gives more than tensors" if self.odd else None


class _Calls:
    """The hooks around calls of a model in which the first layers are clean."""

    def __init__(self, layers: tuple[nn.Module, ...], kept: Kept, first: int, allowed: Collection[int]) -> None:
        self.layers = layers
        self.kept = kept
        self.first = first
        self.allowed = allowed
        self.skipped = 0
        self._content: bytes | None = None
        self._skips: list[_Skip] = []

    def begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the model runs."""
        self.end()
        self._content = None if torch.is_grad_enabled() else content_of(args, kwargs)
        if self._content is None:
            return
        boundaries = [b for b in self.allowed if b <= self.first]
        self.skipped = self.kept.nearest(self._content, boundaries)
        if self.skipped:
            packed = self.kept.get(self._content, self.skipped)
            # What the others give is taken up by none; only it has to be of the same kind.
            passed, last = packed.unpacked(), packed.unpacked()
            values = [*[passed] * (self.skipped - 1), last]
            self._skips = [_Skip(layer, value) for layer, value in zip(self.layers, values, strict=False)]

    def note(self, index: int) -> Hook:
        """A hook behind a layer that is clean."""

        def hook(_: nn.Module, __: Any, out: Any) -> None:
            if self._content is not None:
                self.kept.keep(self._content, index + 1, out)

        return hook

    def end(self, *_: Any) -> None:
        """After the model has run, or has raised."""
        self._content = None
        for skip in self._skips:
            skip.undo()
        self._skips = []


class _Skip:
    """A layer that gives what it is told to, without its hooks: what is kept was taken behind them."""

    def __init__(self, layer: nn.Module, value: Any) -> None:
        self.inside = layer.__dict__
        names = ("forward", "_forward_hooks", "_forward_pre_hooks")
        self.before = {name: self.inside[name] for name in names if name in self.inside}
        self.inside.update(
            forward=lambda *_, **__: value, _forward_hooks=OrderedDict(), _forward_pre_hooks=OrderedDict()
        )

    def undo(self) -> None:
        """Let the layer be as it was."""
        del self.inside["forward"]
        self.inside.update(self.before)


@contextmanager
def _hooked(handles: list[RemovableHandle]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _watching(model: nn.Module, calls: _Calls) -> Iterator[None]:
    handles = [
        model.register_forward_pre_hook(calls.begin, with_kwargs=True),
        model.register_forward_hook(calls.end, always_call=True),
        *[layer.register_forward_hook(calls.note(index)) for index, layer in enumerate(calls.layers[: calls.first])],
    ]
    with _hooked(handles):
        try:
            yield
        finally:
            calls.end()


def _hindrance(model: nn.Module, layers: tuple[nn.Module, ...]) -> str | None:
    """What can be seen from outside to stand in the way."""
    if not layers:
        return "the stack of layers was not found"
    # A graph may have taken the layers' code in; it would run all the same.
    return "the model is compiled" if any(map(is_compiled, model.modules())) else None


def _small(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """A corner of a batch, if all that it holds is laid out by row and column; else all of it."""
    shapes = {tensor.shape for tensor in inputs.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        return inputs
    return {name: tensor[:_ROWS, :_COLUMNS] for name, tensor in inputs.items()}


def _same_bits(one: Tensor, other: Tensor | None) -> bool:
    if other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    first, second = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(first, second)
