"""The run folder: what is written stays, what is torn is passed over, what is damaged or foreign is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.benches import expected, texts, trials
from noisescope.core.codec import SCHEMA, decode, encode, key_of
from noisescope.core.errors import BadInputError, NoisescopeError
from noisescope.core.records import Finding, Reading
from noisescope.sweep.journal import RunFolderError
from noisescope.sweep.store import About, Request, Store

ABOUT = About(
    "model-a", "workload-b", (("batch", 4), ("dtype", "bf16")), "cpu", (("torch", "2.13.0"),), "diagnose tiny"
)
ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "tests" / "contracts" / "driver.py"


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def filled(folder: Path, count: int = 5) -> dict[str, str]:
    with Store(folder, ABOUT) as store:
        for trial in trials(count):
            store.append(expected(trial))
        return texts(store.readings())


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("readings-*.jsonl")
    return path


def test_readings_come_back_as_they_were_written_odd_floats_included(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    written = filled(folder, 7)
    assert written == {key_of(trial): encode(expected(trial)) for trial in trials(7)}
    for store in (Store(folder, ABOUT), Store(folder)):
        assert texts(store.readings()) == written
        assert store.about == ABOUT
    for line in only_file(folder).read_text().splitlines():
        strict = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} in strict JSON"))
        assert set(strict) == {"check", "key", "reading"}


@given(values=st.lists(st.floats(), max_size=5), nonfinite=st.integers(0), error=st.none() | st.text())
def test_any_reading_survives_the_codec(values: list[float], nonfinite: int, error: str | None) -> None:
    reading = Reading(trials(1)[0], tuple(values), error, nonfinite, injections=abs(nonfinite))
    again = decode(Reading, encode(reading))
    assert repr(again) == repr(reading) and encode(again) == encode(reading)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "1" + "0" * 400, '"x"', "true", "null", "[" * 100_000])
def test_a_value_that_the_codec_never_writes_is_refused(value: str) -> None:
    text = encode(Reading(trials(1)[0], (0.5,))).replace("0.5", value)
    with pytest.raises(BadInputError):
        decode(Reading, text)


def test_opening_writes_no_file_of_readings(tmp_path: Path) -> None:
    for _ in range(3):
        Store(tmp_path / "run", ABOUT).readings()
    assert list(content(tmp_path / "run")) == ["about.json"]


def test_a_good_reading_is_taken_before_a_failed_one(tmp_path: Path) -> None:
    good, failed = expected(trials(1)[0]), Reading(trials(1)[0], error="out of memory")
    for i, order in enumerate([(good, failed), (failed, good), (failed, good, failed)]):
        folder = tmp_path / str(i)
        for reading in order:
            with Store(folder, ABOUT) as store:
                store.append(reading)
                shown = store.readings()
            assert texts(shown) == texts(Store(folder, ABOUT).readings())
        assert list(texts(shown).values()) == [encode(good)]


def test_what_another_process_adds_is_seen_by_the_next_question(tmp_path: Path) -> None:
    one, two = Store(tmp_path, ABOUT), Store(tmp_path, ABOUT)
    for i, trial in enumerate(trials(6)):
        (one, two)[i % 2].append(expected(trial))
        assert len(one.readings()) == len(two.readings()) == i + 1


def test_two_processes_write_to_one_folder_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    script = (
        "import sys; from contracts.benches import *; from noisescope.sweep.store import *\n"
        "print(flush=True); input()\n"
        "with Store(sys.argv[1], About('m', 'w')) as store:\n"
        "    for trial in trials(100, workload=sys.argv[2]): store.append(expected(trial))\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, folder, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        for name in "ab"
    ]
    for process in running:
        process.stdout.readline()
    # Both make the folder, and both write, from here on.
    assert [process.communicate(b"\n") and process.returncode for process in running] == [0, 0]
    both = {key_of(t): encode(expected(t)) for name in "ab" for t in trials(100, workload=name)}
    assert texts(Store(folder).readings()) == both
    assert len(list(folder.glob("readings-*.jsonl"))) == 2


@pytest.mark.parametrize("holes", [b"", b"\0" * 40, b"\0" * 40 + b"\n"])
def test_a_torn_last_line_is_a_trial_that_did_not_finish(tmp_path: Path, holes: bytes) -> None:
    written = filled(tmp_path, 3)
    path = only_file(tmp_path)
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    keys = list(written)
    for cut in range(start, len(whole)):
        path.write_bytes(whole[:cut] + holes)
        assert list(Store(tmp_path, ABOUT).readings()) == keys[:2]
    with Store(tmp_path, ABOUT) as store:
        store.append(expected(trials(3)[2]))
        assert texts(store.readings()) == written
    assert path.read_bytes() == whole[:cut] + holes, "the torn line is left as it is"


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    filled(tmp_path, 4)
    path = only_file(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"0.14", b"0.15")
    path.write_bytes(b"".join(lines))
    with pytest.raises(RunFolderError, match=rf"{path.name}, line 2: damaged; expected .*delete that line"):
        Store(tmp_path, ABOUT).readings()
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    assert len(Store(tmp_path, ABOUT).readings()) == 3


def test_a_line_of_an_unknown_form_is_named(tmp_path: Path) -> None:
    from noisescope.sweep.journal import seal

    filled(tmp_path, 1)
    strange = '"key":"0","reading":{"trial":{},"surprise":1}'
    with only_file(tmp_path).open("ab") as file:
        file.write(seal(strange) * 2)
    with pytest.raises(RunFolderError, match=r"line 2: not a reading"):
        Store(tmp_path).readings()


edits = st.lists(
    st.one_of(
        st.tuples(st.just("cut"), st.integers(0, 5000), st.integers(0, 400)),
        st.tuples(st.just("put"), st.integers(0, 5000), st.binary(min_size=1, max_size=8)),
        st.tuples(
            st.just("over"), st.integers(0, 5000), st.sampled_from([b"\n", b"\0", b"1", b"{", b'"', b"\xff", b"[" * 99])
        ),
        st.tuples(st.just("end"), st.integers(0, 5000), st.just(0)),
        st.tuples(st.just("twice"), st.integers(0, 5000), st.integers(0, 2000)),
    ),
    min_size=1,
    max_size=3,
)


def garbled(data: bytes, edits: list[tuple[str, int, object]]) -> bytes:
    for what, where, extra in edits:
        at = where % (len(data) + 1)
        if what == "cut":
            data = data[:at] + data[at + extra :]
        elif what == "put":
            data = data[:at] + extra + data[at:]
        elif what == "over":
            data = data[:at] + extra + data[at + len(extra) :]
        elif what == "twice":
            data = data[:at] + data[max(0, at - extra) :]
        else:
            data = data[:at]
    return data


@pytest.fixture(scope="module")
def sample() -> Iterator[tuple[Path, bytes, bytes, dict[str, str]]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = filled(folder, 6)
        yield folder, only_file(folder).read_bytes(), (folder / "about.json").read_bytes(), written


@settings(max_examples=400, deadline=None)
@given(edits=edits)
def test_garbled_readings_are_refused_or_right(sample, edits) -> None:
    folder, whole, _, written = sample
    only_file(folder).write_bytes(garbled(whole, edits))
    before = content(folder)
    try:
        found = texts(Store(folder, ABOUT).readings())
    except NoisescopeError as problem:
        assert only_file(folder).name in str(problem) and ", line " in str(problem)  # noqa: PT017
    else:
        assert found.items() <= written.items()
    assert content(folder) == before
    only_file(folder).write_bytes(whole)


@settings(max_examples=300, deadline=None)
@given(edits=edits)
def test_a_garbled_about_is_refused_or_right(sample, edits) -> None:
    folder, _, about, _ = sample
    (folder / "about.json").write_bytes(garbled(about, edits))
    before = content(folder)
    try:
        found = Store(folder, ABOUT)
    except NoisescopeError as problem:
        assert str(folder) in str(problem)  # noqa: PT017
    else:
        assert dataclasses.replace(found.about, asked="") == dataclasses.replace(ABOUT, asked="")
    assert content(folder) == before
    (folder / "about.json").write_bytes(about)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "model-x"}, "model model-a there, model-x here"),
        ({"workload": "y"}, "workload workload-b there, y here"),
        ({"device": "cuda"}, "device cpu there, cuda here"),
        ({"settings": (("batch", 4), ("dtype", "fp16"))}, "dtype bf16 there, fp16 here"),
        ({"settings": (("batch", 4), ("dtype", "bf16"), ("seed", 1))}, "seed not set there, 1 here"),
        ({"settings": (("batch", 4.0), ("dtype", "bf16"))}, None),
        ({"settings": (("dtype", "bf16"), ("batch", 4))}, None),
        ({"versions": (("torch", "2.14.0"),)}, "torch 2.13.0 there, 2.14.0 here"),
        ({"asked": "diagnose tiny --workers 2"}, None),
    ],
)
def test_a_folder_goes_on_with_its_own_run_only(tmp_path: Path, change: dict, message: str | None) -> None:
    written = filled(tmp_path)
    before = content(tmp_path)
    about = dataclasses.replace(ABOUT, **change)
    if message is None:
        assert texts(Store(tmp_path, about).readings()) == written
    else:
        with pytest.raises(RunFolderError, match=f"belongs to another run: {message}.*Name another folder"):
            Store(tmp_path, about)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("schema", "message"),
    [(SCHEMA + 1, "a newer noisescope.*Upgrade"), (SCHEMA - 1, "an older"), ("1", "no schema"), (True, "no schema")],
)
def test_a_folder_of_another_schema_is_refused(tmp_path: Path, schema: object, message: str) -> None:
    filled(tmp_path)
    path = tmp_path / "about.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": schema, "new": 1}))
    before = content(tmp_path)
    for about in (ABOUT, None):
        with pytest.raises(RunFolderError, match=message):
            Store(tmp_path, about)
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", ["thesis.tex", "about.json", "readings-mine.jsonl", ".git"])
def test_what_is_no_run_folder_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"name": "mine"}')
    before = content(tmp_path)
    with pytest.raises(RunFolderError, match=r"not a run folder|not what noisescope writes there"):
        Store(tmp_path, ABOUT)
    with pytest.raises(RunFolderError, match=r"not a run folder|not what noisescope writes there"):
        Store(tmp_path)
    with pytest.raises(RunFolderError):
        Store(tmp_path / name, ABOUT)
    assert content(tmp_path) == before


def test_a_folder_that_is_not_there_can_only_be_made(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        Store(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_a_killed_process_left_while_it_made_the_folder_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / ".about.json-12-abcd.part").write_text('{"sch')
    filled(tmp_path)
    assert (tmp_path / ".about.json-12-abcd.part").exists()


def test_files_of_the_user_in_a_run_folder_are_left_alone(tmp_path: Path) -> None:
    written = filled(tmp_path)
    for name in ("notes.txt", "readings-of-mine.txt", "finding.json"):
        (tmp_path / name).write_text("mine")
    with Store(tmp_path, ABOUT) as store:
        store.save_finding("operator", ())
        assert texts(store.readings()) == written
    assert (tmp_path / "notes.txt").read_text() == (tmp_path / "finding.json").read_text() == "mine"


def test_findings_can_be_deleted_and_written_again(tmp_path: Path) -> None:
    store = Store(tmp_path, ABOUT)
    finding = Finding("layer 3 is fragile", "high", (("worst", float("inf")),), ("abc",))
    assert store.load_finding("operator", Finding) is None
    path = store.save_finding("operator", finding)
    assert store.load_finding("operator", Finding) == finding
    first = path.read_bytes()
    path.unlink()
    assert store.save_finding("operator", finding).read_bytes() == first
    assert store.save_finding("operator", finding).read_bytes() == first
    with pytest.raises(BadInputError, match="letters"):
        store.save_finding("../operator", finding)
    assert sorted(content(tmp_path)) == ["about.json", "finding-operator.json"]
    path.write_text('{"schema": 1, "finding": 7}')
    with pytest.raises(RunFolderError, match=r"finding-operator\.json"):
        store.load_finding("operator", Finding)


def test_a_finding_says_what_was_asked(tmp_path: Path) -> None:
    store, finding = Store(tmp_path, ABOUT), Finding("layer 3 is fragile", "high")
    assert store.request_of("operator") is None
    store.save_finding("operator", finding)
    assert store.request_of("operator") is None
    request = Request("noisescope diagnose m", "m", "questions.jsonl", "nothing was planted")
    path = store.save_finding("operator", finding, request)
    assert store.request_of("operator") == request and store.load_finding("operator", Finding) == finding
    path.write_text('{"schema": 1, "finding": 7, "request": 7}')
    with pytest.raises(RunFolderError, match=r"finding-operator\.json"):
        store.request_of("operator")


def test_blobs_are_named_by_their_content_and_checked(tmp_path: Path) -> None:
    store = Store(tmp_path, ABOUT)
    arrays = {"rms": np.arange(12, dtype=np.float32).reshape(3, 4).T, "count": np.array([3], dtype=np.int64)}
    name = store.save_blob(arrays)
    assert name == store.save_blob(dict(reversed(arrays.items())))
    again = store.load_blob(name)
    assert set(again) == set(arrays) and all(np.array_equal(again[k], arrays[k]) for k in arrays)
    path = tmp_path / "blobs" / f"{name}.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\x01")
    with pytest.raises(RunFolderError, match="damaged"):
        store.load_blob(name)
    with pytest.raises(RunFolderError, match="cannot be read"):
        store.load_blob("0" * 32)


def environment() -> dict[str, str]:
    """Without measuring coverage, which could not write its own files on a full disk either."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    return {**own, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}


