"""A Ray cluster of several nodes: actors and a node killed in mid-run, weights in one place, no waiting for ever."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from cases import SMALL
from contracts.benches import NumericBench, dies_at_once, expected, log_of, trials
from contracts.checkpoints import SETTINGS, completions
from contracts.ray_nodes import TESTS, nodes
from letters import letters
from noisescope.core.codec import encode, key_of
from noisescope.core.errors import BadInputError
from noisescope.core.records import Injection, Reading, Trial, noise
from noisescope.measure.batches import prepare
from noisescope.sweep.bench import ModelBench, Task
from noisescope.sweep.executors.ray import Actors, Cluster, WorkerError, _Seat
from noisescope.sweep.executors.serial import Serial
from noisescope.sweep.packed import PackedBench, packed
from noisescope.sweep.store import Store

ray = pytest.importorskip("ray", reason="Ray is not installed; pip install 'noisescope[ray]'")
# Ray's own test cluster leaves sockets and processes to the garbage collector.
LEAKS = ["ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"]
pytestmark = [pytest.mark.slow, *map(pytest.mark.filterwarnings, LEAKS)]
TASK = Task(completions(), "nll", SETTINGS)
SECONDS = 240
RAY = str(Path(sys.executable).with_name("ray"))
COMMAND = "import sys; from noisescope.cli.main import main; sys.exit(main())"


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Any, list[Any]]]:
    """A head with one place, two nodes with one place each, and one that has NPUs and no processor to spare."""
    with nodes({}, {}, {"num_cpus": 0, "resources": {"NPU": 2}}, head_cpus=1) as found:
        yield found


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    """Small, with weights that are large enough to be kept in one place."""
    torch.manual_seed(0)
    shape = {**SMALL, "hidden_size": 128, "intermediate_size": 256, "tie_word_embeddings": True}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).eval()


def noisy(count: int) -> list[Trial]:
    key = prepare(TASK.workload, letters(), TASK.metric, SETTINGS).key
    of = [(), *[(Injection.of(noise(scale=0.1), layers=[seed % 2], seed=seed),) for seed in range(count - 1)]]
    return [Trial(one, key, TASK.metric) for one in of]


@dataclass(frozen=True)
class Slow:
    """Measures what another bench measures, later, and notes where."""

    inner: PackedBench
    log: NumericBench

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    def __call__(self) -> SlowBench:
        return SlowBench(self.inner(), self.log)


@dataclass(frozen=True)
class SlowBench:
    bench: ModelBench
    log: NumericBench

    def measure(self, trial: Trial) -> Reading:
        node = ray.get_runtime_context().get_node_id()
        self.log._note(f"{key_of(trial)} {os.getpid()} {node}")
        time.sleep(self.log.pause)
        return self.bench.measure(trial)


def never() -> ModelBench:
    raise AssertionError("what is shared was not taken")


def test_a_killed_actor_and_a_killed_node_cost_their_trials_a_second_run_and_change_no_bit(
    model: torch.nn.Module, tmp_path: Path
) -> None:
    asked = noisy(40)
    expected_readings = list(
        Serial(lambda: ModelBench(model, prepare(TASK.workload, letters(), TASK.metric, SETTINGS)), threads=1).run(
            asked
        )
    )
    shared = Slow(packed(model, letters(), (TASK,)), NumericBench(str(tmp_path), 0.4))
    readings = []
    with nodes({}, {}, head_cpus=1) as (cluster, others):
        doomed = {node.node_id: node for node in others}
        killed_node = killed_actor = None
        with Actors(never, threads=1, shared=lambda: shared) as executor:
            for reading in executor.run(asked):
                readings.append(reading)
                known = {key_of(one.trial) for one in readings}
                begun = [(key, int(pid), node) for key, pid, node in map(str.split, (tmp_path / "log").open())]
                if killed_actor is None and len({pid for _, pid, _ in begun}) == 3:
                    killed_actor = next(pid for _, pid, node in begun if node not in doomed)
                    os.kill(killed_actor, signal.SIGKILL)
                    at_work = {key for key, _, _ in begun} - known
                # What the first death cost is done again by now: at two deaths in a row a trial counts as their cause.
                elif killed_actor and killed_node is None and at_work <= known:
                    killed_node = next(iter(doomed))
                    cluster.remove_node(doomed[killed_node], allow_graceful=False)
    assert killed_actor and killed_node, "nothing was killed, so nothing was shown"
    assert sorted(map(encode, readings)) == sorted(map(encode, expected_readings))
    begun = [line.split()[0] for line in (tmp_path / "log").open()]
    assert len(asked) < len(begun) <= len(asked) + 2, "at most the trials that they were at ran twice"
    after = [line.split()[2] for line in (tmp_path / "log").open()][-8:]
    assert killed_node not in after


def test_an_actor_that_dies_at_a_trial_twice_gives_a_failed_reading(
    cluster: tuple[Any, list[Any]], tmp_path: Path
) -> None:
    once, always, rest = trials(1, "kill once")[0], trials(1, "kill")[0], trials(6)
    with Actors(NumericBench(str(tmp_path)), threads=1) as executor:
        readings = {reading.trial: reading for reading in executor.run([rest[0], once, always, *rest[1:]])}
    for trial in (once, *rest):
        assert encode(readings[trial]) == encode(expected(trial))
    assert "2 actors ended at this trial" in str(readings[always].error)
    for trial in (once, always):
        assert len({pid for key, pid in log_of(tmp_path) if key == key_of(trial)}) == 2


def test_actors_lost_between_two_runs_cost_no_trial_a_try(cluster: tuple[Any, list[Any]], tmp_path: Path) -> None:
    with Actors(NumericBench(str(tmp_path), 0.05), threads=1) as executor:
        # On a busy machine one actor has done all of them before the next one is up.
        for number in range(20):
            list(executor.run(trials(12, workload=f"first {number}")))
            if len(pids := {pid for _, pid in log_of(tmp_path)}) > 1:
                break
        assert len(pids) > 1
        before = len(log_of(tmp_path))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        again = list(executor.run(trials(6, workload="second")))
    assert sorted(map(encode, again)) == sorted(encode(expected(trial)) for trial in trials(6, workload="second"))
    assert len(log_of(tmp_path)) == before + 6


def test_actors_that_die_before_they_can_measure_are_not_replaced_for_ever(cluster: tuple[Any, list[Any]]) -> None:
    with pytest.raises(WorkerError, match=r"actors ended before they could measure .*same noisescope"):
        list(Actors(dies_at_once, threads=1).run(trials(5)))


def test_it_says_what_is_taken_and_what_could_never_be_had(cluster: tuple[Any, list[Any]]) -> None:
    bench = NumericBench()
    with pytest.raises(BadInputError, match=r"takes TPU 1; nodes have CPU 1; NPU 2"):
        list(Actors(bench, threads=1, cluster=Cluster(needs=(("TPU", 1.0),))).run(trials(2)))
    # Two on one node is more than any has, though all together have three.
    with pytest.raises(BadInputError, match=r"takes CPU 2"):
        list(Actors(bench, threads=1, cluster=Cluster(needs=(("CPU", 2.0),))).run(trials(2)))
    with Actors(bench, threads=1, cluster=Cluster(needs=(("NPU", 2.0),))) as first:
        assert len(list(first.run(trials(2)))) == 2
        started = time.monotonic()
        with pytest.raises(WorkerError, match=r"no room for a worker within 3 s: each takes NPU 1"):
            list(Actors(bench, threads=1, cluster=Cluster(needs=(("NPU", 1.0),)), patience=3.0).run(trials(2)))
        assert time.monotonic() - started < 30
    with Actors(bench, threads=1, cluster=Cluster(needs=(("NPU", 1.0),))) as second:
        assert len(list(second.run(trials(2)))) == 2, "what was given back can be had again"


def test_weights_are_in_one_place_on_a_node_and_tied_ones_stay_tied(
    cluster: tuple[Any, list[Any]], model: torch.nn.Module
) -> None:
    shared = Mapped(packed(model, letters(), (TASK,)))
    with Actors(never, threads=1, shared=lambda: shared) as executor:
        for reading in executor.run(trials(4)):
            assert reading.values == (1.0, 1.0, 1.0), reading.error


@dataclass(frozen=True)
class Mapped:
    """Says whether the weights lie in Ray's store, tied ones in the same place, and can be used."""

    inner: PackedBench

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    def __call__(self) -> Mapped:
        return self

    def measure(self, trial: Trial) -> Reading:
        made = self.inner().model
        weight, head = made.model.embed_tokens.weight, made.lm_head.weight
        spans = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "plasma" in line]
        edges = [[int(edge, 16) for edge in span[0].split("-")] for span in spans]
        inside = any(low <= weight.data_ptr() < high for low, high in edges)
        works = torch.isfinite(made(torch.tensor([[1, 2, 3]])).logits).all()
        return Reading(trial, (float(inside), float(weight is head), float(works)))


