"""The run folder: what was asked, every reading on the disk as it comes, blobs, and findings that can be deleted.

It decides nothing about trials, and deletes or overwrites nothing that it did not write.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from noisescope.core.codec import SCHEMA, decode, encode, from_plain, key_of, parse, to_plain
from noisescope.core.errors import BadInputError
from noisescope.core.records import Params, Reading
from noisescope.sweep.journal import (
    SUFFIX,
    UNFINISHED,
    Journal,
    RunFolderError,
    Tail,
    cannot_write,
    put,
    seal,
)

if TYPE_CHECKING:
    import numpy as np

R = TypeVar("R")
Arrays = Mapping[str, "np.ndarray[Any, Any]"]
ABOUT = "about.json"
_READINGS, _BLOBS = "readings", "blobs"
_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class About:
    """What a run folder belongs to. `asked` is for people; every other field has to be the same to go on with a run.

    `model` is a fingerprint and `workload` a content hash; `settings` are all others that change an answer and are
    not in a trial, the number of threads for one.
    """

    model: str
    workload: str
    settings: Params = ()
    device: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    asked: str = ""


@dataclass(frozen=True)
class Request:
    """What people asked for, in words of their own: the command, and what they call the model and the workload.

    `remark` is what a reader of the answer has to know first, such as that a fault was planted.
    """

    command: str = ""
    model: str = ""
    workload: str = ""
    remark: str = ""


@dataclass(frozen=True)
class _Line:
    check: str
    key: str
    reading: Reading


class Store:
    """A run folder, made or resumed by being opened. Without `about` it is only opened, whatever it belongs to."""

    def __init__(self, folder: str | Path, about: About | None = None) -> None:
        self.folder = Path(folder)
        try:
            if about is not None and not self._about_path.exists():
                self._make(about)
            self.about = self._read_about()
        except OSError as problem:
            raise cannot_write(self.folder, problem) from problem
        if about is not None:
            _compare(self.folder, self.about, about)
        self._journal = Journal(self.folder, _READINGS)
        self._tails: dict[Path, Tail] = {}
        self._known: dict[str, tuple[tuple[bool, str, int], Reading]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file of readings; the store can still be used."""
        self._journal.close()

    def append(self, reading: Reading) -> None:
        """Write a reading. When this returns, it is on the disk."""
        self._journal.append(seal(f'"key":"{key_of(reading.trial)}","reading":{encode(reading)}'))

    def readings(self) -> dict[str, Reading]:
        """Every reading in the folder by the key of its trial, those that others have added meanwhile included.

        Of several for one trial a good one is taken before a failed one, otherwise the first by file name and line.
        """
        try:
            paths = sorted(path for path in self.folder.iterdir() if _holds_readings(path.name))
        except OSError as problem:
            raise RunFolderError(f"{self.folder}: cannot be read ({problem.strerror}).") from problem
        for path in paths:
            self._read_on(path)
        return {key: reading for key, (_, reading) in self._known.items()}

    def _read_on(self, path: Path) -> None:
        tail = self._tails.setdefault(path, Tail(path))
        for number, text in tail.new_lines():
            try:
                line = decode(_Line, text)
            except BadInputError as problem:
                raise RunFolderError(f"{path}, line {number}: not a reading. {problem}") from problem
            rank = (line.reading.error is not None, path.name, number)
            if line.key not in self._known or rank < self._known[line.key][0]:
                self._known[line.key] = rank, line.reading

    def save_blob(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
        """Keep arrays that are too large for a line; their name is the hash of their content."""
        from safetensors.numpy import save

        # `save` would write the memory of a transposed array as if it were in order.
        data = save({key: array.copy(order="C") for key, array in arrays.items()})
        name = hashlib.sha256(data).hexdigest()[:32]
        folder = self.folder / _BLOBS
        try:
            folder.mkdir(exist_ok=True)
        except OSError as problem:
            raise cannot_write(self.folder, problem) from problem
        self._put(folder / f"{name}.safetensors", data)
        return name

    def load_blob(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays that `save_blob` kept under this name."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        path = self.folder / _BLOBS / f"{_checked(name)}.safetensors"
        try:
            data = path.read_bytes()
        except OSError as problem:
            raise RunFolderError(f"{path}: cannot be read ({problem.strerror}).") from problem
        if hashlib.sha256(data).hexdigest()[:32] != name:
            raise RunFolderError(f"{path}: damaged; its content does not match its name. Delete it and repeat the run.")
        try:
            return dict(load(data))
        except SafetensorError as problem:
            raise RunFolderError(f"{path}: no arrays ({problem}). Delete it and repeat the run.") from problem

    def keep(self, name: str, key: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Keep what was observed once, under a name; the key says of what, so that another question finds nothing."""
        text = json.dumps({"schema": SCHEMA, "key": key, "blob": self.save_blob(arrays)}, indent=1)
        self._put(self.folder / f"kept-{_checked(name)}.json", f"{text}\n".encode())

    def kept(self, name: str, key: str, read: Callable[[Arrays], R]) -> R | None:
        """What `read` makes of what is kept under this name for this key; None if there is nothing, or for another key.

        A file that `read` can make nothing of is refused, whatever it says about it.
        """
        path = self.folder / f"kept-{_checked(name)}.json"
        try:
            plain = parse(path.read_text(encoding="utf-8"))
            if (plain["schema"], plain["key"]) != (SCHEMA, key):
                return None
            return read(self.load_blob(plain["blob"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError) as problem:
            raise RunFolderError(
                f"{path}: not what noisescope keeps there ({problem}). Delete it and repeat the run."
            ) from problem

    def save_finding(self, name: str, found: object, request: Request | None = None) -> Path:
        """Write what was concluded, in place of what was concluded before. It can be deleted at any time."""
        path = self._finding_path(name)
        plain = {"schema": SCHEMA, "finding": to_plain(found)}
        if request is not None:
            plain["request"] = to_plain(request)
        text = json.dumps(plain, indent=1, sort_keys=True, allow_nan=False)
        self._put(path, f"{text}\n".encode())
        return path

    def load_finding(self, name: str, kind: type[R]) -> R | None:
        """What was concluded under this name; None if nothing was."""
        return self._part_of_finding(name, "finding", kind)

    def request_of(self, name: str) -> Request | None:
        """What was asked when this was concluded; None if nothing was, or nobody noted it."""
        return self._part_of_finding(name, "request", Request)

    def _part_of_finding(self, name: str, part: str, kind: type[R]) -> R | None:
        path = self._finding_path(name)
        try:
            plain = parse(path.read_text(encoding="utf-8"))
            _check_schema(self.folder, plain.get("schema") if isinstance(plain, dict) else None)
            # A finding has to be there; a request need not.
            return None if part == "request" and part not in plain else cast(R, from_plain(kind, plain.get(part)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as problem:
            raise RunFolderError(
                f"{path}: not what noisescope writes there ({problem}). Delete it and repeat the command."
            ) from problem

    def _finding_path(self, name: str) -> Path:
        return self.folder / f"finding-{_checked(name)}.json"

    @property
    def _about_path(self) -> Path:
        return self.folder / ABOUT

    def _make(self, about: About) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise RunFolderError(f"{self.folder}: a file; expected a run folder, an empty folder or a new name.")
        self.folder.mkdir(parents=True, exist_ok=True)
        held = sorted(path.name for path in self.folder.iterdir() if not _is_unfinished(path.name))
        # Another process may have made the run meanwhile.
        if held and not self._about_path.exists():
            raise RunFolderError(
                f"{self.folder}: not a run folder; it holds {', '.join(held[:3])} and no {ABOUT}. Nothing in it was "
                "touched. Name an empty folder or a new one."
            )
        text = json.dumps({"schema": SCHEMA, **to_plain(about)}, indent=1, allow_nan=False)
        self._put(self._about_path, f"{text}\n".encode(), replace=False)

    def _put(self, path: Path, data: bytes, *, replace: bool = True) -> None:
        """A whole file or none, whenever the process is ended."""
        try:
            put(path, data, replace=replace)
        except OSError as problem:
            raise cannot_write(self.folder, problem) from problem

    def _read_about(self) -> About:
        if not self._about_path.is_file():
            raise RunFolderError(f"{self.folder}: not a run folder; expected {ABOUT} in it.")
        try:
            plain = parse(self._about_path.read_text(encoding="utf-8"))
            schema = plain.pop("schema", None) if isinstance(plain, dict) else None
            _check_schema(self.folder, schema)
            about: About = from_plain(About, plain)
        except OSError as problem:
            raise RunFolderError(f"{self._about_path}: cannot be read ({problem.strerror}).") from problem
        except ValueError as problem:
            raise RunFolderError(
                f"{self._about_path}: not what noisescope writes there ({problem}). If this is a run folder, restore "
                "the file from a copy; otherwise name another folder."
            ) from problem
        return about


def _holds_readings(name: str) -> bool:
    return name.startswith(f"{_READINGS}-") and name.endswith(SUFFIX)


def _is_unfinished(name: str) -> bool:
    # A process that was killed while it made a run left this, and may be making it still.
    return name.startswith(f".{ABOUT}-") and name.endswith(UNFINISHED)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInputError(f"name {name!r}: expected letters, digits, - and _ only.")
    return name


def _check_schema(folder: Path, schema: object) -> None:
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise ValueError("no schema number")
    if schema != SCHEMA:
        age, remedy = ("a newer", "Upgrade") if schema > SCHEMA else ("an older", "Use that version of")
        raise RunFolderError(
            f"{folder}: written by {age} noisescope (schema {schema}; this one has {SCHEMA}). {remedy} noisescope, "
            "or name another folder."
        )


def _compare(folder: Path, there: About, here: About) -> None:
    differences = [
        f"{name} {_short(old)} there, {_short(new)} here"
        for name, old, new in _pairs(there, here)
        if to_plain(old) != to_plain(new)
    ]
    if differences:
        raise RunFolderError(
            f"{folder}: belongs to another run: {'; '.join(differences)}. Its readings cannot be compared with new "
            "ones. Name another folder, or ask for what this one was made for."
        )


def _pairs(there: About, here: About) -> list[tuple[str, Any, Any]]:
    """Every name that has to agree with its values, settings and versions each by its own name."""
    pairs: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(About):
        old, new = getattr(there, field.name), getattr(here, field.name)
        if field.name in ("settings", "versions"):
            names = sorted({**dict(old), **dict(new)})
            pairs += [(name, dict(old).get(name), dict(new).get(name)) for name in names]
        elif field.name != "asked":
            pairs.append((field.name, old, new))
    return pairs


def _short(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
