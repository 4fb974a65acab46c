"""Studies: what is asked is run once, whatever ends the command in between; and what is told while it runs."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.benches import Census, NumericBench, expected, log_of, texts, trials
from noisescope.core.codec import decode, encode, key_of
from noisescope.core.records import Finding, Trial
from noisescope.sweep.executors.serial import Serial
from noisescope.sweep.journal import RunFolderError
from noisescope.sweep.progress import Progress, duration, status
from noisescope.sweep.store import About, Store
from noisescope.sweep.study import Interrupted, run_study

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "tests" / "contracts" / "driver.py"
ABOUT = About("model", "workload")
LAST = Trial((), "w", "nll", 10_000, 10_001)


def wait_for(happened: Callable[[], bool], within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def begin(folder: Path, *more: str) -> subprocess.Popen[str]:
    """The driver, once it has begun."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    process = subprocess.Popen(
        [sys.executable, str(DRIVER), str(folder), *more],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


def answers(count: int) -> dict[str, str]:
    return {key_of(trial): encode(expected(trial)) for trial in [*trials(count), LAST]}


def study(folder: Path, asked: list[Trial], log: Path) -> Finding:
    with Store(folder, ABOUT) as store:
        return run_study(Census(tuple(asked)), Serial(NumericBench(str(log)), threads=1), store)


def test_what_is_known_is_not_run_again(tmp_path: Path) -> None:
    first = study(tmp_path / "run", trials(5), tmp_path)
    assert first.decided and dict(first.figures) == {"good": 6.0, "asked": 6.0}
    assert len(log_of(tmp_path)) == 6
    assert study(tmp_path / "run", trials(5), tmp_path) == first
    assert len(log_of(tmp_path)) == 6
    study(tmp_path / "run", trials(7), tmp_path)
    assert len(log_of(tmp_path)) == 8


def test_a_trial_that_is_asked_twice_is_run_once(tmp_path: Path) -> None:
    study(tmp_path / "run", trials(3) + trials(3), tmp_path)
    assert len(log_of(tmp_path)) == 4


def test_a_failed_trial_is_run_once_in_each_call_and_conclude_sees_the_gap(tmp_path: Path) -> None:
    bad, once = trials(1, "raise"), trials(1, "fail once")
    asked = [*trials(3), *bad, *once]
    for call, good in ((1, 4.0), (2, 5.0), (3, 5.0)):
        finding = study(tmp_path / "run", asked, tmp_path)
        assert not finding.decided and dict(finding.figures)["good"] == good
        begun = [key for key, _ in log_of(tmp_path)]
        assert begun.count(key_of(bad[0])) == call
        assert begun.count(key_of(once[0])) == min(call, 2)
        assert len(set(begun)) == len(begun) - begun.count(key_of(bad[0])) - min(call, 2) + 2
    assert "ZeroDivisionError" in str(Store(tmp_path / "run").readings()[key_of(bad[0])].error)


def test_an_executor_that_leaves_trials_out_ends_the_study_undecided(tmp_path: Path) -> None:
    class Lazy:
        def run(self, asked):
            yield from map(expected, asked[1:])

    finding = run_study(Census(tuple(trials(4))), Lazy(), Store(tmp_path, ABOUT))
    assert not finding.decided and dict(finding.figures)["good"] == 3.0


def test_killed_at_random_moments_and_repeated_nothing_is_lost_or_run_twice(tmp_path: Path) -> None:
    folder, chance = tmp_path / "run", random.Random(0)
    command = ("--count", "150", "--pause", "0.003", "--log", str(tmp_path))
    known, seen = dict[str, str](), 0
    for _ in range(20):
        process = begin(folder, *command)
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.communicate()
        begun = [key for key, _ in log_of(tmp_path)][seen:]
        assert not set(begun) & set(known), "a trial whose reading was on the disk was run again"
        before, seen = known, seen + len(begun)
        known = texts(Store(folder).readings()) if (folder / "about.json").exists() else {}
        assert before.items() <= known.items(), "a reading was lost"
        assert len(known) - len(before) >= len(begun) - 1, "a kill costs the one trial that was being run"
    assert 0 < len(known) < 150, "the kills came neither too early nor too late"
    out, _ = begin(folder, *command).communicate()
    assert decode(Finding, out).decided
    assert texts(Store(folder).readings()) == answers(150)
    assert not {key for key, _ in log_of(tmp_path)[seen:]} & set(known)
    lines = [line for path in folder.glob("readings-*") for line in path.read_bytes().split(b"\n")[:-1]]
    assert len(lines) == 151, "one whole line for each trial"