def test_weights_that_do_not_fit_into_the_store_are_loaded_by_each_actor(cluster: tuple[Any, list[Any]]) -> None:
    @dataclass(frozen=True)
    class Huge:
        nbytes = 1 << 50

    with Actors(NumericBench(), threads=1, shared=Huge) as executor:
        assert len(list(executor.run(trials(2)))) == 2


def test_other_versions_on_a_node_are_refused() -> None:
    told = _Seat([None], 1, {"torch": "0.1"}).prepare()
    assert isinstance(told, WorkerError) and "torch 0.1" in str(told) and torch.__version__ in str(told)


def test_a_cluster_that_is_not_there_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    if ray.is_initialized():
        ray.shutdown()
    for address in ("127.0.0.1:1", "nonsense"):
        started = time.monotonic()
        with pytest.raises(WorkerError, match=f"no Ray cluster at {address}"):
            list(Actors(NumericBench(), threads=1, cluster=Cluster(address)).run(trials(1)))
        assert time.monotonic() - started < 10
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(WorkerError, match=r"at 127\.0\.0\.1:1"):
        list(Actors(NumericBench(), threads=1).run(trials(1)))


ASKED = shlex.split("--mode operator --data demo:texts --samples 8 --seeds 1 --noise-scale 0.2")


def diagnosis(folder: Path, out: str) -> list[str]:
    """The command by which a model of that folder is diagnosed."""
    return [sys.executable, "-c", COMMAND, "diagnose", str(folder / "model"), *ASKED, "--out", str(folder / out)]


