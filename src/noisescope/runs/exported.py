"""A model as an ONNX graph that onnxruntime runs on the CPU, with the tensor of every tap as an output of the graph.

The graph is made when the first inputs come, for any number of rows and tokens. What it computes is compared
elsewhere; nothing can be put in the place of a tensor inside it.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError
from noisescope.model.failures import first_line
from noisescope.model.hushing import hushed
from noisescope.model.layout import layout_of
from noisescope.sweep.laying import Laid, Layout, laid
from noisescope.sweep.tapping import See, Tap, Tapping

# They note what is not installed, or is to change.
_CHATTY = ("torch.onnx", "onnxscript", "onnx_ir")
_ERRORS_ONLY = 3


@dataclass(frozen=True)
class _Place:
    """One output of a graph: which tap it is of, and how its values lie."""

    tap: Tap
    layout: Layout
    groups: int


class Exported(nn.Module):
    """A model run by onnxruntime. It shows its taps as `Tapping` does those of a model in torch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        _require_exporter()
        strange = {str(weight.device) for weight in model.parameters() if weight.device.type != "cpu"}
        if strange:
            raise BadInputError(f"onnx runs on the CPU, and the model is on {', '.join(strange)}; use --device cpu.")
        self._orig_mod = model
        self.layout = layout_of(model)
        self._graphs: dict[tuple[str, ...], _Graph] = {}
        self._see: See | None = None
        self._mask: Tensor | None = None

    @contextmanager
    def watching(self, see: See, mask: Tensor | None) -> Iterator[None]:
        """Show what passes inside; `mask` says which tokens are not padding."""
        self._see, self._mask = see, mask
        try:
            yield
        finally:
            self._see = self._mask = None

    def forward(self, **inputs: Any) -> None:
        """Run the graph on the inputs of the model."""
        tensors = {name: x for name, x in inputs.items() if isinstance(x, Tensor)}
        known = tuple(tensors)
        if known not in self._graphs:
            fixed = {name: x for name, x in inputs.items() if name not in tensors}
            self._graphs[known] = _Graph(self._orig_mod, tensors, fixed)
        graph = self._graphs[known]
        for place, value in zip(graph.places, graph.run(tensors), strict=True):
            if self._see is not None:
                self._see(place.tap, laid(value, self._mask, place.layout, place.groups))


def _require_exporter() -> None:
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as problem:
        raise BadInputError(
            f"the system onnx needs packages that are not here ({first_line(problem)}): pip install 'noisescope[onnx]'."
        ) from None


@dataclass
class _Met:
    """The places of the last run. An object of its own: the exporter sets back what a forward sets in its module."""

    places: tuple[_Place, ...] = ()


class _Shown(nn.Module):
    """A model that gives the tensors of all its taps in place of its answer. `met` says which is which."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], fixed: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.met = _Met()
        self._names, self._fixed = names, fixed
        self._tapping = Tapping(model)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        places: list[_Place] = []
        made: list[Tensor] = []

        def see(tap: Tap, given: Laid) -> None:
            places.append(_Place(tap, given.layout, given.groups))
            made.append(given.tensor)

        with self._tapping.watching(see, None):
            self.model(**dict(zip(self._names, values, strict=True)), **self._fixed)
        self.met.places = tuple(places)
        return tuple(made)


class _Graph:
    """One graph, for inputs of these names, with its session and the folder that its weights are in."""

    def __init__(self, model: nn.Module, inputs: Mapping[str, Tensor], fixed: Mapping[str, Any]) -> None:
        import onnxruntime

        shown = _Shown(model, tuple(inputs), fixed).eval()
        folder = tempfile.mkdtemp(prefix="noisescope-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / "model.onnx"
        try:
            with hushed(*_CHATTY), warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                _export(shown, inputs, path)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            options.log_severity_level = _ERRORS_ONLY
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as problem:
            said = first_line(_root(problem))
            raise BadInputError(
                f"the model cannot be exported to ONNX and run by onnxruntime ({said}); try --dtype float32 and "
                "--attention sdpa."
            ) from problem
        self.places = shown.met.places

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """The value of every output."""
        wanted = {one.name for one in self._session.get_inputs()}
        fed = {name: x.numpy() for name, x in inputs.items() if name in wanted}
        return [torch.from_numpy(value) for value in self._session.run(None, fed)]


def _root(problem: Exception) -> Exception:
    """What an exporter that wraps errors in errors stumbled over."""
    return _root(problem.__cause__) if isinstance(problem.__cause__, Exception) else problem


def _export(shown: _Shown, inputs: Mapping[str, Tensor], path: Path) -> None:
    # A size of 1 would be taken for one that is always 1.
    values = tuple(torch.cat([x] * 2)[:2] if x.dim() else x for x in inputs.values())
    sizes = tuple(dict.fromkeys(range(min(x.dim(), 2)), torch.export.Dim.DYNAMIC) for x in values)
    program = torch.onnx.export(
        shown, values, dynamo=True, dynamic_shapes=(sizes,), input_names=list(inputs), verbose=False
    )
    if program is None or len(program.model.graph.outputs) != len(shown.met.places):
        raise ValueError(f"{len(shown.met.places)} taps, {program and len(program.model.graph.outputs)} outputs")
    program.save(str(path), external_data=True)
