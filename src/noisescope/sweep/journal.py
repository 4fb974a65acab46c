"""Lines that survive: appends to a file of its own, line by line to the disk, and reads the files of all writers.

What a line says is the store's business.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

from noisescope.core.errors import NoisescopeError

SUFFIX, UNFINISHED = ".jsonl", ".part"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Never an existing file, and no translation of line ends where the system would do that.
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
# `{"check":"0123abcd",` comes before the part of the line that the checksum is of.
_HEAD = re.compile(rb'\{"check":"([0-9a-f]{8})",')


class RunFolderError(NoisescopeError):
    """A run folder cannot be opened, read or written, or it holds another run."""


def seal(body: str) -> bytes:
    """One line of JSON from the members of an object, with the checksum of what follows it as first member."""
    rest = f"{body}}}".encode()
    return b'{"check":"%08x",%b\n' % (zlib.crc32(rest), rest)


def unseal(line: bytes) -> str | None:
    """The whole text of a sealed line without its line end, None if it is not what `seal` wrote."""
    head = _HEAD.match(line)
    if head is None or int(head[1], 16) != zlib.crc32(line[head.end() :]):
        return None
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


class Journal:
    """The lines that one process adds to a folder: `PREFIX-HOST-PID-RANDOM.jsonl`, made by the first line."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        self._file: int | None = None
        self._end = 0

    def append(self, line: bytes) -> None:
        """Add a line. When this returns, it is on the disk; when it raises, no part of it is left."""
        try:
            if self._file is None:
                self._file, self._end = self._create(), 0
            write_whole(self._file, line)
            os.fsync(self._file)
        except OSError as problem:
            self._abandon()
            raise cannot_write(self._folder, problem) from problem
        except BaseException:
            self._abandon()
            raise
        self._end += len(line)

    def close(self) -> None:
        """Give the file back; a later line starts another one."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _create(self) -> int:
        host = re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname())[:64]
        name = f"{self._prefix}-{host}-{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
        file = os.open(self._folder / name, NEW_FILE, 0o666)
        sync_folder(self._folder)
        return file

    def _abandon(self) -> None:
        """Cut off what was written of a line, and never touch the file again, in case it could not be cut off."""
        if self._file is None:
            return
        try:
            os.ftruncate(self._file, self._end)
        except OSError:
            pass  # a torn last line, which readers pass over
        finally:
            self.close()


def write_whole(file: int, data: bytes) -> None:
    """Write all bytes: a full disk may take the first part of them before it refuses."""
    while data:
        data = data[os.write(file, data) :]


def put(path: Path, data: bytes, *, replace: bool = True) -> None:
    """A whole file or none, whenever the process is ended; what is there already stays if it is not to be replaced."""
    part = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}{UNFINISHED}")
    try:
        _write_new(part, data)
        _rename(part, path, replace=replace)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _write_new(path: Path, data: bytes) -> None:
    file = os.open(path, NEW_FILE, 0o666)
    try:
        write_whole(file, data)
        os.fsync(file)
    finally:
        os.close(file)


def _rename(part: Path, path: Path, *, replace: bool) -> None:
    if replace:
        part.replace(path)
        return
    try:
        path.hardlink_to(part)
    except FileExistsError:
        pass  # the other one was first, and is what counts
    except OSError:
        # A file system without links; two processes in the same instant would then both go on.
        part.rename(path)


def sync_folder(folder: Path) -> None:
    """Bring a new name in a folder to the disk, where folders can be opened at all."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse; there the name is safe when the file is
    finally:
        os.close(handle)


def cannot_write(folder: Path, problem: OSError) -> RunFolderError:
    """What to tell the user about a write that failed."""
    if problem.errno in _FULL:
        seen, remedy = "no space left", "Free some space and repeat the command to go on."
    elif problem.errno in _CLOSED:
        seen, remedy = f"not writable ({problem.strerror})", "Make it writable, or name another folder."
    else:
        seen, remedy = f"cannot be written ({problem})", "Repeat the command to go on, or name another folder."
    return RunFolderError(f"{folder}: {seen}. All that was written before is kept. {remedy}")


class Tail:
    """What one file of lines has gained since it was last asked. A torn last line is not there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._number = 0

    def new_lines(self) -> Iterator[tuple[int, str]]:
        """Whole new lines with their numbers; a line that is damaged and not the last one is an error."""
        pending = self._rest().split(b"\n")
        torn = pending.pop()
        for place, line in enumerate(pending):
            text = unseal(line)
            if text is None:
                self._refuse_unless_last(len(pending) - place == 1 and not torn)
                return
            self._number += 1
            self._offset += len(line) + 1
            yield self._number, text

    def _rest(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                return file.read()
        except OSError as problem:
            raise RunFolderError(f"{self._path}: cannot be read ({problem.strerror}).") from problem

    def _refuse_unless_last(self, last: bool) -> None:
        # A machine that loses power may leave a last line of the right length with holes in it.
        if not last:
            raise RunFolderError(
                f"{self._path}, line {self._number + 1}: damaged; expected a line as it was written, with its "
                "checksum. Restore the file from a copy, or delete that line: its trial will be run again."
            )
