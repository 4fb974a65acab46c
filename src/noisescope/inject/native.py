"""Keyed noise by a C kernel for the CPU, compiled on first use for the machine it runs on.

Does not fall back by itself: `available` says whether there is a kernel, `noisescope.inject.keyed` does without.
Nothing is printed, and nothing is compiled or loaded on import.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import math
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from noisescope.core.errors import BadInputError, NoisescopeError, unknown_name

SOURCE = Path(__file__).with_name("native.c")
FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-shared", "-fPIC")
TUNING = ("-march=native", *(("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()))
COMPILE_SECONDS = 60
UNIFORM, RELATIVE, FILL, BFLOAT, UNIT = 1, 2, 4, 8, 16
WIDTHS = {torch.float32: 0, torch.bfloat16: BFLOAT}
FLOAT_LARGEST = torch.finfo(torch.float32).max
THREADED_FROM = 1 << 16
# The first of the uniform stream of key 0, in units of 2^-24; a kernel that gives others is not used.
KNOWN_UNIFORM = (11217199, 9560136, 8766670, 4763181)

Shape = Literal["gaussian", "uniform"]

_lock = threading.Lock()


@dataclass(frozen=True)
class Landed:
    """What a perturbation really did to the finite elements that were measured.

    All are measured in tensors of up to 32768, beyond that one block of 1024 in 32 (in 4 for bfloat16). `changed`
    counts those that moved; the squares are sums over `elements`.
    """

    elements: int
    changed: int
    error_squares: float
    value_squares: float

    def __add__(self, other: Landed) -> Landed:
        return Landed(
            self.elements + other.elements,
            self.changed + other.changed,
            self.error_squares + other.error_squares,
            self.value_squares + other.value_squares,
        )


class _Request(ctypes.Structure):
    """As in native.c; the four numbers at the end are the answer."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("key", ctypes.c_uint64),
        ("team", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("task", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("elements", ctypes.c_double),
        ("changed", ctypes.c_double),
        ("error_squares", ctypes.c_double),
        ("value_squares", ctypes.c_double),
    )


@dataclass(frozen=True)
class _Kernel:
    run: Callable[[object], None]
    team: int | None


def available() -> bool:
    """Whether the kernel can be used on this machine; the first call compiles or loads it."""
    return isinstance(_kernel(), _Kernel)


def why_not() -> str | None:
    """Why there is no kernel, or None when there is one."""
    found = _kernel()
    return None if isinstance(found, _Kernel) else found


def normal_(out: Tensor, key: int) -> None:
    """Fill with the standard normal stream of a key."""
    _check(out, (torch.float32,))
    _run(out, key, 1.0, FILL)


def uniform_(out: Tensor, key: int) -> None:
    """Fill with the uniform stream of a key, in [0, 1)."""
    _check(out, (torch.float32,))
    _run(out, key, 1.0, FILL | UNIFORM | UNIT)


def perturb_(y: Tensor, key: int, scale: float, shape: Shape, relative: bool) -> Landed:
    """Add noise of standard deviation `scale`, or `scale` times |y|, to a float32 or bfloat16 tensor in place.

    Infinities and NaN stay, and no finite value becomes one: it ends at the largest of its type. Autograd is not told:
    what it saved of this tensor is now the perturbed value.
    """
    _check(y, WIDTHS)
    if not math.isfinite(scale):
        raise BadInputError(f"scale {scale!r}: expected a finite number.")
    if shape not in ("gaussian", "uniform"):
        raise unknown_name("shape", shape, ("gaussian", "uniform"))
    task = WIDTHS[y.dtype] | (UNIFORM if shape == "uniform" else 0) | (RELATIVE if relative else 0)
    done = _run(y, key, max(-FLOAT_LARGEST, min(scale, FLOAT_LARGEST)), task)
    return Landed(int(done.elements), int(done.changed), done.error_squares, done.value_squares)


def _check(tensor: Tensor, dtypes: Collection[torch.dtype]) -> None:
    if not tensor.is_cpu or tensor.dtype not in dtypes or not tensor.is_contiguous():
        layout = "contiguous" if tensor.is_contiguous() else "strided"
        raise BadInputError(
            f"a {layout} {tensor.dtype} tensor on {tensor.device}: the kernel takes contiguous CPU tensors of "
            f"{', '.join(map(str, dtypes))}; use noisescope.inject.keyed for others."
        )


def _run(tensor: Tensor, key: int, scale: float, task: int) -> _Request:
    kernel = _kernel()
    if not isinstance(kernel, _Kernel):
        raise NoisescopeError(f"no native kernel ({kernel}); use noisescope.inject.keyed, which does without.")
    count = tensor.numel()
    threads = torch.get_num_threads() if count > THREADED_FROM else 1
    request = _Request(tensor.data_ptr(), count, key, kernel.team, scale, task, threads)
    kernel.run(ctypes.byref(request))
    return request


def _kernel() -> _Kernel | str:
    with _lock:
        return _found_once()


@functools.cache
def _found_once() -> _Kernel | str:
    if os.environ.get("NOISESCOPE_NATIVE") == "0":
        return "NOISESCOPE_NATIVE is 0"
    problem = "no C compiler: none of CC, cc, gcc, clang was found"
    try:
        source = SOURCE.read_bytes()
    except OSError as error:
        return str(error)
    for compiler, flags in itertools.product(_compilers(), ((*FLAGS, *TUNING), FLAGS)):
        kernel = _built(compiler, flags, source)
        if isinstance(kernel, _Kernel):
            return kernel
        problem = kernel
    return problem


def _compilers() -> Iterator[list[str]]:
    """CC alone where it is set, else what is commonly installed."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        path = shutil.which(command[0])
        if path:
            yield [path, *command[1:]]


def _built(compiler: list[str], flags: tuple[str, ...], source: bytes) -> _Kernel | str:
    """The kernel from the cache, or compiled into it; from a private folder where the cache cannot be used."""
    identity = repr((source, compiler, flags, _file_identity(compiler[0]), _processor())).encode()
    name = f"{hashlib.sha256(identity).hexdigest()[:32]}.so"
    try:
        folder = _cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (folder / name).exists():
            _compile(compiler, flags, folder / name)
        return _load(folder / name)
    except subprocess.SubprocessError as error:
        return _compile_problem(compiler, error)
    except (OSError, RuntimeError):
        return _built_privately(compiler, flags, name)


def _built_privately(compiler: list[str], flags: tuple[str, ...], name: str) -> _Kernel | str:
    with tempfile.TemporaryDirectory(prefix="noisescope-") as private:
        try:
            _compile(compiler, flags, Path(private) / name)
            return _load(Path(private) / name)
        except subprocess.SubprocessError as error:
            return _compile_problem(compiler, error)
        except OSError as error:
            return f"the compiled kernel cannot be loaded: {error}"


def _compile(compiler: list[str], flags: tuple[str, ...], target: Path) -> None:
    """Several processes may do this at once: each writes a file of its own, and the last rename wins."""
    handle, path = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    try:
        command = [*compiler, *flags, str(SOURCE), "-o", path, "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_SECONDS, stdin=subprocess.DEVNULL)
        Path(path).replace(target)
    finally:
        Path(path).unlink(missing_ok=True)


def _compile_problem(compiler: list[str], error: subprocess.SubprocessError) -> str:
    said = getattr(error, "stderr", None) or b""
    lines = said.decode(errors="replace").strip().splitlines()
    return f"{' '.join(compiler)} failed: {lines[-1] if lines else error}"


def _load(path: Path) -> _Kernel | str:
    run = ctypes.CDLL(str(path)).noisescope_run
    run.argtypes, run.restype = [ctypes.c_void_p], None
    probe = (ctypes.c_float * len(KNOWN_UNIFORM))()
    request = _Request(ctypes.addressof(probe), len(probe), 0, None, 1.0, FILL | UNIFORM | UNIT, 1)
    run(ctypes.byref(request))
    if tuple(x * 2**24 for x in probe) != KNOWN_UNIFORM:
        return f"{path} gives other numbers than the reference; report this with the compiler's version"
    return _Kernel(run, _team())


def _team() -> int | None:
    """The entry of the OpenMP runtime that torch already runs, if it is a GNU one."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (AttributeError, OSError, TypeError):
        return None


def _cache_folder() -> Path:
    chosen = os.environ.get("NOISESCOPE_CACHE")
    if chosen:
        return Path(chosen) / "native"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "noisescope" / "native"


def _file_identity(path: str) -> tuple[str, int, int]:
    """Stands for the compiler's version, without the cost of asking it."""
    real = Path(path).resolve()
    status = real.stat()
    return str(real), status.st_size, status.st_mtime_ns


_TELLING = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU ")


def _processor() -> str:
    """The model and features of the first processor: what -march=native depends on."""
    lines = [platform.machine()]
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as cpuinfo:
            first = itertools.takewhile(str.strip, cpuinfo)
            lines += [line for line in first if line.startswith(_TELLING)]
    except OSError:
        lines.append(platform.processor())
    return "".join(lines)
