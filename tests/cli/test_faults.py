"""The command `faults`: from a run folder to cases, files, a verdict with its status, and a page."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import pytest

from cli.test_bits import saved
from noisescope.cli.main import main
from noisescope.diagnose.bit_curve import BitCurves
from noisescope.diagnose.fault_tests import FaultTests
from noisescope.sweep.store import Store

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A diagnosis of a small model, and another model."""
    folder = tmp_path_factory.mktemp("faults")
    model = saved(folder / "small")
    saved(folder / "other", seed=1)
    words = f"diagnose {model} --data demo:texts --samples 12 --noise-scale 0.2 --seeds 1 --out {folder}/run"
    assert main(shlex.split(words)) == 0
    return folder


def ask(place: Path, more: str, source: str = "run") -> int:
    return main(shlex.split(f"faults {place}/{source} {more}"))


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def edited(place: Path, kinds: tuple[str, ...], **changes: object) -> Path:
    """The cases of some kinds as a file, each with these changes."""
    assert ask(place, f"--json {place}/cases.json") == 0
    document = json.loads((place / "cases.json").read_text())
    plan = document["plan"]
    plan["cases"] = [{**case, **changes} for case in plan["cases"] if case["kind"] in kinds]
    file = place / "edited.json"
    file.write_text(json.dumps(document))
    return file


def test_without_a_model_the_cases_are_told_and_written(place: Path, capsys: Capture) -> None:
    capsys.readouterr()
    assert ask(place, f"--csv {place}/cases.csv") == 0
    said = capsys.readouterr().out
    assert "fault tests from the diagnosis of" in said and "because" in said
    # A random model is robust, and that is said in place of a success.
    assert "note: no operator is CRITICAL: the case is for the worst there is" in said
    assert json.loads((place / "run" / "fault-tests.json").read_text())["format"] == "noisescope fault tests"
    rows = table(place / "cases.csv")
    assert {row["kind"] for row in rows} == {"bit_flip", "stuck_at_zero"} and "verdict" not in rows[0]
    page = (place / "run" / "report.html").read_text()
    assert "none of them run so far" in page


def test_executed_they_fail_with_status_1_and_all_of_it_is_kept(place: Path, capsys: Capture) -> None:
    assert ask(place, f"--run -n 8 --seeds 1 --csv {place}/done.csv") == 1
    said = capsys.readouterr().out
    assert said.startswith("Fault tests: FAIL") and "[fail] bit_flip" in said
    rows = {row["kind"]: row for row in table(place / "done.csv")}
    assert rows["bit_flip"]["verdict"] == "fail" and float(rows["bit_flip"]["loss"]) > 0.05
    kept = Store(place / "run").load_finding("faults", FaultTests)
    assert kept is not None and kept.verdict == "fail" and len(kept.outcomes) == len(rows)
    assert main(["report", str(place / "run"), "--format", "md,json,html"]) == 0
    page = (place / "run" / "report.md").read_text()
    assert "Loss by fault" in page and "Lost tokens behind a faulty step" in page and "accepted 5.0%" in page
    before = {path.name: path.read_bytes() for path in (place / "run").glob("readings-*")}
    assert ask(place, "--run -n 8 --seeds 1") == 1
    assert {path.name: path.read_bytes() for path in (place / "run").glob("readings-*")} == before


def test_two_processes_find_what_one_does(place: Path) -> None:
    file = edited(place, ("bit_flip",))
    asked = f"--run {place}/small --data demo:texts -n 8 --seeds 1"
    for name, more in (("one", ""), ("two", "--workers 2")):
        assert ask(place, f"{asked} {more} --out {place}/{name}", file.name) == 1
    one, two = (Store(place / name).load_finding("faults", FaultTests) for name in ("one", "two"))
    assert one is not None and two is not None
    (alone,), (shared,) = one.outcomes, two.outcomes
    assert alone.loss is not None and shared.loss is not None and alone.nonfinite == shared.nonfinite
    # Not to the bit: where one process has several threads, each of two has fewer of them.
    assert alone.loss.estimate == pytest.approx(shared.loss.estimate, rel=1e-3)


