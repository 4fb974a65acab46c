"""The file of a capture: whole or not there, refused with the reason when it is not what it should be."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import noisescope as ns
from cases import make
from noisescope.measure.capture_file import is_capture, read_capture
from noisescope.runs.capturing import Keeping, capture


def texts(seed=1, length=16):
    return [{"input_ids": torch.randint(3, 120, (4, length), generator=torch.Generator().manual_seed(seed))}]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return ns.capture(make("llama"), texts(), tmp_path_factory.mktemp("captures") / "a.capture")


def refused(path, *words):
    with pytest.raises(ns.NoisescopeError) as problem:
        read_capture(path)
    message = str(problem.value)
    assert "\n" not in message and str(path) in message
    assert all(word in message for word in words), message


def test_a_capture_says_by_itself_what_it_is_of(made):
    found = read_capture(made).manifest
    assert (found.device, found.dtype, found.system, found.tokens) == ("cpu", "float32", "eager", 64)
    assert found.layers == ("model.layers.0", "model.layers.1")
    assert dict(found.versions)["torch"] == torch.__version__
    entry = next(e for e in found.taps if e.path == "model.layers.1.mlp.down_proj" and e.role == "output")
    assert (entry.layer, entry.operator, entry.count, entry.width) == (1, "linear", 64, 32)
    assert is_capture(made)


def test_two_captures_of_one_system_hold_the_same(made, tmp_path):
    again = capture(make("llama"), texts(), tmp_path / "again")
    assert again.read_bytes() == made.read_bytes()


def test_what_is_kept_is_what_the_model_made(made, tmp_path):
    model, seen = make("llama"), []
    model.model.layers[0].mlp.register_forward_hook(lambda _m, _a, out: seen.append(out.reshape(-1, 32)))
    path = capture(model, texts(), tmp_path / "full", keeping=Keeping(full=("*.0.mlp.down_proj:output",), dither=False))
    held = read_capture(path)
    sketch = held.sketches["model.layers.0.mlp.down_proj:output"]
    assert torch.equal(sketch.full, seen[0])
    assert float(sketch.figure("largest").max()) == pytest.approx(float(seen[0].max()))
    assert [key for key, one in held.sketches.items() if one.full is not None] == [
        "model.layers.0.mlp.down_proj:output"
    ]


@pytest.mark.parametrize("share", [0.001, 0.3, 0.999])
def test_a_torn_file_is_refused(made, tmp_path, share):
    data = made.read_bytes()
    torn = tmp_path / "torn"
    torn.write_bytes(data[: int(len(data) * share)])
    refused(torn, "torn")


def test_a_damaged_file_is_refused(made, tmp_path):
    data = bytearray(made.read_bytes())
    data[-1000] ^= 4
    (tmp_path / "damaged").write_bytes(data)
    refused(tmp_path / "damaged", "checksum")


def test_foreign_files_are_refused(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "weights")
    refused(tmp_path / "weights", "no capture")
    (tmp_path / "text").write_text("hello")
    refused(tmp_path / "text")
    refused(tmp_path / "nothing")
    assert not is_capture(tmp_path / "weights") and not is_capture(tmp_path / "nothing")


def test_a_capture_of_another_schema_is_refused(made, tmp_path):
    plain = {"format": "noisescope-capture", "schema": 99}
    save_file(load_file(made), tmp_path / "later", {"noisescope": json.dumps(plain)})
    refused(tmp_path / "later", "schema 99")
    save_file(load_file(made), tmp_path / "odd", {"noisescope": json.dumps({**plain, "schema": 1})})
    refused(tmp_path / "odd", "manifest", "lacks")


def test_captures_of_other_inputs_or_seeds_are_not_compared(made, tmp_path):
    other = capture(make("llama"), texts(2), tmp_path / "b", keeping=Keeping(dither=False))
    with pytest.raises(ns.NoisescopeError, match="different inputs"):
        ns.compare(made, other)
    other = capture(make("llama"), texts(), tmp_path / "c", keeping=Keeping(dither=False, seed=1))
    with pytest.raises(ns.NoisescopeError, match="seeds 0 and 1"):
        ns.compare(made, other)
    other = capture(make("gpt2"), texts(), tmp_path / "d", keeping=Keeping(dither=False))
    with pytest.raises(ns.NoisescopeError, match="2 of 38 places in common"):
        ns.compare(made, other)


def test_the_size_is_kept_to_and_too_small_a_limit_is_refused(made, tmp_path):
    whole = made.stat().st_size / 1e6
    path = capture(make("llama"), texts(), tmp_path / "small", keeping=Keeping(megabytes=0.75 * whole))
    assert path.stat().st_size <= 0.85 * whole * 1e6
    assert ns.compare(path, made).verdict == ns.compare(made, path).verdict == "pass"
    with pytest.raises(ns.NoisescopeError, match="raise the limit"):
        capture(make("llama"), texts(), tmp_path / "none", keeping=Keeping(megabytes=0.01))
    assert [p.name for p in tmp_path.iterdir()] == ["small"]


def test_more_data_makes_no_larger_file(made, tmp_path):
    path = capture(make("llama"), texts(length=64) * 3, tmp_path / "long")
    assert path.stat().st_size < 1.02 * made.stat().st_size


def test_a_write_that_fails_leaves_what_was_there(made, tmp_path):
    with pytest.raises(ns.NoisescopeError, match="cannot be written"):
        capture(make("llama"), texts(), "/proc/none/a", keeping=Keeping(dither=False))


def test_without_an_answer_to_the_last_bit_the_comparison_says_so(made, tmp_path):
    bare = capture(make("llama"), texts(), tmp_path / "bare", keeping=Keeping(dither=False))
    assert any("dtype alone" in note for note in ns.compare(bare, made).notes)


@pytest.mark.parametrize("wrong", [[], {}, [torch.ones(2)]])
def test_batches_that_are_none_are_refused(tmp_path, wrong):
    with pytest.raises(ns.NoisescopeError, match="list of at least one dict"):
        ns.capture(make("llama"), wrong, tmp_path / "none")
