"""Captures what a system makes of some inputs into a portable file: what `noisescope.capture` does.

Nothing is compared here. All that is kept is computed on the host, whatever the device.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError
from noisescope.core.version import VERSION
from noisescope.measure.calling import accepts, device_of
from noisescope.measure.capture_file import Capture, Entry, Manifest, fitted, write_capture
from noisescope.measure.head import is_compiled
from noisescope.measure.sketch import LINES, ROWS, Sketcher
from noisescope.model.load import fingerprint
from noisescope.runs.exported import Exported
from noisescope.sweep.dithering import Clean, answer_of, clean_of
from noisescope.sweep.evaluating import evaluating
from noisescope.sweep.laying import Laid
from noisescope.sweep.tapping import Tap, Tapping

Batch = Mapping[str, Any]
# More tokens change the answer to the last bit by less than its own scatter; of fewer, so many draws at most.
DITHERED_TOKENS, DITHERS = 256, 8
MEGABYTES = 50.0
_SHORTER = (torch.bfloat16, torch.float16)
_TAKING_PART = ("transformers", "torch_npu", "onnxruntime", "torchao")


@dataclass(frozen=True)
class Keeping:
    """What a capture keeps. `full` are patterns of taps (path, or path:role) of which every row is kept.

    Without `dither` the answer to the last bit is not measured, and a comparison has to go by the dtype alone.
    """

    full: tuple[str, ...] = ()
    lines: int = LINES
    rows: int = ROWS
    megabytes: float = MEGABYTES
    dither: bool = True
    seed: int = 0

    def keeps_all(self, key: str) -> bool:
        """Whether every row of a tap is kept."""
        path = key.rpartition(":")[0]
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.full for name in (key, path))


def capture(
    model: nn.Module,
    batches: Sequence[Batch],
    path: str | Path,
    *,
    keeping: Keeping | None = None,
    system: str = "",
    name: str = "",
) -> Path:
    """Run a model on batches and write what it made of them into one file; returns its path.

    `name` and `system` are for people: what the model is called and how it runs.
    """
    return write_capture(captured(model, batches, keeping or Keeping(), system=system, name=name), path)


def captured(
    model: nn.Module, batches: Sequence[Batch], keeping: Keeping, *, system: str = "", name: str = ""
) -> Capture:
    """The capture of a model on batches, in memory."""
    asked = checked(batches)
    bare = getattr(model, "_orig_mod", model)
    tapping = model if isinstance(model, Exported) else Tapping(bare, coarse=is_coarse(model))
    with evaluating(bare), torch.no_grad():
        met = _Met(keeping)
        for batch in asked:
            with tapping.watching(met, mask_of(batch)):
                model(**inputs_of(bare, batch))
        answers = {}
        if isinstance(tapping, Tapping) and keeping.dither and not closed(model):
            answers = _answers(tapping, asked, dtype_of(bare))
    manifest = Manifest(
        model=fingerprint(bare),
        inputs=inputs_hash(asked),
        device=str(device_of(bare)),
        dtype=_name(dtype_of(bare)),
        system=system or ("onnx" if isinstance(model, Exported) else "compiled" if is_coarse(model) else "eager"),
        name=name,
        seed=keeping.seed,
        tokens=sum(_tokens(batch) for batch in asked),
        layers=tapping.layout.layers,
        versions=versions(),
        taps=met.entries(),
        dithers=tuple(answers),
    )
    sketches = {key: one.result() for key, one in met.sketchers.items()}
    return fitted(Capture(manifest, sketches, answers), keeping.megabytes * 1e6)


def closed(model: nn.Module) -> str:
    """Why nothing can be put in the place of a tensor inside a model; empty if it can."""
    if isinstance(model, Exported):
        return "A graph runs as a whole: its operators cannot be given the inputs of the reference."
    return "Compiled layers are seen at their borders alone." if is_coarse(model) else ""


def is_coarse(model: nn.Module) -> bool:
    """Whether some of a model is compiled, so that it is seen at the borders of its layers alone."""
    return is_compiled(model) or any(getattr(m, "_compiled_call_impl", None) is not None for m in model.modules())


class _Met:
    """Every tap that was met, with its sketcher, in the order of the run."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self.taps: dict[str, Tap] = {}
        self.sketchers: dict[str, Sketcher] = {}

    def __call__(self, tap: Tap, given: Laid) -> None:
        if tap.key not in self.taps:
            keeping = self._keeping
            self.taps[tap.key] = tap
            self.sketchers[tap.key] = Sketcher(
                keeping.seed, lines=keeping.lines, rows=keeping.rows, keeps_all=keeping.keeps_all(tap.key)
            )
        self.sketchers[tap.key].update(given.rows)

    def entries(self) -> tuple[Entry, ...]:
        """One for each tap."""
        found = []
        for key, tap in self.taps.items():
            sketch = self.sketchers[key].result()
            site = tap.site
            found.append(Entry(site.path, tap.role, site.layer, site.operator, sketch.count, sketch.width, sketch.mark))
        return tuple(found)


