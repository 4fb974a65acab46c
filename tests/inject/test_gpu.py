"""The GPU's kernel against the CPU's: the same numbers, the same landing, honest counts. Needs a GPU with Triton."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import noisescope as ns
from cases import batch, make
from noisescope.core.vocabulary import FAULT_KINDS, KINDS
from noisescope.inject import gpu, native
from noisescope.inject.keyed import CHUNK, Draw, portable_normal

GPU = torch.device("cuda", 0)
CASES = list(itertools.product(("gaussian", "uniform"), (True, False), (1e-4, 0.05, 3.0, 1e20)))
SIZES = (1, 16, 31, 33, 2048, 100_003)
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
    # What inductor recommends for speed is not to be followed where results are compared.
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
]


def odd_values(count: int, dtype: torch.dtype) -> Tensor:
    y = torch.randn(count, generator=torch.Generator().manual_seed(count)) * 3
    for place, value in enumerate((math.inf, math.nan, 0.0, -0.0, 1e-40, -math.inf, 3e38)):
        y[7 * place : 7 * place + 1] = value
    return y.to(dtype)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.cpu().view(BITS[one.dtype]), other.cpu().view(BITS[other.dtype]))


def perturb(y: Tensor, scale: float, shape: str, relative: bool, *, plain: bool) -> list[float]:
    sums = torch.zeros(4, dtype=torch.float64, device=GPU)
    gpu.perturb_(y, 5, scale, gpu.Manner(shape, relative, plain), sums)  # type: ignore[arg-type]
    return sums.tolist()


def test_the_kernel_is_there() -> None:
    assert gpu.why_not(0) is None


@pytest.mark.parametrize("count", [*SIZES, CHUNK + 77])
def test_streams_are_those_of_the_cpu_to_the_bit(count: int) -> None:
    like = torch.empty(count)
    assert torch.equal(Draw(11).normal(like.to(GPU)).cpu(), Draw(11).normal(like))
    assert torch.equal(Draw(11).uniform(like.to(GPU)).cpu(), Draw(11).uniform(like))


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(("shape", "relative", "scale"), CASES)
def test_bfloat16_is_perturbed_as_on_the_cpu(count: int, shape: str, relative: bool, scale: float) -> None:
    here = odd_values(count, torch.bfloat16)
    there = here.to(GPU)
    sums = perturb(there, scale, shape, relative, plain=False)
    landed = native.perturb_(here, 5, scale, shape, relative)  # type: ignore[arg-type]
    assert same_bits(there, here)
    if count <= 32768:
        assert sums[:2] == [landed.elements, landed.changed]
        assert sums[2:] == pytest.approx([landed.error_squares, landed.value_squares], rel=1e-9)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(("shape", "relative", "scale"), CASES)
def test_plain_float32_is_perturbed_as_on_the_cpu(count: int, shape: str, relative: bool, scale: float) -> None:
    here = odd_values(count, torch.float32)
    there = here.to(GPU)
    perturb(there, scale, shape, relative, plain=True)
    native.perturb_(here, 5, scale, shape, relative)  # type: ignore[arg-type]
    assert same_bits(there, here)


# Far below an ulp few values move, so that the smallest scales of short formats are known less well.
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float32, 1e-7), (torch.float32, 1e-5), (torch.float16, 1e-4), (torch.bfloat16, 1e-3)]
    + [(dtype, 0.05) for dtype in BITS],
)
@pytest.mark.parametrize("kind", ["relative_gaussian", "relative_uniform"])
def test_noise_keeps_its_strength(dtype: torch.dtype, scale: float, kind: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512)).to(GPU, dtype)
    x = torch.randn(8192, 512, device=GPU, dtype=dtype)
    with torch.no_grad(), ns.inject(model, ns.noise(kind, scale)) as handle:
        model(x)
    assert handle.stats.realised == pytest.approx(scale, rel=0.03)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"exp_lut", "low_precision_accumulation"}))
def test_every_kind_runs_and_zero_changes_no_bit(kind: str) -> None:
    made = ns.fault if kind in FAULT_KINDS else ns.noise
    model = make("llama").to(GPU)
    inputs = {name: value.to(GPU) for name, value in batch().items()}
    with torch.no_grad():
        clean = model(**inputs).logits
        with ns.inject(model, made(kind, 0.0)):
            assert torch.equal(model(**inputs).logits, clean)
        with ns.inject(model, made(kind, 0.3), operators=["linear"]):
            assert not torch.equal(model(**inputs).logits, clean)


def test_a_tensor_that_is_not_contiguous_gets_the_noise_of_its_copy() -> None:
    whole = torch.randn(64, 96, device=GPU)
    copy = whole.t().contiguous()
    perturb(whole.t(), 0.1, "gaussian", True, plain=True)
    perturb(copy, 0.1, "gaussian", True, plain=True)
    assert torch.equal(whole.t(), copy)


def test_normal_numbers_are_normal() -> None:
    from scipy import stats

    drawn = Draw(3).normal(torch.empty(1 << 20, device=GPU)).double().cpu().numpy()
    assert stats.kstest(drawn, "norm").pvalue > 0.001
    assert abs(stats.kurtosis(drawn)) < 0.02
    assert torch.allclose(
        Draw(3).normal(torch.empty(999, device=GPU)).cpu(), portable_normal(999, 3, GPU).cpu(), atol=2e-6
    )


def test_gradients_get_noise_and_compiled_graphs_the_noise_of_eager() -> None:
    model = make("qwen2").to(GPU)
    inputs = {name: value.to(GPU) for name, value in batch().items()}
    with ns.inject(model, ns.noise(), phases=("forward", "backward")) as handle:
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
    assert handle.stats.total_forward == handle.stats.total_backward == 28
    compiled = torch.compile(model, fullgraph=True)
    found = []
    for one in (model, compiled):
        with torch.no_grad(), ns.inject(one, ns.noise(scale=0.2), seed=4):
            found.append(one(**inputs).logits)
    assert torch.allclose(*found, rtol=1e-3, atol=1e-4)


def test_no_cuda_graph_replays_its_noise() -> None:
    model = torch.compile(make("llama").to(GPU), mode="reduce-overhead")
    inputs = {name: value.to(GPU) for name, value in batch().items()}
    with torch.no_grad(), ns.inject(model, ns.noise(scale=0.2)) as handle:
        seen = [model(**inputs).logits.clone() for _ in range(6)]
    assert all(not torch.equal(one, other) for one, other in itertools.combinations(seen, 2))
    assert handle.stats.total_forward == 6 * 28
