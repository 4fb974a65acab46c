"""The native kernel against torch: the same numbers, the same landing, and honest counts; and how it is built."""

import itertools
import math
import os
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from noisescope.core.errors import BadInputError, NoisescopeError
from noisescope.inject import native
from noisescope.inject.keyed import CHUNK, Draw, portable_normal, portable_uniform
from noisescope.inject.keys import mix
from noisescope.inject.native import Landed, normal_, perturb_, uniform_

CPU = torch.device("cpu")
SIZES = (0, 1, 15, 16, 31, 33, 1000, 1024, 16_384, 100_003)
SHAPES = ("gaussian", "uniform")
LARGEST = torch.finfo(torch.float32).max
CASES = [*itertools.product(SHAPES, (True, False))]

pytestmark = pytest.mark.skipif(not any(native._compilers()), reason="no C compiler on this machine")


def noise(count: int, key: int, scale: float, shape: str) -> torch.Tensor:
    if shape == "gaussian":
        return portable_normal(count, key, CPU) * scale
    return (portable_uniform(count, key, CPU) - 0.5) * (scale * math.sqrt(12))


def perturbed(y: torch.Tensor, key: int, scale: float, shape: str, relative: bool) -> torch.Tensor:
    n = noise(y.numel(), key, scale, shape).view(y.shape)
    moved = torch.addcmul(y, y, n) if relative else y + n
    return torch.where(y.isfinite(), moved.clamp(-LARGEST, LARGEST), y)


def rounded(y: torch.Tensor, error: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """bfloat16 values plus an error whose second moment survives the rounding, straight from the formula."""
    v, e = y.double(), error.double()
    exponent = torch.where(v == 0, torch.tensor(-126.0), v.abs().log2().floor()).clamp(min=-126)
    ulp = torch.exp2(exponent.double() - 7)
    t = e.abs() / ulp
    f = t.floor()
    k = f + (uniform < (t**2 - f**2) / (2 * f + 1))
    kept = torch.where(t < 2**20, e.sign() * k * ulp, e)
    limit = torch.finfo(torch.bfloat16).max
    return (v + kept).clamp(-limit, limit).float().bfloat16()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("count", SIZES)
def test_fills_equal_the_reference(count: int) -> None:
    got = torch.full((count,), math.nan)
    normal_(got, 11)
    torch.testing.assert_close(got, portable_normal(count, 11, CPU), rtol=1e-6, atol=2e-6)
    uniform_(got, 11)
    assert torch.equal(got, portable_uniform(count, 11, CPU))


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(("shape", "relative"), CASES)
@pytest.mark.parametrize("scale", [1e-3, 0.7, 1e20])
def test_perturbing_equals_the_reference(count: int, shape: str, relative: bool, scale: float) -> None:
    y = torch.randn(count, generator=torch.Generator().manual_seed(count))
    expected = perturbed(y, 5, scale, shape, relative)
    perturb_(y, 5, scale, shape, relative)  # type: ignore[arg-type]
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=3e-6 * max(1.0, scale))


@pytest.mark.parametrize(("shape", "relative"), CASES)
def test_a_second_chunk_equals_the_reference(shape: str, relative: bool) -> None:
    y = torch.ones(CHUNK + 5003)
    perturb_(y, 5, 0.1, shape, relative)  # type: ignore[arg-type]
    reference = 1 + noise(CHUNK + 5003, 5, 0.1, shape)
    torch.testing.assert_close(y[CHUNK - 3000 :], reference[CHUNK - 3000 :], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("shape", "relative"), CASES)
def test_every_path_gives_the_same_bits(shape: str, relative: bool) -> None:
    """An infinity sends its block down the careful path; the values beside it must not notice."""
    calm = torch.randn(50_000)
    upset = calm.clone()
    upset[::1024] = math.inf
    for y in (calm, upset):
        perturb_(y, 3, 0.1, shape, relative)  # type: ignore[arg-type]
    differ = (calm != upset).nonzero().flatten()
    assert torch.equal(differ, torch.arange(0, 50_000, 1024))
    whole = torch.randn(50_000)
    start = whole[:777].clone()
    for y in (whole, start):
        perturb_(y, 3, 0.1, shape, relative)  # type: ignore[arg-type]
    assert torch.equal(whole[:777], start)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "relative"), CASES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e30, -1e300])
def test_non_finite_stays_and_finite_stays_finite(dtype: torch.dtype, shape: str, relative: bool, scale: float) -> None:
    largest, least = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    odd = torch.tensor([math.inf, -math.inf, math.nan, largest, -largest, 0.0, -0.0, least, least / 64, 1e19, 1e20, -1])
    y = torch.cat([odd.to(dtype).repeat(500), torch.randn(60_000).to(dtype)])
    before = y.clone()
    done = perturb_(y, 8, scale, shape, relative)  # type: ignore[arg-type]
    finite = before.isfinite()
    assert torch.equal(y.isfinite(), finite)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(y.view(bits)[~finite], before.view(bits)[~finite])
    assert 0 < done.elements <= int(finite.sum()) and math.isfinite(done.error_squares)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "relative"), CASES)