def found(folder: Path, out: str) -> tuple[str, list[str]]:
    """What was concluded, without the words by which it was asked for, and all readings."""
    text = (folder / out / "finding-diagnosis.json").read_text()
    readings = sorted(map(encode, Store(folder / out).readings().values()))
    assert len(text) > 1000 and len(readings) > 5
    return text.replace(" --ray", "").replace(f"--out {folder / out}", ""), readings


@pytest.fixture
def alone(model: torch.nn.Module, tmp_path: Path) -> Path:
    """A folder with the model and with what a diagnosis in one process says of it."""
    model.save_pretrained(tmp_path / "model")
    letters().save_pretrained(tmp_path / "model")
    subprocess.run(diagnosis(tmp_path, "alone"), check=True, timeout=SECONDS, capture_output=True)
    return tmp_path


def test_the_whole_command_on_a_cluster_says_what_it_says_alone(alone: Path) -> None:
    with nodes({}, head_cpus=1) as (cluster, _):
        env = {**os.environ, "RAY_ADDRESS": cluster.address}
        command = [*diagnosis(alone, "ray"), "--ray"]
        subprocess.run(command, env=env, check=True, timeout=SECONDS, capture_output=True)
    assert found(alone, "ray") == found(alone, "alone")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in sockets]


@pytest.fixture
def own_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where Ray notes its address: not beside other clusters of this machine. The names of sockets have to be short."""
    if ray.is_initialized():
        ray.shutdown()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


@contextmanager
def head(folder: Path) -> Iterator[tuple[int, int]]:
    """A cluster as a person starts it, with the ports of itself and of its dashboard."""
    port, dashboard, agent = free_ports(3)
    ports = f"--port {port} --dashboard-port {dashboard} --dashboard-agent-listen-port {agent}"
    start = f"start --head {ports} --include-dashboard true --num-cpus 2 --block"
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent / "src"), "OMP_NUM_THREADS": "1"}
    with (folder / "head.log").open("w") as log:
        process = subprocess.Popen([RAY, *start.split()], env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + SECONDS
        while "Ray runtime started" not in (folder / "head.log").read_text():
            assert process.poll() is None and time.monotonic() < deadline, (folder / "head.log").read_text()[-2000:]
            time.sleep(0.5)
        yield port, dashboard
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def test_the_command_is_submitted_as_a_job_and_says_what_it_says_alone(alone: Path, own_place: Path) -> None:
    pytest.importorskip("aiohttp_cors", reason="jobs need Ray's dashboard; pip install 'ray[default]'")
    with head(alone) as (port, dashboard):
        job = [RAY, "job", "submit", "--address", f"http://127.0.0.1:{dashboard}", "--"]
        told = subprocess.run(
            [*job, *diagnosis(alone, "job"), "--ray"], check=False, timeout=SECONDS, capture_output=True, text=True
        )
        assert told.returncode == 0, told.stdout[-2000:] + told.stderr[-2000:]
        foreign = [*diagnosis(alone, "refused"), "--ray", f"127.0.0.1:{port}"]
        env = {**os.environ, "RAY_AUTH_TOKEN": "0" * 64}
        refused = subprocess.run(foreign, env=env, check=False, timeout=SECONDS, capture_output=True, text=True)
    assert found(alone, "job") == found(alone, "alone")
    assert refused.returncode == 2 and "RAY_AUTH_TOKEN" in refused.stderr.splitlines()[-1], refused.stderr


@pytest.mark.parametrize("noted", [False, True], ids=["none", "one that is gone"])
def test_without_a_cluster_one_is_started_and_ended(
    noted: bool, own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if noted:
        (own_place / "ray").mkdir()
        (own_place / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(TESTS.parent / "src")]))
    with Actors(NumericBench(), threads=1) as executor:
        readings = list(executor.run(trials(6)))
        assert ray.is_initialized()
    assert not ray.is_initialized()
    assert sorted(map(encode, readings)) == sorted(encode(expected(trial)) for trial in trials(6))
