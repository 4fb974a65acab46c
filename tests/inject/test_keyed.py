"""Keyed streams: what a draw is made of, that streams do not know of each other, and that the normal is one."""

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from scipy import stats
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from noisescope.inject import keyed, native
from noisescope.inject.keyed import CHUNK, Draw, portable_normal, portable_uniform
from noisescope.inject.keys import mix, site_key

CPU = torch.device("cpu")
SIZES = (0, 1, 15, 16, 17, 31, 32, 33, 1000, 1024, 100_003)


def drawn_normal(count: int, key: int, device: torch.device) -> torch.Tensor:
    return Draw(key).normal(torch.empty(count, device=device))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def hash_by_hand(position: int, words: int) -> int:
    low, high = words & 0xFFFFFFFF, words >> 32
    h = (position * 0x9E3779B9 + low) & 0xFFFFFFFF
    h = ((h ^ (h >> 16)) * 0x21F0AAAD + high) & 0xFFFFFFFF
    return ((h ^ (h >> 15)) * 0xD35A2D97) & 0xFFFFFFFF


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """In standard errors of independent streams with variance 1."""
    return abs(float(a.double() @ b.double()) / math.sqrt(len(a)))


def test_keys_are_the_same_in_every_process_and_version() -> None:
    assert (mix(0, 0), mix(1, 2, 3)) == (12035550249420947055, 411002803395772997)
    code = "from noisescope.inject.keys import site_key; print(site_key('layers.3', 'linear', 7))"
    command = [sys.executable, "-c", code]
    other = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "9"}
    )
    assert int(other.stdout) == site_key("layers.3", "linear", 7)


def test_keys_tell_paths_apart() -> None:
    keys = {mix(a, b, c) for a in range(-5, 20) for b in range(-5, 20) for c in range(20)}
    keys |= {mix(a, b) for a in range(-5, 20) for b in range(-5, 20)}
    assert len(keys) == 25 * 25 * 21
    assert all(0 <= key < 1 << 64 for key in keys)
    assert site_key("ab", "c") != site_key("a", "bc") and site_key(1) != site_key("1")
    assert mix(mix(3, 1), 2) == mix(3, 1, 2) and Draw(3).child(1).child(2) == Draw(mix(3, 1, 2))


def test_one_bit_of_seed_or_counter_moves_half_of_the_key() -> None:
    flips = [(mix(1 << i, 0) ^ mix(0, 0)).bit_count() for i in range(64)]
    flips += [(mix(0, 1 << i) ^ mix(0, 0)).bit_count() for i in range(64)]
    assert min(flips) >= 16 and max(flips) <= 48 and abs(np.mean(flips) - 32) < 1.5


def test_uniform_is_the_hash_of_the_position() -> None:
    expected = [(hash_by_hand(i, mix(7, 0)) >> 8) / 2**24 for i in range(50)]
    assert portable_uniform(50, 7, CPU).tolist() == expected
    assert Draw(7).uniform(torch.empty(50)).tolist() == expected