def _answers(tapping: Tapping, batches: Sequence[Batch], dtype: torch.dtype) -> dict[str, dict[str, Tensor]]:
    clean = cleans_of(tapping, batches)
    coarser = [short for short in _SHORTER if torch.finfo(short).eps > torch.finfo(dtype).eps]
    return {_name(one): answer_of(tapping, clean, one) for one in (dtype, *coarser)}


def cleans_of(tapping: Tapping, batches: Sequence[Batch]) -> list[Clean]:
    """What a system shows on the first batches: on which, and how often, it is to be asked how it answers to a bit.

    Of few tokens the answer of one draw is too small in some channel by chance, so those are asked again.
    """
    found, seen = list[Clean](), 0
    for batch in batches:
        few = few_of(batch, DITHERED_TOKENS - seen)
        found.append(clean_of(tapping, runner(tapping.model, few), mask_of(few)))
        seen += _tokens(few)
        if seen >= DITHERED_TOKENS:
            break
    return found * min(DITHERS, math.ceil(DITHERED_TOKENS / max(seen, 1)))


def runner(model: nn.Module, batch: Batch) -> Callable[[], None]:
    """A call that runs a model on a batch."""

    def run() -> None:
        model(**inputs_of(model, batch))

    return run


def few_of(batch: Batch, tokens: int) -> dict[str, Any]:
    """The first rows of a batch, as many as have tokens enough."""
    lengths = [x.shape for x in batch.values() if isinstance(x, Tensor) and x.dim() > 1]
    rows, length = (lengths[0][0], lengths[0][1]) if lengths else (1, 1)
    most = max(1, tokens // max(length, 1))
    return {n: x[:most] if isinstance(x, Tensor) and x.dim() and len(x) == rows else x for n, x in batch.items()}


def checked(batches: Sequence[Batch]) -> list[Batch]:
    """The batches, if they are any."""
    if isinstance(batches, Mapping | Tensor) or not batches or not all(isinstance(b, Mapping) for b in batches):
        raise BadInputError("batches: expected a list of at least one dict of tensors, such as [{'input_ids': ids}].")
    return list(batches)


def inputs_of(model: nn.Module, batch: Batch) -> dict[str, Any]:
    """What the model is called with, on its device."""
    device = device_of(model)
    # A cache would make every run begin where the last one ended.
    more = {"use_cache": False} if "use_cache" not in batch and accepts(model, "use_cache") else {}
    moved = {n: x.to(device) if isinstance(x, Tensor) else x for n, x in batch.items() if n != "labels"}
    return {**moved, **more}


def mask_of(batch: Batch) -> Tensor | None:
    """Which tokens of a batch are not padding; None if all are."""
    mask = batch.get("attention_mask")
    return mask if isinstance(mask, Tensor) and mask.dim() == 2 else None


def inputs_hash(batches: Sequence[Batch]) -> str:
    """A hash of all tensors of the batches, the same on every machine and device."""
    seen = hashlib.sha256()
    for batch in batches:
        for name in sorted(name for name in batch if name != "labels"):
            x = batch[name]
            seen.update(f"{name} {getattr(x, 'dtype', '')} {tuple(getattr(x, 'shape', ()))}".encode())
            if isinstance(x, Tensor):
                seen.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
            else:
                seen.update(repr(x).encode())
    return seen.hexdigest()[:32]


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of most of a model's weights; float32 for one that has none of its own."""
    sizes: dict[torch.dtype, int] = {}
    for weight in model.parameters():
        if weight.is_floating_point():
            sizes[weight.dtype] = sizes.get(weight.dtype, 0) + weight.numel()
    return max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tokens(batch: Batch) -> int:
    mask = mask_of(batch)
    if mask is not None:
        return int(mask.sum())
    first = next((x for x in batch.values() if isinstance(x, Tensor)), None)
    return 0 if first is None else int(first.numel() if first.dim() == 2 else len(first))


def versions() -> tuple[tuple[str, str], ...]:
    """What the answers of this machine depend on."""
    found = {"noisescope": VERSION, "python": platform.python_version(), "torch": torch.__version__}
    # What is installed and was not loaded took no part.
    loaded = [name for name in _TAKING_PART if name in sys.modules]
    return (*found.items(), *((name, version(name)) for name in loaded))