def test_scale_zero_changes_no_bit(dtype: torch.dtype, shape: str, relative: bool) -> None:
    y = torch.cat([torch.tensor([-0.0, 0.0, math.nan, math.inf]).repeat(5000), torch.randn(50_000)]).to(dtype)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    before = y.clone()
    for scale in (0.0, -0.0, 1e-60):
        done = perturb_(y, 8, scale, shape, relative)  # type: ignore[arg-type]
        assert torch.equal(y.view(bits), before.view(bits))
        assert done.elements > 0 and done.changed == 0 and done.error_squares == 0 and done.value_squares > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_small_tensor_is_measured_whole(dtype: torch.dtype) -> None:
    y = torch.randn(3001).to(dtype)
    y[7], y[9] = math.nan, 0.0
    before = y.clone()
    done = perturb_(y, 1, 1e-3, "gaussian", True)
    finite = before.isfinite()
    b, a = before[finite].double(), y[finite].double()
    assert done.elements == 3000 and done.changed == int((a != b).sum())
    assert done.error_squares == pytest.approx(float(((a - b) ** 2).sum()), rel=1e-12)
    assert done.value_squares == pytest.approx(float((b**2).sum()), rel=1e-12)


def test_a_large_tensor_is_measured_by_lot() -> None:
    """The measured blocks must not fall on the same columns of every row, and must give the ratio of the whole."""
    rows, columns = 1024, 4096
    y = torch.where(torch.arange(columns) % 4096 < 1024, 10.0, 1.0).repeat(rows, 1)
    done = perturb_(y, 1, 0.01, "gaussian", True)
    assert done.elements == rows * columns // 32
    assert done.value_squares / done.elements == pytest.approx(0.25 * 100 + 0.75, rel=0.35)
    assert done.error_squares / done.value_squares == pytest.approx(1e-4, rel=0.05)
    assert done.changed / done.elements > 0.999


def test_what_was_asked_is_what_landed() -> None:
    for shape, relative, dtype in itertools.product(SHAPES, (True, False), (torch.float32, torch.bfloat16)):
        for scale in (1e-3, 0.03):
            y = torch.randn(1 << 19).to(dtype)
            done = perturb_(y, mix(2, 1), scale, shape, relative)  # type: ignore[arg-type]
            basis = done.value_squares if relative else done.elements
            assert done.error_squares / basis == pytest.approx(scale**2, rel=0.15)


@pytest.mark.parametrize(("shape", "relative"), CASES)
@pytest.mark.parametrize("scale", [1e-4, 1e-3, 0.02, 0.5, 30.0, 1e20])
def test_bfloat16_lands_as_the_formula_says(shape: str, relative: bool, scale: float) -> None:
    count = 40_001
    y = (torch.randn(count) * torch.logspace(-38, 6, count)).bfloat16()
    y[::100] = 0
    n = noise(count, 6, scale, shape)
    expected = rounded(y, y.float() * n if relative else n, portable_uniform(count, mix(6, 1), CPU))
    got = y.clone()
    perturb_(got, 6, scale, shape, relative)  # type: ignore[arg-type]
    # A probability that lies within float32 rounding of the uniform goes either way.
    strange = (got.view(torch.int16) != expected.view(torch.int16)) & (got != expected)
    assert float(strange.double().mean()) < 2e-4


def test_bfloat16_keeps_the_second_moment_where_nearest_rounding_would_swallow_the_noise() -> None:
    y = torch.full((1 << 20,), 1.37, dtype=torch.bfloat16)
    before = float(y[0])
    swallowed = (y.float() * (1 + 1e-3 * portable_normal(1 << 20, 0, CPU))).bfloat16()
    assert float((swallowed != y).float().mean()) < 0.01
    perturb_(y, 0, 1e-3, "gaussian", True)
    realised = (y.double() - before).square().mean().sqrt() / before
    assert float(realised) == pytest.approx(1e-3, rel=0.02)
    assert abs(float((y.double() - before).mean())) < 4 * before * 1e-3 / 2**10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_threads_changes_nothing(dtype: torch.dtype) -> None:
    results: list[tuple[torch.Tensor, Landed]] = []
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        y = torch.ones(1_000_003, dtype=dtype)
        results.append((y, perturb_(y, 4, 0.1, "gaussian", True)))
    for y, done in results[1:]:
        assert torch.equal(y, results[0][0]) and done == results[0][1]


def test_threads_of_python_may_call_at_once() -> None:
    expected = torch.empty(200_000)
    normal_(expected, 1)
    got = [torch.empty(200_000) for _ in range(8)]
    workers = [threading.Thread(target=normal_, args=(out, 1)) for out in got]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(torch.equal(out, expected) for out in got)


def test_autograd_goes_on_with_the_perturbed_value() -> None:
    x = torch.ones(10, requires_grad=True)
    y = x.exp()
    perturb_(y, 1, 0.1, "gaussian", True)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y.detach())
    with torch.inference_mode():
        perturb_(torch.ones(10), 1, 0.1, "gaussian", True)


