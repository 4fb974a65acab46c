"""Worker processes: killed ones, ones that never start, and what is left of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from contracts.benches import NumericBench, dies_at_once, expected, log_of, trials
from noisescope.core.codec import encode, key_of
from noisescope.core.errors import BadInputError
from noisescope.core.records import Trial
from noisescope.sweep.executors.process import Processes, WorkerError


def begun(folder: Path, trial: Trial) -> list[int]:
    return [pid for key, pid in log_of(folder) if key == key_of(trial)]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pids: set[int], within: float) -> bool:
    deadline = time.monotonic() + within
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_killed_worker_costs_its_trial_a_second_run_and_nothing_else(tmp_path: Path) -> None:
    once, always, rest = trials(1, "kill once")[0], trials(1, "kill")[0], trials(12)
    with Processes(NumericBench(str(tmp_path)), 2, threads=1) as executor:
        readings = {reading.trial: reading for reading in executor.run([rest[0], once, always, *rest[1:]])}
    assert len(readings) == 14
    for trial in (once, *rest):
        assert encode(readings[trial]) == encode(expected(trial))
    assert "signal 9, SIGKILL" in str(readings[always].error)
    for trial in (once, always):
        assert len(set(begun(tmp_path, trial))) == 2, "once more, in another worker"
    assert all(len(begun(tmp_path, trial)) == 1 for trial in rest)


def test_workers_that_are_killed_from_outside_are_replaced(tmp_path: Path) -> None:
    asked, killed = trials(40), set()
    with Processes(NumericBench(str(tmp_path), 0.02), 2, threads=1) as executor:
        readings = []
        for reading in executor.run(asked):
            readings.append(reading)
            if len(readings) in (5, 20):
                killed.add(log_of(tmp_path)[-1][1])
                os.kill(log_of(tmp_path)[-1][1], signal.SIGKILL)
    assert sorted(map(encode, readings)) == sorted(encode(expected(trial)) for trial in asked)
    assert len(killed) == 2 and 3 <= len({pid for _, pid in log_of(tmp_path)}) <= 4


def test_workers_that_die_before_they_can_measure_are_not_replaced_for_ever() -> None:
    executor = Processes(dies_at_once, 2, threads=1)
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"signal 9, SIGKILL.*fewer workers"):
            list(executor.run(trials(5)))


def test_what_cannot_be_sent_to_a_worker_is_refused() -> None:
    with pytest.raises(BadInputError, match="cannot be sent to a worker"):
        list(Processes(lambda: NumericBench(), 1, threads=1).run(trials(1)))


@pytest.mark.parametrize("workers", [0, -2, True, "2"])
def test_workers_have_to_be_a_number(workers: object) -> None:
    with pytest.raises(BadInputError, match="workers"):
        Processes(NumericBench(), workers, threads=1)


def test_no_more_workers_than_trials_and_none_after_closing(tmp_path: Path) -> None:
    with Processes(NumericBench(str(tmp_path)), 8, threads=1) as executor:
        list(executor.run(trials(1)))
        pids = {worker.process.pid for worker in executor._workers}
        assert len(pids) == 1 and all(map(is_alive, pids))
    assert gone(pids, within=0.5)


def test_closing_does_not_wait_for_a_long_trial(tmp_path: Path) -> None:
    slow = trials(1, "stall")[0]
    with Processes(NumericBench(str(tmp_path)), 2, threads=1) as executor:
        readings = executor.run([*trials(2), slow])
        # Whichever worker answers first is handed the slow trial before it is asked for more.
        next(readings), next(readings)
        deadline = time.monotonic() + 20
        while len(log_of(tmp_path)) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        started = time.monotonic()
        readings.close()
        assert gone({pid for _, pid in log_of(tmp_path)}, within=0.5)
    assert time.monotonic() - started < 3