def test_a_killed_driver_leaves_no_workers_and_a_folder_that_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = ("--count", "60", "--pause", "0.02", "--workers", "2", "--log", str(tmp_path))
    process = begin(folder, *command)
    wait_for(lambda: len(log_of(tmp_path)) > 10)
    process.kill()
    process.communicate()
    known = Store(folder).readings()
    workers = {pid for _, pid in log_of(tmp_path)}
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    before = len(log_of(tmp_path))
    out, _ = begin(folder, *command).communicate()
    assert decode(Finding, out).decided
    assert texts(Store(folder).readings()) == answers(60)
    assert len(known) > 5 and not {key for key, _ in log_of(tmp_path)[before:]} & set(known)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_ctrl_c_ends_with_status_3_and_a_folder_that_goes_on(tmp_path: Path, workers: str) -> None:
    folder = tmp_path / "run"
    command = ("--count", "40", "--pause", "0.03", "--workers", workers, "--log", str(tmp_path))
    process = begin(folder, *command)
    wait_for(lambda: len(log_of(tmp_path)) > 5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, told = process.communicate(timeout=10)
    assert process.returncode == 3, told
    assert told == f"interrupted; every reading so far is kept in {folder}. Repeat the command to go on.\n"
    assert not [pid for _, pid in log_of(tmp_path) if Path(f"/proc/{pid}").exists()]
    known, before = Store(folder).readings(), len(log_of(tmp_path))
    assert 0 < len(known) < 41
    out, _ = begin(folder, *command).communicate()
    assert decode(Finding, out).decided
    assert texts(Store(folder).readings()) == answers(40)
    assert not {key for key, _ in log_of(tmp_path)[before:]} & set(known)


def test_ctrl_c_while_workers_start_is_clean(tmp_path: Path) -> None:
    process = begin(tmp_path / "run", "--pause", "0.5", "--workers", "2")
    time.sleep(0.15)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=10)
    assert process.returncode == 3
    assert told.startswith("interrupted;") and len(told.splitlines()) == 1


def test_two_studies_on_one_folder_at_once_agree(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    both = [begin(folder, "--count", "40", "--pause", "0.005") for _ in range(2)]
    found = {process.communicate()[0] for process in both}
    assert len(found) == 1 and decode(Finding, found.pop()).decided
    assert texts(Store(folder).readings()) == answers(40)


def test_an_interrupt_inside_the_process_is_told_as_one(tmp_path: Path) -> None:
    class Pressing(Serial):
        def run(self, asked):
            for i, reading in enumerate(super().run(asked)):
                if i == 2:
                    raise KeyboardInterrupt
                yield reading

    with Store(tmp_path, ABOUT) as store:
        with pytest.raises(Interrupted, match="Repeat the command"):
            run_study(Census(tuple(trials(5))), Pressing(NumericBench(), threads=1), store)
        assert len(store.readings()) == 2


def test_what_stops_the_store_stops_the_executor(tmp_path: Path) -> None:
    closed = []

    class Watched(Serial):
        def run(self, asked):
            try:
                yield from super().run(asked)
            finally:
                closed.append(True)

    class Full(Store):
        def append(self, reading):
            raise RunFolderError("no space left")

    with pytest.raises(RunFolderError) as told:
        run_study(Census(tuple(trials(2))), Watched(NumericBench(), threads=1), Full(tmp_path, ABOUT))
    assert closed, told.traceback


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("count", "elapsed", "text"),
    [
        ((0, 40), 3.2, "study: 0 of 40 trials, 3 s so far"),
        ((10, 40), 5.0, "study: 10 of 40 trials, 2.0/s, 15 s left"),
        ((2, 40), 9.0, "study: 2 of 40 trials, 4.5 s each, 2 min 51 s left"),
        ((40, 40), 9.0, "study: 40 of 40 trials, 4.4/s, 0 s left"),
    ],
)
def test_status_has_rate_and_time_left(count: tuple[int, int], elapsed: float, text: str) -> None:
    assert status("study", "trials", count, elapsed) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.6, "1 min 00 s"), (61, "1 min 01 s"), (3599.7, "1 h 00 min"), (9000, "2 h 30 min")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def run_with_progress(stream: io.StringIO, seconds: float) -> str:
    with Progress("study", stream) as progress:
        progress.expect(4)
        for _ in range(4):
            time.sleep(seconds / 4)
            progress.advance()
    return stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_nothing_is_said_of_what_is_short(stream: type[io.StringIO]) -> None:
    assert run_with_progress(stream(), 0.1) == ""


def test_a_terminal_has_one_line_rewritten_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    told = run_with_progress(Terminal(), 2.8)
    assert told.count("\n") == 1 and told.endswith("\n")
    lines = told.removesuffix("\n").split("\r")
    assert lines[0] == "" and len(lines) >= 3
    assert lines[1].startswith("study: 2 of 4 trials") and lines[-1].startswith("study: 4 of 4 trials in 3 s")
    assert all(len(line) < 30 for line in lines)


def test_elsewhere_there_are_plain_lines_at_growing_intervals() -> None:
    lines = run_with_progress(io.StringIO(), 4.4).splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "study: 1 of 4 trials",
        "study: 3 of 4 trials",
        "study: 4 of 4 trials in 4 s",
    ]
    assert lines[0].endswith("6 s left")


def test_a_stream_that_is_gone_ends_no_study() -> None:
    stream = io.StringIO()
    stream_of = Progress("study", stream)
    with stream_of as progress:
        stream.close()
        progress.expect(1)
        time.sleep(2.1)
