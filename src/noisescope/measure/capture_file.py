"""The file of a capture: what one system made of some inputs, in one safetensors file with a manifest in its header.

It says by itself what it is of. Written whole or not at all; what is torn, foreign or of another schema is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from noisescope.core.codec import from_plain, parse, to_plain
from noisescope.core.errors import BadInputError
from noisescope.measure.sketch import Sketch

FORMAT, SCHEMA = "noisescope-capture", 1
_PARTS = ("figures", "lines", "rows", "full")


@dataclass(frozen=True)
class Entry:
    """One tap: where it is, and how many rows of how many channels went through it. `mark` is a checksum of them."""

    path: str
    role: str
    layer: int | None
    operator: str
    count: int
    width: int
    mark: int

    @property
    def key(self) -> str:
        """What it is matched by."""
        return f"{self.path}:{self.role}"


@dataclass(frozen=True)
class Manifest:
    """What a capture is of. `inputs` is a hash of what the model was given, `model` one of its weights and config.

    `system` says how it was run: eager, compiled, int8, onnx. `dithers` are the dtypes to whose last bit the system's
    answer is known.
    """

    model: str
    inputs: str
    device: str
    dtype: str
    system: str = "eager"
    name: str = ""
    seed: int = 0
    tokens: int = 0
    layers: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    taps: tuple[Entry, ...] = ()
    dithers: tuple[str, ...] = ()
    check: int = 0


@dataclass(frozen=True, eq=False)
class Capture:
    """A capture in memory: its manifest, a sketch per tap, and per dtype the answer to its last bit, per channel."""

    manifest: Manifest
    sketches: Mapping[str, Sketch]
    answers: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    origin: str = "this run"

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The taps by key, in the order in which they ran."""
        return {entry.key: entry for entry in self.manifest.taps}

    @property
    def nbytes(self) -> int:
        """What its tensors take."""
        return sum(x.numel() * x.element_size() for x in _tensors(self).values())


class CaptureError(BadInputError):
    """A file is no capture, or not one that can be used here."""


def fitted(capture: Capture, limit: float) -> Capture:
    """The capture with as many whole rows as fit into a number of bytes; refused if not even two do."""
    least = replace(capture, sketches={key: _with_rows(sketch, 2) for key, sketch in capture.sketches.items()})
    if least.nbytes > limit:
        raise BadInputError(
            f"a capture of this model takes {least.nbytes / 1e6:.1f} MB and the limit is {limit / 1e6:.1f} MB; raise "
            "the limit, or ask for fewer full tensors."
        )
    for most in (12, 8, 6, 4, 3):
        if capture.nbytes <= limit:
            break
        capture = replace(capture, sketches={key: _with_rows(sketch, most) for key, sketch in capture.sketches.items()})
    return capture if capture.nbytes <= limit else least


def _with_rows(sketch: Sketch, most: int) -> Sketch:
    return replace(sketch, rows=sketch.rows[:most].clone())


def write_capture(capture: Capture, path: str | Path) -> Path:
    """Write a capture, in place of whatever is at this path."""
    from safetensors.torch import save

    tensors = _tensors(capture)
    manifest = replace(capture.manifest, check=_check(tensors))
    about = json.dumps({"format": FORMAT, "schema": SCHEMA, **to_plain(manifest)}, allow_nan=False)
    path = Path(path)
    part = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.write(save(tensors, {"noisescope": about}))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as problem:
        raise CaptureError(f"{path}: cannot be written ({problem.strerror}); name another file.") from problem
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return path


def read_capture(path: str | Path) -> Capture:
    """The capture in a file; anything else is refused with the reason."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "pt") as file:
            about = (file.metadata() or {}).get("noisescope", "")
            # The handle offers keys() but is no mapping.
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as problem:
        seen = " ".join(str(problem).split())
        raise CaptureError(
            f"{path}: no capture, or a torn one ({seen}); expected a file made by `noisescope capture`."
        ) from None
    manifest = _manifest(path, about)
    if _check(tensors) != manifest.check:
        raise CaptureError(f"{path}: damaged; its tensors do not match their checksum. Capture again.")
    try:
        return _capture(manifest, tensors, str(path))
    except KeyError as lost:
        raise CaptureError(f"{path}: incomplete; it lacks {lost}. Capture again.") from None


def is_capture(path: str | Path) -> bool:
    """Whether a file says that it is a capture; it may still be damaged."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        return False
    try:
        with safe_open(str(path), "pt") as file:
            return "noisescope" in (file.metadata() or {})
    except (OSError, SafetensorError):
        return False


def _manifest(path: str | Path, text: str) -> Manifest:
    try:
        plain = parse(text) if text else None
        if not isinstance(plain, dict) or plain.pop("format", None) != FORMAT:
            raise CaptureError(f"{path}: a safetensors file, but no capture; make one with `noisescope capture`.")
        schema = plain.pop("schema", None)
        if schema != SCHEMA:
            raise CaptureError(f"{path}: schema {schema!r}; this noisescope reads {SCHEMA}. Capture again with it.")
        found: Manifest = from_plain(Manifest, plain)
    except CaptureError:
        raise
    except ValueError as problem:
        raise CaptureError(f"{path}: its manifest cannot be read ({problem}). Capture again.") from None
    return found


def _tensors(capture: Capture) -> dict[str, Tensor]:
    found = {}
    for number, entry in enumerate(capture.manifest.taps):
        for name in _PARTS:
            tensor = getattr(capture.sketches[entry.key], name)
            if tensor is not None:
                found[f"{number}.{name}"] = tensor.contiguous()
        for dtype in capture.manifest.dithers:
            found[f"{number}.{dtype}"] = capture.answers[dtype][entry.key].contiguous()
    return found


def _capture(manifest: Manifest, tensors: Mapping[str, Tensor], origin: str) -> Capture:
    sketches: dict[str, Sketch] = {}
    answers: dict[str, dict[str, Tensor]] = {dtype: {} for dtype in manifest.dithers}
    for number, entry in enumerate(manifest.taps):
        figures, lines, rows = (tensors[f"{number}.{name}"] for name in _PARTS[:3])
        full = tensors.get(f"{number}.full")
        sketches[entry.key] = Sketch(entry.count, figures, lines, rows, entry.mark, full)
        for dtype in manifest.dithers:
            answers[dtype][entry.key] = tensors[f"{number}.{dtype}"]
    return Capture(manifest, sketches, answers, origin)


def _check(tensors: Mapping[str, Tensor]) -> int:
    mark = 0
    for name in sorted(tensors):
        mark = zlib.crc32(_bytes(tensors[name]), zlib.crc32(name.encode(), mark))
    return mark


def _bytes(x: Tensor) -> bytes:
    return x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""


def require_match(one: Manifest, other: Manifest, origins: Iterable[str]) -> None:
    """Refuse two captures that are not of the same inputs under the same signs."""
    a, b = origins
    if one.inputs != other.inputs:
        raise CaptureError(
            f"{a} and {b}: made from different inputs ({one.inputs[:8]} and {other.inputs[:8]}, {one.tokens} and "
            f"{other.tokens} tokens), so nothing can be compared; capture both with the same --data and --samples."
        )
    if one.seed != other.seed:
        raise CaptureError(f"{a} and {b}: projected with seeds {one.seed} and {other.seed}; capture both with one.")
