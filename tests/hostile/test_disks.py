"""Disks that are full, files that may not grow, folders that are read-only: told in one line, and nothing is lost."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from hostile.children import Asked, Children, Told
from hostile.damage import content
from hostile.models import saved
from hostile.test_killed import results, trials

ALL = "--data demo:texts --samples 4 --seeds 1 --noise-scale 0.2"
DIAGNOSE = shlex.split(f"diagnose ../model {ALL} --out run")
GATE = shlex.split(f"gate ../model {ALL} --out gate --save-baseline baseline.json --history history.jsonl")


@pytest.fixture(scope="module")
def place(children: Children, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not children.can_mount:
        pytest.skip("mounting is not permitted here")
    path = tmp_path_factory.mktemp("disks")
    saved(path / "model")
    return path


@pytest.fixture(scope="module")
def whole(children: Children, place: Path) -> Path:
    """What the commands leave where nothing is in their way."""
    (folder := place / "whole").mkdir()
    for words in (DIAGNOSE, GATE):
        assert (told := children.run(Asked(str(folder), words))).status == 0, told.err
    return folder


def refused(told: Told, *words: str) -> None:
    assert told.status == 2 and "Traceback" not in told.err, told.err
    last = told.err.splitlines()[-1]
    assert last.startswith("noisescope: ") and all(word in last for word in words), told.err
    assert "not foreseen" not in last


@pytest.mark.parametrize("kilobytes", [0, 24, *(pytest.param(size, marks=pytest.mark.slow) for size in (8, 80))])
def test_a_disk_that_fills_up_loses_nothing_and_is_gone_on_with(
    children: Children, place: Path, whole: Path, tmp_path: Path, kilobytes: int
) -> None:
    disk = place / f"disk-{kilobytes}"
    disk.mkdir()
    children.shell(f"mount -t tmpfs -o size=50m none {disk}; head -c 2M /dev/zero > {disk}/others")
    children.shell(f"mount -o remount,size={2048 + kilobytes}k {disk}")
    refused(children.run(Asked(str(disk), DIAGNOSE)), "no space left", "All that was written before is kept")
    children.shell(f"cp -r {disk} {tmp_path}/full; mount -o remount,size=50m {disk}")
    held = trials(tmp_path / "full" / disk.name / "run")
    told = children.run(Asked(str(disk), DIAGNOSE))
    assert told.status == 0, told.err
    children.shell(f"cp -r {disk}/run {tmp_path}/run")
    assert results(tmp_path / "run") == results(whole / "run")
    assert trials(tmp_path / "run") == trials(whole / "run") and held <= trials(whole / "run")


@pytest.mark.parametrize("size", [300, 3000])
def test_files_that_may_not_grow_leave_what_was_there(children: Children, place: Path, whole: Path, size: int) -> None:
    folder = Path(shutil.copytree(whole, place / f"limited-{size}"))
    before = content(folder)
    for words in (["report", "run"], GATE):
        refused(children.run(Asked(str(folder), words, file_limit=size)))
        assert content(folder) == before
    assert children.run(Asked(str(folder), ["report", "run"])).status == 0
    assert content(folder).keys() > before.keys()


def test_a_read_only_disk_is_told_and_what_is_there_can_be_read(children: Children, place: Path, whole: Path) -> None:
    disk = Path(shutil.copytree(whole, place / "shut"))
    before = content(disk)
    children.shell(f"mount --bind {disk} {disk}; mount -o remount,bind,ro {disk}")
    assert children.run(Asked(str(disk), ["status", "run"])).status == 0
    new = shlex.split(f"diagnose ../model {ALL} --out new")
    more = shlex.split(f"diagnose ../model {ALL} --window-size 2 --out run")
    found = shlex.split("compare ../model ../model --samples 1 --out new")
    for words in (new, more, DIAGNOSE, GATE, ["report", "run"], found):
        refused(children.run(Asked(str(disk), words)), "Read-only file system")
    refused(children.run(Asked(str(disk), shlex.split("capture ../model --samples 1 --out a.capture"))), "Read-only")
    assert content(disk) == before


WRITERS = (
    "plan run --target npu",
    "faults run --csv faults.csv",
    "report run --format svg",
    *(
        pytest.param(line, marks=pytest.mark.slow)
        for line in (
            "report run --format md,json",
            "faults run --json cases.json",
            "bits run --no-measure -n 4",
            "smooth ../model --alpha 0.5 -n 8 --out smoothed",
            "locate ../model -n 1 --repeats 2 --out located",
            "robustness ../model --data demo:texts -n 4 --seeds 1 --noise-levels 0,0.1 --out levels",
            "capture ../model --samples 1 --out a.capture",
        )
    ),
)


@pytest.mark.parametrize("line", WRITERS)
def test_every_command_that_writes_tells_a_shut_and_a_full_disk(
    children: Children, place: Path, whole: Path, tmp_path_factory: pytest.TempPathFactory, line: str
) -> None:
    disk = place / tmp_path_factory.mktemp("disk").name
    disk.mkdir()
    children.shell(f"mount -t tmpfs -o size=1m none {disk}; cp -r {whole}/run {disk}; mount -o remount,ro {disk}")
    refused(children.run(Asked(str(disk), shlex.split(line))), "Read-only file system")
    children.shell(f"mount -o remount,rw {disk}; cat /dev/zero > {disk}/others || true")
    told = children.run(Asked(str(disk), shlex.split(line)))
    refused(told)
    assert "o space left" in told.err.splitlines()[-1], told.err
    # What was there is there, and nothing is half written.
    left = f"rm {disk}/others; cd {disk}; test -z \"$(find . -name '*.part')\"; find . -type d -empty -delete"
    children.shell(f"{left}; diff -r run {whole}/run")


def test_a_model_that_does_not_fit_leaves_no_folder(children: Children, tmp_path: Path) -> None:
    saved(tmp_path / "model", 30)
    (place := tmp_path / "place").mkdir()
    words = shlex.split("smooth ../model --alpha 0.5 -n 8 --out smoothed")
    told = children.run(Asked(str(place), words, file_limit=200_000))
    refused(told, "smoothed: no space left")
    assert not content(place)
    assert ".part" not in told.err
