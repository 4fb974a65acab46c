"""The command `report`, and the page that other commands leave in a run folder."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from cases import make
from letters import letters
from noisescope.cli import report
from noisescope.cli.main import main
from noisescope.report.writing import DEFAULT, FORMATS
from noisescope.sweep.store import Request, Store
from report import found
from runs.test_reporting import ABOUT, filled

Capture = pytest.CaptureFixture[str]


def test_the_formats_of_the_help_are_those_that_can_be_written() -> None:
    assert tuple(FORMATS) == report.FORMATS
    assert report.formats("html,md,json,html") == DEFAULT


def test_it_prints_the_first_screen_and_the_files(tmp_path: Path, capsys: Capture) -> None:
    store = filled(tmp_path / "run", "diagnosis", request=Request(model="tiny"))
    assert main(["report", str(store.folder)]) == 0
    said = capsys.readouterr()
    assert said.err == "" and said.out.startswith("Diagnosis of tiny\n") and "Verdict" in said.out
    paths = [Path(line) for line in said.out.splitlines() if line.startswith(str(tmp_path))]
    assert [path.name for path in paths] == ["report.html", "report.md", "report.json"]
    assert all(path.is_file() for path in paths)


@pytest.mark.parametrize("text", ["html,docx", "htlm", ""])
def test_an_unknown_format_is_refused_by_name(text: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        main(["report", "run", "--format", text])
    assert end.value.code == 2
    assert "unknown report format" in capsys.readouterr().err.splitlines()[-1]


def test_a_folder_without_findings_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    filled(tmp_path / "run")
    assert main(["report", str(tmp_path / "run")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "nothing to report" in said.err


def test_pdf_without_a_browser_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path / "run", "robustness")
    monkeypatch.setenv("CHROMIUM", "no-such-browser")
    before = sorted(store.folder.iterdir())
    assert main(["report", str(store.folder), "--format", "html,pdf"]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "CHROMIUM=no-such-browser" in said.err
    assert sorted(store.folder.iterdir()) == before


@pytest.mark.browser
def test_pdf_is_written_where_there_is_a_browser(tmp_path: Path) -> None:
    store = filled(tmp_path / "run", "robustness")
    assert main(["report", str(store.folder), "--format", "pdf"]) == 0
    assert (store.folder / "report.pdf").read_bytes().startswith(b"%PDF-")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model as it is saved, with its tokenizer."""
    path = tmp_path_factory.mktemp("models") / "small"
    make("llama").save_pretrained(path)
    letters().save_pretrained(path)
    return path


def run(line: str, capsys: Capture) -> str:
    status = main(shlex.split(line))
    said = capsys.readouterr()
    assert status in (0, 1), said.err
    return said.out


def test_commands_leave_one_page_of_all_that_was_found(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "run"
    data = f"{folder} --data demo:texts --samples 4 --out {out}"
    pages = [
        run(f"robustness {data} --noise-levels 0,0.1 --no-threshold", capsys),
        run(f"diagnose {data} --mode operator", capsys),
        run(f"locate {data} --repeats 1 --ground-truth-layer 1 --fault-type dead_zone", capsys),
    ]
    assert all(said.splitlines()[-1] == f"report: {out / 'report.html'}" for said in pages)
    page = (out / "report.html").read_text()
    for words in (f"Report on {folder}", "Robustness", "Suspects", "Sensitivity by operator"):
        assert words in page
    assert "Validation: a fault of kind dead_zone and magnitude 0.3 was planted in every operator of layer 1." in page
    assert f"noisescope diagnose {data} --mode operator" in page, "the command by which to get it again"


def test_a_folder_of_another_model_takes_no_localisation(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    Store(tmp_path / "run", ABOUT).save_finding("diagnosis", found.diagnosis())
    assert main(shlex.split(f"locate {folder} --samples 1 --repeats 1 --out {tmp_path / 'run'}")) == 2
    assert "belongs to another model" in capsys.readouterr().err
