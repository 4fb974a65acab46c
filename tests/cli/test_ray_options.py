"""How a Ray cluster is asked for, and what each worker on it takes. Nothing here needs Ray."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from noisescope.cli.main import main, read_words
from noisescope.cli.options import cluster_of
from noisescope.sweep.executors.ray import Cluster, fitting


def test_what_fits_is_counted_by_the_scarcest() -> None:
    assert fitting({"CPU": 8.0, "NPU": 2.0}, {"CPU": 1.0, "NPU": 1.0}) == 2
    assert fitting({"CPU": 0.3}, {"CPU": 0.1}) == 3
    assert fitting({"CPU": 8.0}, {"NPU": 1.0}) == 0


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        ("--ray --workers 2", "--workers 2 with --ray"),
        ("--ray-worker CPU=2", "--ray-worker without --ray"),
        ("--ray --device auto", "--device auto with --ray"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    more: str, seen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(f"robustness demo {more}")) == 2
    assert seen in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "cluster"),
    [
        ("", None),
        ("--ray", Cluster("", (("CPU", 1.0),))),
        ("--ray 10.0.0.1:6379 --device cuda", Cluster("10.0.0.1:6379", (("CPU", 1.0), ("GPU", 1.0)))),
        ("--ray --device npu:3", Cluster("", (("CPU", 1.0), ("NPU", 1.0)))),
        ("--ray --ray-worker NPU=0.5,CPU=2 --device npu", Cluster("", (("CPU", 2.0), ("NPU", 0.5)))),
    ],
)
def test_each_worker_takes_one_of_the_devices_that_it_is_to_use(more: str, cluster: Cluster | None) -> None:
    assert cluster_of(read_words(shlex.split(f"diagnose demo {more}"))) == cluster


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("CPU", "''"),
        ("=2", "'=2'"),
        ("CPU=0", "'0'"),
        ("CPU=nan", "'nan'"),
        ("CPU=1,CPU=2", "each name once"),
        ("", "''"),
    ],
)
def test_amounts_that_are_none_are_refused(text: str, seen: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_words(["diagnose", "demo", "--ray", "--ray-worker", text])
    assert seen in capsys.readouterr().err


def test_a_file_can_ask_for_it(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("model: demo\nray: true\n")
    assert read_words(["diagnose", "--config", str(tmp_path / "f.yaml")]).ray == ""
    (tmp_path / "f.yaml").write_text("model: demo\nray: 10.0.0.1:6379\n")
    assert read_words(["diagnose", "--config", str(tmp_path / "f.yaml")]).ray == "10.0.0.1:6379"