def test_edited_cases_run_from_a_file_in_a_folder_of_their_own(place: Path, capsys: Capture) -> None:
    accepted = {"loss": 90.0, "nonfinite": None, "recovery": None, "located": True}
    file = edited(place, ("bit_flip",), accepted=accepted, rate=0.001)
    capsys.readouterr()
    more = f"--run {place}/other --data demo:texts -n 8 --seeds 1 --out {place}/elsewhere"
    assert ask(place, more, file.name) == 0
    assert capsys.readouterr().out.startswith("Fault tests: PASS")
    assert "Fault tests" in (place / "elsewhere" / "report.html").read_text()
    # Nobody has asked for this model's cases in the folder of another one.
    assert ask(place, f"--run {place}/other -n 8") == 2
    assert "belongs to another run: model" in capsys.readouterr().err


def test_a_case_that_this_model_has_no_place_for_is_an_error(place: Path, capsys: Capture) -> None:
    file = edited(place, ("stuck_at_zero",), layers=[40])
    assert ask(place, f"--run {place}/small --data demo:texts -n 4 --out {place}/none", file.name) == 2
    assert "[error]" in capsys.readouterr().out


def test_what_is_undecided_passes_unless_all_has_to_be_shown(place: Path, capsys: Capture) -> None:
    # Not one lost token of so few is no proof that at most a hundredth is lost.
    accepted = {"loss": 0.03, "nonfinite": None, "recovery": None, "located": False}
    file = edited(place, ("stuck_at_zero",), accepted=accepted)
    more = f"--run {place}/small --data demo:texts -n 6 --seeds 1 --out {place}/near"
    assert ask(place, more, file.name) == 0
    assert "UNDECIDED" in capsys.readouterr().out
    assert ask(place, f"{more} --strict", file.name) == 1


def test_the_curve_of_bits_is_measured_in_each_format_and_kept(place: Path, capsys: Capture) -> None:
    more = "--bit-curve rms_norm --bit-dtypes bfloat16 -n 2 --seeds 1"
    assert ask(place, more) == 0
    assert "bits of rms_norm in bfloat16" in capsys.readouterr().out
    assert ask(place, "--bit-curve softmax --bit-dtypes bfloat16 -n 2 --seeds 1") == 0
    kept = Store(place / "run").load_finding("bit-curves", BitCurves)
    assert kept is not None and [curve.operator for curve in kept.curves] == ["rms_norm", "softmax"]
    assert [point.bit for point in kept.curves[0].points] == list(range(16))
    page = (place / "run" / "report.html").read_text()
    assert "Loss by flipped bit in bfloat16" in page


@pytest.mark.parametrize(
    ("more", "source", "complaint"),
    [
        ("", "nothing.json", "cannot be read"),
        ("", "small/config.json", "no noisescope fault tests"),
        ("", "small", "not a run folder"),
        ("--out x", "run", "leave --out out"),
        ("--run --metric kl_to_clean -n 4", "run", "take nll"),
        ("--bit-curve gelu -n 4", "run", "gelu"),
        ("--bit-curve linear --bit-dtypes int8", "run", "int8"),
        ("--run --data nothing.jsonl", "run", "nothing.jsonl"),
    ],
)
def test_what_cannot_be_done_is_one_line(place: Path, capsys: Capture, more: str, source: str, complaint: str) -> None:
    try:
        status = ask(place, more, source)
    except SystemExit as end:
        status = int(end.code or 0)
    said = capsys.readouterr().err.splitlines()
    assert status == 2 and complaint in said[-1] and sum(line.startswith("noisescope") for line in said) == 1


def test_a_folder_without_a_diagnosis_has_nothing_to_make_tests_from(place: Path, capsys: Capture) -> None:
    assert main(shlex.split(f"robustness {place}/small --data demo:texts -n 4 --seeds 1 --out {place}/bare")) == 0
    assert ask(place, "", "bare") == 2
    assert "holds no diagnosis to make tests from" in capsys.readouterr().err
