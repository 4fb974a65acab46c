"""PDF and PNG through an installed browser, and the files of a report."""

import hashlib
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from noisescope.core.errors import BadInputError
from noisescope.report.chromium import NoBrowserError, find_chromium, to_pdf, to_png
from noisescope.report.html import to_html
from noisescope.report.svg import figures
from noisescope.report.writing import DEFAULT, FORMATS, write_report
from report import example

VIEW = example.view()


def test_without_a_browser_the_error_is_one_line_that_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    with pytest.raises(NoBrowserError, match="set CHROMIUM to its path") as caught:
        to_pdf(to_html(VIEW))
    assert "\n" not in str(caught.value)


def test_a_variable_that_names_no_program_is_said_to(monkeypatch, tmp_path):
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "nothing"))
    with pytest.raises(NoBrowserError, match=r"CHROMIUM=.*nothing is no program"):
        find_chromium()


def test_where_no_browser_can_be_had_the_tool_for_tests_says_so_and_goes_on(tmp_path):
    tool = Path(__file__).parents[2] / "tools" / "get_browser.py"
    for chromium, said in ((sys.executable, ""), ("no-such-browser", "WITHOUT CHROMIUM")):
        # Nothing is on this path, apt-get neither.
        asked = {**os.environ, "CHROMIUM": chromium, "PATH": str(tmp_path)}
        done = subprocess.run([sys.executable, str(tool)], env=asked, capture_output=True, text=True, check=False)
        assert (
            (done.returncode, done.stdout) == (0, "")
            and done.stderr.startswith(said)
            and bool(done.stderr) == bool(said)
        )


@pytest.mark.parametrize(
    ("body", "said"), [("exit 7", "status 7"), ("exit 0", "without writing the PDF"), ("echo no >&2; exit 1", "1: no")]
)
def test_a_browser_that_fails_is_quoted(monkeypatch, tmp_path, body, said):
    program = tmp_path / "broken"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(program))
    with pytest.raises(NoBrowserError, match=said):
        to_pdf("<p>page</p>")


def test_what_is_no_figure_is_refused():
    with pytest.raises(BadInputError, match="without width and height"):
        to_png("<svg></svg>")


@pytest.mark.browser
def test_the_same_page_is_the_same_pdf():
    first, second = (to_pdf(to_html(VIEW)) for _ in range(2))
    assert first.startswith(b"%PDF") and first.rstrip().endswith(b"%%EOF")
    assert hashlib.sha256(first).hexdigest() == hashlib.sha256(second).hexdigest()
    assert 3 <= len(re.findall(rb"/Type /Page\b(?!s)", first)) <= 12
    assert b"/MarkInfo" in first, "a PDF for screen readers is tagged"
    assert len(first) < 1_000_000


@pytest.mark.browser
def test_a_figure_becomes_pixels_at_twice_its_size():
    svg = figures(VIEW)["windows-1-bars"]
    png = to_png(svg)
    width, height = (float(re.search(rf' {side}="([\d.]+)"', svg)[1]) for side in ("width", "height"))
    assert png.startswith(b"\x89PNG")
    assert struct.unpack(">II", png[16:24]) == (2 * round(width), 2 * round(height))
    assert png == to_png(svg)


def test_the_files_of_a_report_are_written(tmp_path):
    paths = write_report(VIEW, tmp_path / "new" / "folder", (*DEFAULT, "svg"))
    assert [p.name for p in paths[:3]] == ["report.html", "report.md", "report.json"]
    assert len(paths) == 8 and all(path.stat().st_size > 1000 for path in paths)
    assert sorted(p for p in (tmp_path / "new").rglob("*") if p.is_file()) == sorted(paths)


def test_a_report_may_be_written_over(tmp_path):
    first = [path.read_bytes() for path in write_report(VIEW, tmp_path)]
    assert [path.read_bytes() for path in write_report(VIEW, tmp_path)] == first


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(BadInputError, match="unknown report format 'docx'"):
        write_report(VIEW, tmp_path, ("html", "docx"))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInputError, match="cannot be written"):
        write_report(VIEW, tmp_path / "file")


def test_every_format_has_a_name():
    assert set(FORMATS) == {"html", "md", "json", "pdf", "svg", "png"}
