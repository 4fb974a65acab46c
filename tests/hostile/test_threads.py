"""Diagnoses in threads of one process say what they say one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import noisescope as ns
from cases import batches, sharp
from noisescope.core.codec import to_plain


def findings(folder: Path) -> str:
    return (folder / "finding-diagnosis.json").read_text()


@pytest.mark.parametrize("shared", [False, True], ids=["two models", "one model"])
def test_two_diagnoses_at_once_say_what_they_say_alone(shared: bool, tmp_path: Path) -> None:
    first = sharp(4)
    models = [first, first if shared else sharp(5)]
    inputs = [batches(8), batches(12, width=7)]
    meet = threading.Barrier(2)

    def ask(number: int, folder: str, wait: Callable[[], object] = lambda: None) -> str:
        wait()
        ns.diagnose(models[number], inputs[number], scale=0.2 + 0.1 * number, out=tmp_path / folder)
        return findings(tmp_path / folder)

    alone = [ask(number, f"alone-{number}") for number in range(2)]
    before, random_state = torch.get_num_threads(), torch.random.get_rng_state()
    with ThreadPoolExecutor(2) as pool:
        at_once = list(pool.map(lambda number: ask(number, f"at-once-{number}", meet.wait), range(2)))
    assert at_once == alone and alone[0] != alone[1]
    assert torch.get_num_threads() == before and torch.equal(torch.random.get_rng_state(), random_state)


def test_two_localisations_at_once_say_what_they_say_alone() -> None:
    # Made one after the other: they draw their weights from the random state of the process.
    models = [sharp(4), sharp(4)]

    def ask(number: int) -> object:
        model = models[number]
        with ns.inject(model, ns.fault("stuck_at_zero", 0.5), layers=[1 + number], operators=["linear"], seed=9):
            return to_plain(ns.locate(model, batches(8), repeats=2))

    alone = [ask(number) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, range(2))) == alone
