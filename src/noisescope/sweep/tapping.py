"""Follows a model through a run and shows the tensors that pass between its operators, by module path and role.

Whoever watches may put another tensor in the place of one. It keeps nothing and compares nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from noisescope.core.layout import Layout
from noisescope.core.records import Site
from noisescope.inject.ops import OPERATOR_OF
from noisescope.measure.replay import aside
from noisescope.model.layout import PASSED_OVER_ENDINGS, layout_of
from noisescope.sweep.examining import part_of
from noisescope.sweep.laying import Laid, laid

ROTARY = "rope"
# They do nothing where nothing is learned.
_IDLE = (nn.Dropout, nn.Identity)
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@dataclass(frozen=True)
class Tap:
    """One place where a tensor is seen: a role at a module. `site.operator` is what made the tensor.

    Roles: output of a module (output-1 and so on where it gives several), input where no tap has seen the tensor
    before, and inside attention query, key, value, scores (scaled and masked), weights and context.
    """

    site: Site
    role: str

    @property
    def key(self) -> str:
        """What it is matched by: the same in two systems whatever order they run in."""
        return f"{self.site.path}:{self.role}"


# Shown a tensor; what it returns, if anything, takes its place.
See = Callable[[Tap, Laid], Tensor | None]


@dataclass(frozen=True)
class _Part:
    """A module that is followed."""

    path: str
    layer: int | None
    operator: str
    # Whose code hands its input to it.
    glue: str
    glue_layer: int | None
    is_leaf: bool
    has_weight: bool


class Tapping:
    """Shows every tap of a model. `coarse` sees the borders of layers alone, as must be where layers are compiled."""

    def __init__(self, model: nn.Module, *, coarse: bool = False) -> None:
        self.model = model
        self.layout = layout_of(model)
        self.parts = {path: part for path, part in _parts(model, self.layout) if not coarse or _is_border(part, self)}
        self.frames: list[_Part] = []
        self.mask: Tensor | None = None
        self.turns = any(part.operator == ROTARY for part in self.parts.values())
        self._see: See | None = None
        # What was shown, and what an input was replaced by: the tensor itself may go elsewhere as well.
        self._seen: dict[int, weakref.ref[Tensor]] = {}
        self._replaced: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        self._coarse = coarse

    @contextmanager
    def watching(self, see: See, mask: Tensor | None) -> Iterator[None]:
        """Show what passes inside; `mask` says which tokens are not padding."""
        self._see, self.mask = see, mask
        self.frames.clear()
        self._forget()
        handles = [h for path, part in self.parts.items() for h in self._hook(self.model.get_submodule(path), part)]
        try:
            if self._coarse:
                yield
            else:
                with _AttentionMode(self):
                    yield
        finally:
            for handle in handles:
                handle.remove()
            self._see = None
            self._forget()

    def _forget(self) -> None:
        self._seen.clear()
        self._replaced.clear()

    def _hook(self, module: nn.Module, part: _Part) -> list[Any]:
        def enter(m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # Behind whatever others do to what comes out, the engine's own hooks among them.
            hooks: Any = m._forward_hooks
            hooks.move_to_end(after.id)
            self.frames.append(part)
            return self._enter(part, args, kwargs)

        def leave(_: nn.Module, args: Any, out: Any) -> Any:
            while self.frames and self.frames.pop() is not part:
                pass
            return self._leave(part, out)

        if self._coarse:
            enter, leave = torch.compiler.disable(enter), torch.compiler.disable(leave)
        after = module.register_forward_hook(leave)
        return [module.register_forward_pre_hook(enter, with_kwargs=True), after]

    def _enter(self, part: _Part, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if part.is_leaf and not part.has_weight:
            return None
        given = next(((i, x) for i, x in enumerate(args) if _is_values(x)), None)
        name = next((n for n, x in kwargs.items() if _is_values(x)), None) if given is None else None
        x = given[1] if given is not None else kwargs.get(name) if name is not None else None
        if x is None or self.has_seen(x):
            return None
        changed = self._instead_of(x)
        if changed is None:
            changed = self.show(Tap(Site(part.glue_layer, part.glue, part.path), "input"), laid(x, self.mask))
        if changed is x:
            return None
        self._replaced[id(x)] = weakref.ref(x), changed
        if given is not None:
            return (*args[: given[0]], changed, *args[given[0] + 1 :]), kwargs
        return args, {**kwargs, str(name): changed}

    def _leave(self, part: _Part, out: Any) -> Any:
        values = out if isinstance(out, tuple | list) else [out]
        places = [i for i, x in enumerate(values) if _is_values(x)]
        made = list(values)
        for number, i in enumerate(places if part.is_leaf else places[:1]):
            role = "output" if not number else f"output-{number}"
            if not (number == 0 and not part.is_leaf and self.has_seen(values[i])):
                made[i] = self.show(Tap(Site(part.layer, part.operator, part.path), role), laid(values[i], self.mask))
        if all(one is other for one, other in zip(made, values, strict=True)):
            return None
        if not isinstance(out, tuple | list):
            return made[0]
        return type(out)(*made) if hasattr(out, "_fields") else type(out)(made)

    def has_seen(self, x: Tensor) -> bool:
        """Whether this very tensor was shown before, under another name."""
        reference = self._seen.get(id(x))
        return reference is not None and reference() is x

    def _instead_of(self, x: Tensor) -> Tensor | None:
        reference, instead = self._replaced.get(id(x), (None, None))
        return instead if reference is not None and reference() is x else None

    def show(self, tap: Tap, given: Laid) -> Tensor:
        """The tensor that is to go on from here."""
        with aside():
            changed = self._see(tap, given) if self._see is not None else None
        out = given.tensor if changed is None else changed
        self._seen[id(out)] = weakref.ref(out)
        return out


def _is_values(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 1


def _parts(model: nn.Module, layout: Layout) -> Iterator[tuple[str, _Part]]:
    written = dict(layout.written_out)
    holders = {path[:end] for path in layout.layers for end in range(len(path)) if path[end] == "."} | {""}
    modules = dict(model.named_modules())
    for path, module in modules.items():
        if path in holders or type(module).forward is nn.Module.forward or isinstance(module, _IDLE):
            continue
        parent = path.rpartition(".")[0]
        glue = "residual" if parent in layout.layers else _class_of(modules[parent])
        is_leaf = not any(True for _ in module.children())
        has_weight = any(True for _ in module.parameters(recurse=False)) or "Linear" in type(module).__name__
        operator = _operator_of(path, module, written, layout)
        layer, glue_layer = layout.layer_of(path)[0], layout.layer_of(parent)[0]
        yield path, _Part(path, layer, operator, glue, glue_layer, is_leaf, has_weight)


def _class_of(module: nn.Module) -> str:
    name = type(module).__name__
    return "attention" if "Attention" in name else name


def _operator_of(path: str, module: nn.Module, written: Mapping[str, str], layout: Layout) -> str:
    name = type(module).__name__
    if path in layout.layers:
        return "residual"
    if name.endswith(PASSED_OVER_ENDINGS):
        return ROTARY
    if "Linear" in name or name == "Conv1D":
        return "linear"
    part = part_of(module, written.get(path))
    found = part.operator if part is not None else None
    return found or next((known for known in ("gelu", "silu") if known in name.lower()), _class_of(module))


def _is_border(part: _Part, tapping: Tapping) -> bool:
    return part.path in tapping.layout.layers or part.layer is None


class _AttentionMode(TorchFunctionMode):
    """Shows what goes into attention and comes out, in fused and in written-out form under the same names."""

    def __init__(self, tapping: Tapping) -> None:
        super().__init__()
        self._tapping = tapping
        # Of written-out attention: the module in which the scores were made, and whether they went through softmax.
        self._open: tuple[_Part, bool] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one torch call."""
        kwargs = kwargs or {}
        frame = self._tapping.frames[-1] if self._tapping.frames else None
        if frame is None or frame.operator in (ROTARY, "linear"):
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._fused(frame, args, kwargs)
        operator = OPERATOR_OF.get(func)
        if operator == "softmax" and self._open == (frame, False) and args and args[0].dim() == 4:
            return self._softmax(frame, func, args, kwargs)
        if operator in ("matmul", "bmm") and len(args) == 2 and all(_is_four(x) for x in args):
            return self._product(frame, func, args)
        return func(*args, **kwargs)

    def _show(self, frame: _Part, operator: str, role: str, given: Laid) -> Tensor:
        return self._tapping.show(Tap(Site(frame.layer, operator, frame.path), role), given)

    @property
    def _turned(self) -> str:
        """What is done to a query between its projection and its use."""
        return ROTARY if self._tapping.turns else "attention"

    def _fused(self, frame: _Part, args: Any, kwargs: Any) -> Tensor:
        named = dict(zip(_NAMES, args, strict=False)) | kwargs
        mask, groups = self._tapping.mask, named["query"].size(-3) // named["key"].size(-3)
        named["query"] = self._show(frame, self._turned, "query", laid(named["query"], mask, "heads"))
        for role in ("key", "value"):
            named[role] = self._show(frame, "attention", role, laid(named[role], mask, "heads", groups))
        out = F.scaled_dot_product_attention(**named)
        return self._show(frame, "attention", "context", laid(out, mask, "heads"))

    def _softmax(self, frame: _Part, func: Any, args: Any, kwargs: Any) -> Tensor:
        mask = self._tapping.mask
        scores = self._show(frame, "attention", "scores", laid(args[0], mask, "scores"))
        out = func(scores, *args[1:], **kwargs)
        self._open = (frame, True)
        return self._show(frame, "softmax", "weights", laid(out, mask, "grid"))

    def _product(self, frame: _Part, func: Any, args: Any) -> Tensor:
        mask = self._tapping.mask
        if self._open == (frame, True):
            self._open = None
            value = self._show(frame, "attention", "value", laid(args[1], mask, "heads"))
            return self._show(frame, "attention", "context", laid(func(args[0], value), mask, "heads"))
        self._open = (frame, False)
        query = self._show(frame, self._turned, "query", laid(args[0], mask, "heads"))
        key = self._show(frame, "attention", "key", laid(args[1].mT, mask, "heads"))
        out: Tensor = func(query, key.mT)
        return out


def _is_four(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 4
