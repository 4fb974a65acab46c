"""The history of a gate is only ever added to, and survives torn and damaged lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from noisescope.core.errors import BadInputError
from noisescope.diagnose.gated import Visit, comparable
from noisescope.measure.statistics import Interval
from noisescope.prescribe.history import add_visit, read_history

HARM = Interval(0.05, 0.04, 0.06, 0.95, 50)
VISIT = Visit("step-1", "f1", "t", "2026-01-02T03:04:05Z", "pass", "nll", HARM, (("linear", HARM),))
SECOND = replace(VISIT, checkpoint="step-2", fingerprint="f2")


def test_each_checkpoint_adds_a_line_and_the_same_answer_none(tmp_path: Path) -> None:
    file = tmp_path / "gate" / "history.jsonl"
    assert read_history(file).visits == ()
    for visit in (VISIT, SECOND, VISIT, replace(SECOND, when="2026-02-02T03:04:05Z")):
        add_visit(file, visit)
    assert read_history(file).visits == (VISIT, SECOND)
    before = file.read_bytes()
    add_visit(file, replace(VISIT, verdict="fail"))
    assert file.read_bytes().startswith(before)


@pytest.mark.parametrize("cut", [1, 20, 80])
def test_a_torn_last_line_hides_no_other_and_is_closed_off(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "history.jsonl"
    add_visit(file, VISIT)
    add_visit(file, SECOND)
    file.write_bytes(file.read_bytes()[:-cut])
    torn = read_history(file)
    # Without its line end a line is whole all the same.
    assert torn.visits == ((VISIT, SECOND) if cut == 1 else (VISIT,)) and torn.damaged == (cut > 1)
    third = replace(VISIT, checkpoint="step-3")
    add_visit(file, third)
    assert read_history(file).visits[-1] == third and read_history(file).damaged == (cut > 1)


def test_a_changed_figure_is_found_out(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    add_visit(file, VISIT)
    add_visit(file, SECOND)
    file.write_bytes(file.read_bytes().replace(b"0.05", b"0.01", 1))
    assert read_history(file).visits == (SECOND,) and read_history(file).damaged == 1


def test_a_metric_that_nobody_has_is_refused() -> None:
    with pytest.raises(BadInputError, match="unknown metric 'silu'"):
        replace(VISIT, metric="silu")


def test_only_visits_on_the_same_terms_are_compared_and_the_last_answer_counts() -> None:
    late = replace(VISIT, verdict="fail")
    found = comparable([VISIT, replace(SECOND, terms="other"), SECOND, late], "t")
    assert found == (late, SECOND)


def test_a_folder_is_no_history(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="expects a file"):
        read_history(tmp_path)
