"""What every executor has to do, whatever runs the trials. A new one is a row in EXECUTORS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from contracts.benches import NumericBench, TorchBench, broken, expected, log_of, no_model, texts, trials
from contracts.ray_nodes import nodes
from noisescope.core.codec import encode, key_of
from noisescope.core.errors import BadInputError, LoadError
from noisescope.sweep.executors.process import Processes
from noisescope.sweep.executors.ray import Actors
from noisescope.sweep.executors.serial import Serial

EXECUTORS: dict[str, Callable[..., Any]] = {
    "serial": Serial,
    "process": lambda make_bench, **settings: Processes(make_bench, 2, **settings),
    "ray": Actors,
}
# Ray's own test cluster leaves sockets and processes to the garbage collector.
RAY_MARKS = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KINDS = [pytest.param(name, marks=RAY_MARKS if name == "ray" else ()) for name in EXECUTORS]


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """Two nodes with a place each."""
    pytest.importorskip("ray", reason="Ray is not installed; pip install 'noisescope[ray]'")
    with nodes({}, head_cpus=1):
        yield


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return str(request.param)


@pytest.fixture
def made(kind: str) -> Iterator[Callable[..., Any]]:
    """Makes executors of one kind, and closes them after the test."""
    alive = []

    def make(make_bench: Callable[[], Any], threads: int = 1) -> Any:
        alive.append(EXECUTORS[kind](make_bench, threads=threads))
        return alive[-1]

    yield make
    for executor in alive:
        if hasattr(executor, "close"):
            executor.close()


def test_every_trial_has_one_reading_and_the_bench_is_kept(made: Callable[..., Any], tmp_path: Path) -> None:
    executor = made(NumericBench(str(tmp_path)))
    first, second = trials(9), trials(9, workload="other")
    for asked in (first, second):
        readings = list(executor.run(asked))
        assert sorted(map(encode, readings)) == sorted(encode(expected(trial)) for trial in asked)
    begun = log_of(tmp_path)
    assert sorted(key for key, _ in begun) == sorted(map(key_of, first + second))
    assert len({pid for _, pid in begun}) <= 2
    assert list(executor.run([])) == []


def test_what_goes_wrong_is_a_reading_and_the_rest_goes_on(made: Callable[..., Any]) -> None:
    bad = {metric: trials(1, metric)[0] for metric in ("raise", "other", "nothing")}
    readings = {reading.trial: reading for reading in made(NumericBench()).run([*bad.values(), *trials(3)])}
    assert len(readings) == 6
    assert readings[bad["raise"]].error == "ZeroDivisionError: no samples"
    assert "no reading of this trial" in str(readings[bad["other"]].error)
    assert "no reading of this trial" in str(readings[bad["nothing"]].error)
    assert not [trial for trial in trials(3) if readings[trial].error is not None]


def test_a_bench_that_cannot_be_made_is_told_in_its_own_words(made: Callable[..., Any]) -> None:
    with pytest.raises(LoadError, match="tiny: no such model"):
        list(made(no_model).run(trials(2)))


def test_a_bug_in_making_a_bench_is_told(made: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match="a bug"):
        list(made(broken).run(trials(2)))


def test_it_can_be_stopped_early_and_used_again(made: Callable[..., Any]) -> None:
    executor = made(NumericBench(pause=0.02))
    with closing(executor.run(trials(50))) as readings:
        next(readings)
    assert len(list(executor.run(trials(2)))) == 2


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_threads_have_to_be_a_number(made: Callable[..., Any], threads: object) -> None:
    with pytest.raises(BadInputError, match="threads"):
        made(NumericBench(), threads=threads)


def test_readings_of_a_model_are_the_same_to_the_bit_everywhere(kind: str) -> None:
    import torch

    before = torch.get_num_threads()
    for threads in (1, 2):
        found = []
        for make in (Serial, EXECUTORS[kind]):
            executor = make(TorchBench, threads=threads)
            with executor if hasattr(executor, "close") else nullcontext():
                found.append(texts({key_of(r.trial): r for r in executor.run(trials(6))}))
        assert len(found[0]) == 6 and f"{threads}.0]" in next(iter(found[0].values()))
        assert found[0] == found[1]
    assert torch.get_num_threads() == before
