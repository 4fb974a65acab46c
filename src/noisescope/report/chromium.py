"""PDF and PNG through an installed Chromium or Chrome, which prints and draws the same page that people open.

It needs no Python package, and nothing else of a report needs a browser.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from noisescope.core.errors import BadInputError, NoisescopeError

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
# What it would ask the network for by itself, and what needs a screen.
_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-default-browser-check",
    "--no-first-run",
    "--hide-scrollbars",
)
_SECONDS = 120
# The same page is the same file, whenever it was printed. What replaces a date or the number of a node is as long as
# that was, because a PDF counts bytes, and nodes stay in their order, because it searches for them.
_DATE = re.compile(rb"/(CreationDate|ModDate) \(D:\d{14}")

_NODE = re.compile(rb"\(node(\d{8})\)")


class NoBrowserError(NoisescopeError):
    """PDF or PNG was asked for and no Chromium was found, or it did not do its work."""


def find_chromium() -> str:
    """The program, from the variable CHROMIUM or from the path."""
    named = os.environ.get("CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        seen = f"CHROMIUM={named} is no program" if named else f"none of {', '.join(_NAMES)} is on the path"
        raise NoBrowserError(f"PDF and PNG need Chromium or Chrome: {seen}. Install one or set CHROMIUM to its path.")
    return found


def to_pdf(html: str) -> bytes:
    """A page as a PDF: the same bytes for the same page and the same browser."""
    printed = _made(html, "page.html", "made.pdf", ["--print-to-pdf={out}", "--no-pdf-header-footer"])
    order = {number: b"(node%08d)" % index for index, number in enumerate(sorted(set(_NODE.findall(printed))))}
    return _NODE.sub(lambda node: order[node[1]], _DATE.sub(rb"/\1 (D:20000101000000", printed))


def to_png(svg: str, scale: float = 2.0) -> bytes:
    """A figure as a PNG, at so many pixels per unit of its size."""
    size = re.match(r'<svg[^>]*? width="([\d.]+)" height="([\d.]+)"', svg)
    if size is None:
        raise BadInputError("an SVG without width and height; expected a figure that noisescope drew.")
    window = ",".join(str(round(float(side))) for side in size.groups())
    page = f"<!DOCTYPE html><style>body{{margin:0}}svg{{display:block}}</style>{svg}"
    asked = ["--screenshot={out}", f"--window-size={window}", f"--force-device-scale-factor={scale:g}"]
    return _made(page, "page.html", "made.png", asked)


def _made(text: str, source: str, target: str, asked: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="noisescope-") as folder:
        page, out = Path(folder, source), Path(folder, target)
        page.write_text(text, "utf-8")
        flags = [flag.replace("{out}", str(out)) for flag in asked]
        _run([find_chromium(), *_FLAGS, *_sandbox(), f"--user-data-dir={folder}/profile", *flags, page.as_uri()])
        if not out.is_file():
            raise NoBrowserError(f"{find_chromium()} ended without writing the {out.suffix[1:].upper()}.")
        return out.read_bytes()


def _sandbox() -> list[str]:
    """Chromium refuses to run as root inside its sandbox; the page is our own and may load nothing."""
    return ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NoBrowserError(f"{command[0]} did not finish within {_SECONDS} s.") from None
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
        raise NoBrowserError(f"{command[0]} failed with status {done.returncode}: {last[:300]}")