def test_a_part_of_a_storage_is_perturbed_alone() -> None:
    whole = torch.ones(3000)
    perturb_(whole[1001:2001], 1, 0.1, "gaussian", True)
    assert bool((whole[:1001] == 1).all()) and bool((whole[2001:] == 1).all())
    assert float((whole[1001:2001] != 1).float().mean()) > 0.99


@pytest.mark.parametrize(
    "call",
    [
        lambda: normal_(torch.empty(4, dtype=torch.bfloat16), 1),
        lambda: uniform_(torch.empty(4, 4).t(), 1),
        lambda: perturb_(torch.empty(4, dtype=torch.float64), 1, 0.1, "gaussian", True),
        lambda: perturb_(torch.empty(8)[::2], 1, 0.1, "gaussian", True),
        lambda: perturb_(torch.empty(4, device="meta"), 1, 0.1, "gaussian", True),
        lambda: perturb_(torch.empty(4), 1, math.nan, "gaussian", True),
        lambda: perturb_(torch.empty(4), 1, math.inf, "gaussian", True),
        lambda: perturb_(torch.empty(4), 1, 0.1, "normal", True),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_worked_with_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(BadInputError):
        call()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache folder of its own and a kernel that is not looked for yet."""
    monkeypatch.setenv("NOISESCOPE_CACHE", str(tmp_path))
    for name in ("NOISESCOPE_NATIVE", "CC"):
        monkeypatch.delenv(name, raising=False)
    native._found_once.cache_clear()
    yield tmp_path
    native._found_once.cache_clear()


def built(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


def test_the_kernel_is_built_once(fresh: Path) -> None:
    assert built(fresh) == []
    assert native.available() and native.why_not() is None
    first = {path: path.stat().st_mtime_ns for path in fresh.rglob("*.so")}
    assert len(first) == 1 and len(built(fresh)) == 1
    native._found_once.cache_clear()
    assert native.available()
    assert {path: path.stat().st_mtime_ns for path in fresh.rglob("*.so")} == first


def test_it_can_be_switched_off(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOISESCOPE_NATIVE", "0")
    assert not native.available() and "NOISESCOPE_NATIVE" in str(native.why_not())
    with pytest.raises(NoisescopeError, match="NOISESCOPE_NATIVE"):
        normal_(torch.empty(4), 1)
    assert torch.equal(Draw(2).normal(torch.empty(9)), portable_normal(9, 2, CPU))
    assert built(fresh) == []


def test_no_compiler_is_a_reason(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    assert not native.available() and "no C compiler" in str(native.why_not())


def test_a_compiler_that_fails_is_a_reason(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = fresh / "broken-cc"
    broken.write_text("#!/bin/sh\necho some noise\necho 'licence expired' >&2\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", f"{broken} --flag")
    assert not native.available()
    assert "broken-cc --flag failed: licence expired" in str(native.why_not())
    assert built(fresh) == ["broken-cc"] and capfd.readouterr() == ("", "")


def test_a_cache_that_cannot_be_written_is_done_without(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = fresh / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("NOISESCOPE_CACHE", str(blocked))
    assert native.available() and built(fresh) == ["file"]


def test_a_damaged_kernel_in_the_cache_is_done_without(fresh: Path) -> None:
    assert native.available()
    (damaged,) = fresh.rglob("*.so")
    damaged.unlink()
    damaged.write_bytes(b"not a library")
    native._found_once.cache_clear()
    assert native.available()


def test_a_kernel_with_other_numbers_is_refused(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "KNOWN_UNIFORM", (1, 2, 3))
    assert not native.available() and "other numbers" in str(native.why_not())


def test_the_known_numbers_are_the_reference() -> None:
    expected = (portable_uniform(len(native.KNOWN_UNIFORM), 0, CPU) * 2**24).tolist()
    assert tuple(expected) == native.KNOWN_UNIFORM


def test_several_may_build_at_once(fresh: Path) -> None:
    compiler, source, together = next(native._compilers()), native.SOURCE.read_bytes(), threading.Barrier(4)

    def build() -> object:
        together.wait()
        return native._built(compiler, native.FLAGS, source)

    with ThreadPoolExecutor(4) as pool:
        kernels = [pool.submit(build) for _ in range(4)]
    assert all(isinstance(kernel.result(), native._Kernel) for kernel in kernels)
    assert len(built(fresh)) == 1


def test_the_source_compiles_without_a_warning(fresh: Path) -> None:
    compiler = next(native._compilers())
    command = [*compiler, *native.FLAGS, "-Wall", "-Wextra", "-Werror", str(native.SOURCE), "-o", str(fresh / "x.so")]
    subprocess.run([*command, "-lm"], check=True, capture_output=True)


def test_importing_compiles_nothing(fresh: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        subprocess.run([sys.executable, "-c", "import noisescope.inject.keyed"], check=True, env=dict(os.environ))
    assert built(fresh) == []