def drive(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DRIVER), str(folder), *more]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)


def check_a_full_disk(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    """Nothing written before is lost, and nothing is left of the line that did not fit."""
    assert done.returncode == 2, done.stderr
    assert "no space left. All that was written before is kept. Free some space" in done.stderr
    assert "Traceback" not in done.stderr
    data = only_file(folder).read_bytes()
    assert data.endswith(b"\n")
    kept = Store(folder).readings()
    assert 3 < len(kept) == len(data.splitlines()) < 100
    assert texts(kept).items() <= {key_of(t): encode(expected(t)) for t in trials(100)}.items()


def test_a_file_that_may_not_grow_costs_one_reading_at_most(tmp_path: Path) -> None:
    """The system takes the first part of a line before it refuses, as a full disk does."""
    folder = tmp_path / "run"
    check_a_full_disk(folder, drive(folder, "--count", "100", "--largest-file", "4000"))
    assert drive(folder, "--count", "100").returncode == 0
    assert len(Store(folder).readings()) == 101


def test_a_device_that_is_full_is_told_and_the_file_left_for_another(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no device here that is always full")
    with Store(tmp_path, ABOUT) as store:
        store.append(expected(trials(2)[0]))
        file = os.open(full, os.O_WRONLY)
        os.dup2(file, store._journal._file)
        os.close(file)
        with pytest.raises(RunFolderError, match="no space left"):
            store.append(expected(trials(2)[1]))
        store.append(expected(trials(2)[1]))
        assert len(store.readings()) == 2


def in_a_namespace(script: str) -> list[str]:
    """A command that may mount, in a namespace of its own; where that is not permitted the test is skipped."""
    unshare = shutil.which("unshare")
    command = [unshare or "unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    if (
        unshare is None
        or subprocess.run([*command, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting is not permitted here")
    return [*command, script]


def test_a_full_disk_costs_one_reading_at_most(tmp_path: Path) -> None:
    folder, disk = tmp_path / "copy", tmp_path / "disk"
    disk.mkdir()
    script = (
        f"mount -t tmpfs -o size=16k none {disk}\n"
        f"{sys.executable} {DRIVER} {disk}/run --count 100 || code=$?\n"
        f"cp -r {disk}/run {folder}\n"
        "exit $code"
    )
    done = subprocess.run(in_a_namespace(script), env=environment(), capture_output=True, text=True, check=False)
    check_a_full_disk(folder, done)


def test_a_disk_that_is_full_from_the_start_is_told(tmp_path: Path) -> None:
    script = (
        f"mount -t tmpfs -o size=16k none {tmp_path}\n"
        f"head -c 16384 /dev/zero > {tmp_path}/mine || true\n"
        f"{sys.executable} {DRIVER} {tmp_path}/run || code=$?\n"
        f"ls -A {tmp_path}/run\n"
        "exit $code"
    )
    done = subprocess.run(in_a_namespace(script), env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no space left" in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == "begun\n", "nothing is left in the folder"


def test_a_finished_run_on_a_read_only_disk_can_be_read_but_not_added_to(tmp_path: Path) -> None:
    assert drive(tmp_path / "run", "--count", "4").returncode == 0
    before = content(tmp_path)
    script = (
        f"mount --bind {tmp_path} {tmp_path}\n"
        f"mount -o remount,bind,ro {tmp_path}\n"
        f"{sys.executable} {DRIVER} {tmp_path}/run --count 4\n"
        f"{sys.executable} {DRIVER} {tmp_path}/run --count 5 || echo $?\n"
        f"{sys.executable} {DRIVER} {tmp_path}/new || echo $?\n"
    )
    done = subprocess.run(in_a_namespace(script), env=environment(), capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert "how many are good" in lines[1] and lines[3] == lines[5] == "2"
    assert done.stderr.count("not writable (Read-only file system)") == 2 and "Traceback" not in done.stderr
    assert content(tmp_path) == before


def test_what_is_kept_comes_back_for_its_key_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([1, 2], dtype=np.uint8)}
    with Store(folder, ABOUT) as store:
        assert store.kept("profile", "key-1", dict) is None
        store.keep("profile", "key-1", arrays)
        found = Store(folder).kept("profile", "key-1", dict)
        assert found is not None and found.keys() == arrays.keys()
        assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
        assert store.kept("profile", "key-2", dict) is None
        store.keep("profile", "key-2", {"a": np.zeros(1)})
        assert store.kept("profile", "key-1", dict) is None and store.kept("profile", "key-2", dict) is not None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1, "key": "k"}', '{"schema": 1, "key": "k", "blob": 3}'])
def test_a_damaged_note_of_what_is_kept_is_refused(tmp_path: Path, text: str) -> None:
    store = Store(tmp_path / "run", ABOUT)
    (tmp_path / "run" / "kept-profile.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"kept-profile\.json"):
        store.kept("profile", "k", dict)
