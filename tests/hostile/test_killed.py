"""A diagnosis that is killed at any moment, and asked again: the same report to the byte, no trial repeated or lost."""

from __future__ import annotations

import json
import random
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hostile.children import Asked, Children, Told
from hostile.models import saved

COMMAND = shlex.split("diagnose ../model --data demo:texts --samples 6 --seeds 1 --noise-scale 0.2 --out run")
MOST = 3  # kills of one run


def results(run: Path) -> dict[str, bytes]:
    """What was concluded and reported. Readings lie in files that are named by process."""
    kept = ("about.json", "finding-", "kept-", "report.", "blobs")
    # What a kill left of a file that was not whole yet is under a name that nobody reads.
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.suffix != ".part"]
    return {str(p.relative_to(run)): p.read_bytes() for p in files if str(p.relative_to(run)).startswith(kept)}


def trials(run: Path) -> Counter[str]:
    lines = [line for path in run.glob("readings-*") for line in path.read_bytes().split(b"\n")[:-1]]
    return Counter(json.loads(line)["key"] for line in lines)


@pytest.mark.parametrize("kills", [pytest.param(4, id="some"), pytest.param(50, id="many", marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_says_the_same_and_no_trial_is_repeated_or_lost(
    children: Children, tmp_path: Path, kills: int
) -> None:
    saved(tmp_path / "model")
    (whole := tmp_path / "whole").mkdir()
    undisturbed = children.run(Asked(str(whole), COMMAND))
    assert undisturbed.status == 0, undisturbed.err
    expected, asked = results(whole / "run"), trials(whole / "run")
    assert set(asked.values()) == {1} and {"report.html", "finding-diagnosis.json"} <= set(expected)
    chance, killed, folders = random.Random(kills), 0, 0
    while killed < kills:
        (place := tmp_path / f"folder-{folders}").mkdir()
        folders += 1
        told, here = None, 0
        while told is None or told.killed:
            told = children.run(Asked(str(place), COMMAND, **moment(chance, undisturbed) if here < MOST else {}))
            here += told.killed
        killed += here
        assert told.status == 0, told.err
        assert results(place / "run") == expected
        assert trials(place / "run") == asked
    assert folders > kills // MOST


def moment(chance: random.Random, undisturbed: Told) -> dict[str, Any]:
    """Half of them any, half of them at, in the midst of, or just behind something that is written."""
    if chance.random() < 0.5:
        return {"after": chance.uniform(0, undisturbed.seconds)}
    return {"at": chance.randrange(1, undisturbed.steps + 1)}