def test_normal_pairs_positions_sixteen_apart() -> None:
    values = portable_normal(64, 7, CPU).tolist()
    for first in (0, 15, 32, 47):
        radius_hash, angle_hash = (hash_by_hand(i, mix(7, 0)) for i in (first, first + 16))
        radius = math.sqrt(-2 * math.log((radius_hash // 2 + 0.5) / 2**31))
        angle = (angle_hash - (angle_hash >> 31 << 32)) / 2**32 * math.pi
        cosine = math.cos(angle) * (-1 if angle_hash & 128 else 1)
        assert values[first] == pytest.approx(radius * math.sin(angle), abs=2e-6)
        assert values[first + 16] == pytest.approx(radius * cosine, abs=2e-6)


@pytest.mark.parametrize("count", SIZES)
def test_a_shorter_draw_is_the_start_of_a_longer_one(count: int) -> None:
    for draw in (portable_normal, portable_uniform):
        assert torch.equal(draw(count, 5, CPU), draw(count + 77, 5, CPU)[:count])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_draw_has_the_shape_of_what_it_is_for(dtype: torch.dtype) -> None:
    like = torch.zeros(3, 5, 7, dtype=dtype).transpose(0, 2)
    for value in (Draw(1).normal(like), Draw(1).uniform(like)):
        assert value.shape == (7, 5, 3) and value.dtype == torch.float32 and value.device == like.device
    assert Draw(1).normal(torch.zeros((), dtype=dtype)).shape == ()
    assert Draw(1).normal(torch.zeros(0, 4, dtype=dtype)).shape == (0, 4)
    meta = Draw(1).normal(torch.empty(3, 2, device="meta"))
    assert meta.shape == (3, 2) and meta.device.type == "meta"


def test_both_implementations_agree() -> None:
    for count in SIZES:
        like = torch.empty(count)
        torch.testing.assert_close(Draw(9).normal(like), portable_normal(count, 9, CPU), rtol=1e-6, atol=2e-6)
        assert torch.equal(Draw(9).uniform(like), portable_uniform(count, 9, CPU))


def test_without_the_kernel_torch_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    assert torch.equal(Draw(9).normal(torch.empty(5, 20)), portable_normal(100, 9, CPU).view(5, 20))
    assert torch.equal(Draw(9).uniform(torch.empty(5, 20)), portable_uniform(100, 9, CPU).view(5, 20))


def test_a_draw_can_be_traced() -> None:
    traced = torch.compile(lambda x: x + Draw(3).normal(x) + Draw(3).uniform(x), backend="eager", fullgraph=True)
    zeros = torch.zeros(40)
    assert torch.equal(traced(zeros), portable_normal(40, 3, CPU) + portable_uniform(40, 3, CPU))
    recorded = make_fx(lambda x: x + Draw(3).normal(x))(zeros)
    assert torch.equal(recorded(zeros), portable_normal(40, 3, CPU))
    with FakeTensorMode():
        assert Draw(3).normal(torch.empty(3, 7)).shape == (3, 7)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    Draw(1).normal(torch.empty(100))
    portable_normal(100, 1, CPU)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("normal", [portable_normal, drawn_normal])
def test_normal_is_normal(normal: Callable[[int, int, torch.device], torch.Tensor]) -> None:
    values = normal(1 << 21, site_key("normal"), CPU).double().numpy()
    test = stats.kstest(values, "norm")
    assert test.statistic < 1e-3 and test.pvalue > 1e-3
    assert abs(stats.kurtosis(values)) < 0.01 and abs(stats.skew(values)) < 0.007
    assert abs(values.mean()) < 4 / math.sqrt(len(values)) and abs(values.std() - 1) < 0.002
    beyond = np.array([(abs(values) > t).mean() for t in (3.0, 4.0, 4.5)])
    assert beyond == pytest.approx([2 * stats.norm.sf(t) for t in (3.0, 4.0, 4.5)], rel=0.3)


def test_the_tail_reaches_beyond_what_a_float_uniform_gives() -> None:
    # 24 bits of radius would end at sqrt(2 * 24 * log 2) = 5.77.
    assert math.sqrt(-2 * math.log(2.0**-32)) == pytest.approx(6.66, abs=0.01)
    values = torch.cat([Draw(mix(0, i)).normal(torch.empty(CHUNK)) for i in range(2)]).abs()
    assert 5.0 < values.max() < 6.67
    assert int((values > 5).sum()) == pytest.approx(2 * CHUNK * 2 * stats.norm.sf(5.0), abs=4 * 4.4)


def test_uniform_is_uniform() -> None:
    values = Draw(site_key("uniform")).uniform(torch.empty(1 << 21)).double().numpy()
    assert values.min() >= 0 and values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_neighbouring_seeds_sites_and_calls_are_unrelated() -> None:
    n = 1 << 18
    keys = [0, 1, 2, 3, mix(0, 0), mix(0, 1), mix(0, 2), mix(1, 0), mix(2, 0), mix(0, 0, 0), mix(0, 0, 1), mix(0, 1, 0)]
    keys += [site_key("layers", i) for i in range(3)] + [-1, 1 << 32, 1 << 63]
    streams = torch.stack([Draw(key).normal(torch.empty(n)) for key in keys]).double()
    for values in (streams, (streams.square() - 1) / math.sqrt(2)):
        related = (values @ values.T / math.sqrt(n)).fill_diagonal_(0)
        # 4 standard errors for one pair of streams; 4.5 for the largest of 153.
        assert related.abs().max() < 4.5


def test_a_stream_is_unrelated_to_itself_shifted() -> None:
    values = Draw(0).normal(torch.empty(1 << 20))
    for lag in (*range(1, 35), 64, 128, 512, 896, 1024, 4096, 14_336, 65_536):
        assert correlation(values[lag:], values[:-lag]) < 4
        assert correlation(values[lag:].square() - 1, values[:-lag].square() - 1) / 2 < 4


def test_neighbouring_seeds_are_not_shifted_copies() -> None:
    a, b = (Draw(seed).normal(torch.empty(1 << 18)).double().numpy() for seed in (0, 1))
    crossed = np.fft.irfft(np.fft.rfft(a) * np.conj(np.fft.rfft(b))) / math.sqrt(len(a))
    assert abs(crossed).max() < 6.2


def test_chunks_do_not_repeat() -> None:
    values = Draw(4).uniform(torch.empty(2 * CHUNK))
    first, second = values[:CHUNK], values[CHUNK:]
    assert correlation((first - 0.5) * math.sqrt(12), (second - 0.5) * math.sqrt(12)) < 4
    assert float((first == second).double().mean()) < 1e-6
    across = values[CHUNK - 500 : CHUNK + 500]
    assert len(across.unique()) > 990


def test_chunks_have_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "CHUNK", 1024)
    values = portable_uniform(2500, 6, CPU)
    assert float(values[1024]) * 2**24 == hash_by_hand(0, mix(6, 1)) >> 8
    assert float(values[2499]) * 2**24 == hash_by_hand(2499 - 2048, mix(6, 2)) >> 8
