"""Follows a model through a run and has every call examined as the run had it, without changing a bit of it.

Modules are seen at their borders, behind every hook of others; operators that belong to no checked module are seen as
torch calls. It draws no conclusion.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.records import Injection, Site, noise
from noisescope.core.vocabulary import OPERATORS, PRODUCTS
from noisescope.inject.ops import OPERATOR_OF
from noisescope.inject.plain import is_plain
from noisescope.measure.judged import Judged
from noisescope.measure.recomputing import overwrite, recomputed
from noisescope.measure.replay import Call, CannotReplayError, Operation, tensors_of
from noisescope.model.layout import layout_of
from noisescope.sweep.examining import (
    Part,
    UncheckableError,
    check_call,
    check_code,
    check_embedding,
    check_linear,
    check_passed_on,
    part_of,
    quietly,
)
from noisescope.sweep.injecting import Injecting

Told = Callable[[Site, Judged, int], None]
Given = tuple[tuple[Any, ...], dict[str, Any]]
_PROBLEMS = (UncheckableError, CannotReplayError)


@dataclass
class _Frame:
    """A module that is running."""

    module: nn.Module
    path: str
    part: Part | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    children: list[Call] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    # Whether this call, or one inside it, differs from what was examined before.
    news: bool = False
    # What the product behind a softmax gave: the last part of an attention whose parts are checked by themselves.
    inner: Tensor | None = None

    def note(self, operator: str, out: Tensor) -> None:
        """Of an operator in the module's own code: keep what may be the end of an attention before it is one."""
        follows = bool(self.operations) and self.operations[-1].operator == "softmax"
        self.inner = out.clone() if follows and operator in PRODUCTS else None


class Observer:
    """Has each call of a model examined once; a call that repeats an examined one to the last bit is not again.

    The outputs of the sites in `heal` are replaced by what the host computes; why that failed is in `unhealed`. Without
    `tell` that is all it does.
    """

    def __init__(self, model: nn.Module, seed: int, tell: Told | None, heal: Collection[Site] = frozenset()) -> None:
        self.model, self.tell, self.heal = model, tell, heal
        self.unhealed: dict[Site, str] = {}
        self.layout = layout_of(model)
        self.signs = torch.Generator().manual_seed(seed)
        self.unchecked: dict[Site, str] = {}
        self._parts = self._learn()
        self._frames: list[_Frame] = []
        self._known: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._ordinals: dict[tuple[str, str], int] = {}
        self._marks = _Marks()
        self._batch, self._order = 0, 0

    def _learn(self) -> dict[str, Part | None]:
        written = dict(self.layout.written_out)
        holders = {path[:end] for path in self.layout.layers for end in range(len(path)) if path[end] == "."}
        parts = {}
        for path, module in self.model.named_modules():
            holds_layers = path in holders or (path == "" and bool(self.layout.layers))
            parts[path] = None if holds_layers else part_of(module, written.get(path))
        return parts

    @contextmanager
    def watching(self, batch: int) -> Iterator[None]:
        """Examine what runs inside, as one run of one batch."""
        self._frames.clear()
        self._ordinals.clear()
        self._marks.forget()
        self._batch, self._order = batch, 0
        look = Injection(noise(scale=0.0), operators=OPERATORS)
        with Injecting(self.model, look, strict=False, witness=self._witness):
            handles = [h for path, module in self.model.named_modules() for h in self._hook(path, module)]
            try:
                yield
            finally:
                for handle in handles:
                    handle.remove()

    def _hook(self, path: str, module: nn.Module) -> list[Any]:
        after = module.register_forward_hook(self._leave, with_kwargs=True)

        def enter(m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._frames.append(_Frame(m, path, self._parts[path], args, kwargs))

        def stand_last(m: nn.Module, _: Any) -> None:
            # Other hooks of the module, the engine's own among them, may be put behind ours at any time.
            hooks: Any = m._forward_hooks
            hooks.move_to_end(after.id)

        first = module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True)
        return [first, module.register_forward_pre_hook(stand_last), after]

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        while self._frames and self._frames[-1].module is not module:
            self._frames.pop()
        if not self._frames:
            return None
        frame = self._frames.pop()
        call = Call(module, frame.args, frame.kwargs, out, frame.children, frame.operations)
        site, check = self._check_of(frame, call)
        if site in self.heal:
            call = self._healed(site, frame, call)
            _, check = self._check_of(frame, call)
        given = (frame.args, frame.kwargs)
        frame.news = self._is_new(site, given, call.out, inside=frame.news) or frame.news
        if check is not None and frame.news:
            self._examine(site, check)
        if self._frames:
            above = self._frames[-1]
            above.children.append(Call(module, frame.args, frame.kwargs, call.out))
            above.news = above.news or frame.news
        return None if call.out is out else call.out

    def _healed(self, site: Site, frame: _Frame, call: Call) -> Call:
        """The call of a module with the output that the host computes."""
        try:
            if frame.part is None:
                raise CannotReplayError("no check computes its output")
            own = call if frame.part.kind == "container" else replace(call, operations=[])
            return replace(call, out=recomputed(own, OPERATOR_OF.get))
        except CannotReplayError as problem:
            self.unhealed[site] = str(problem)
            return call

    def _heal_operator(self, site: Site, function: Callable[..., Any], call: Given, out: Tensor) -> None:
        try:
            overwrite(function, *call, out)
        except CannotReplayError as problem:
            self.unhealed[site] = str(problem)

    def _check_of(self, frame: _Frame, call: Call) -> tuple[Site, Callable[[], Judged] | None]:
        part, path = frame.part, frame.path
        layer, inside = self.layout.layer_of(path)
        name = type(frame.module).__name__
        if part is None:
            return Site(layer, name, path), None
        if part.kind == "container":
            operator = "residual" if layer is not None and not inside else name
            return Site(layer, operator, path), lambda: check_code("glue", call)
        within = next((operation.operator for operation in frame.operations), name)
        site = Site(layer, part.operator or within, path)
        checks: dict[str, Callable[[], Judged]] = {
            "linear": lambda: check_linear(call, self.signs),
            "lookup": lambda: check_embedding(call),
            # Its operators are part of its code here, so nothing of them is answered from the run.
            "leaf": lambda: check_code("replay", replace(call, operations=[])),
        }
        return site, checks[part.kind]

    def _witness(
        self, site: Site, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        frame = self._frames[-1] if self._frames else None
        if site in self.heal and (frame is None or frame.part is None or frame.part.kind == "container"):
            self._heal_operator(site, function, (args, kwargs), out)
        # An attention whose parts were checked has to hand on what the last of them gave, and answers for no more.
        inner = frame.inner if frame is not None and site.operator == "attention" else None
        if frame is not None:
            frame.note(site.operator, out)
            frame.operations.append(Operation(site.operator, args, kwargs, out))
            if frame.part is not None and frame.part.kind != "container":
                return
        new = self._is_new(site, (args, kwargs) if inner is None else inner, out)
        if frame is not None:
            frame.news = frame.news or new
        if new and inner is not None:
            self._examine(site, lambda: check_passed_on(inner, out))
        elif new:
            self._examine(site, lambda: check_call(site.operator, function, (args, kwargs), out, self.signs))

    def _examine(self, site: Site, check: Callable[[], Judged]) -> None:
        if self.tell is None:
            return
        self._order += 1
        try:
            self.tell(site, quietly(check), self._order)
        except _PROBLEMS as problem:
            self.unchecked[site] = str(problem)

    def _is_new(self, site: Site, given: Any, out: Any, *, inside: bool = False) -> bool:
        """Whether a call has not yet been examined with these inputs and this output.

        Equal inputs with another output are told as such: rounding is no reason for that on one machine. Where
        something `inside` was already new, it is the reason.
        """
        if self.tell is None:
            return False
        key = (site.path, site.operator)
        ordinal = self._ordinals[key] = self._ordinals.get(key, 0) + 1
        place = (self._batch, *key, ordinal)
        marks = (self._marks.of(given), self._marks.of(out))
        known = self._known.setdefault(place, marks)
        first = known is marks
        if not (first or inside) and known[0] == marks[0] and known[1] != marks[1]:
            self._order += 1
            self.tell(site, Judged("repeat", float("inf"), 1, 1), self._order)
        return first or known != marks


class _Marks:
    """Checksums of all bits of the floating tensors in a structure.

    What one module gives another is given: a tensor object that was not written into since is not read again.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}

    def forget(self) -> None:
        """Read everything anew."""
        self._known.clear()

    def of(self, value: Any) -> int:
        """The checksum of a structure."""
        mark = 0
        with torch._C.DisableTorchFunction():
            for x in tensors_of(value if isinstance(value, dict) else [value]):
                mark = zlib.crc32(self._bits(x).to_bytes(4, "little"), mark)
        return mark

    def _bits(self, x: Tensor) -> int:
        if not is_plain(x) or x.is_inference():
            return zlib.crc32(_bytes(x))
        known = self._known.get(id(x))
        if known is None or known[0]() is not x or known[1] != x._version:
            known = self._known[id(x)] = weakref.ref(x), x._version, zlib.crc32(_bytes(x))
        return known[2]


def _bytes(x: Tensor) -> Any:
    if not is_plain(x):
        return b""
    whole = x.detach().cpu().contiguous()
    return whole.reshape(-1).view(torch.uint8).numpy() if whole.numel() else b""
