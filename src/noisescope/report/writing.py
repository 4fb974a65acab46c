"""A view into files: one per format, and a folder of figures.

It makes no view and knows no run folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.report.chromium import to_pdf, to_png
from noisescope.report.document import to_json
from noisescope.report.html import to_html
from noisescope.report.markdown import to_markdown
from noisescope.report.svg import figures
from noisescope.report.view import View
from noisescope.sweep.journal import put

Files = Mapping[str, bytes]


def _one(name: str, render: Callable[[View], str]) -> Callable[[View], Files]:
    return lambda view: {name: render(view).encode()}


def _svg(view: View) -> Files:
    return {f"figures/{name}.svg": text.encode() for name, text in figures(view).items()}


def _png(view: View) -> Files:
    return {f"figures/{name}.png": to_png(text) for name, text in figures(view).items()}


FORMATS: Mapping[str, Callable[[View], Files]] = {
    "html": _one("report.html", to_html),
    "md": _one("report.md", to_markdown),
    "json": _one("report.json", to_json),
    "pdf": lambda view: {"report.pdf": to_pdf(to_html(view))},
    "svg": _svg,
    "png": _png,
}
DEFAULT = ("html", "md", "json")


def write_report(view: View, folder: str | Path, formats: Iterable[str] = DEFAULT) -> list[Path]:
    """Write a view in some formats; returns the files. All are made before the first is written."""
    made: dict[str, bytes] = {}
    for name in formats:
        if name not in FORMATS:
            raise unknown_name("report format", name, FORMATS)
        made.update(FORMATS[name](view))
    return [write_file(Path(folder, name), content) for name, content in made.items()]


def write_file(path: Path, content: bytes) -> Path:
    """All of it or nothing: a report that is being read is never half a report."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, content)
    except OSError as problem:
        raise BadInputError(f"{path}: cannot be written ({problem.strerror}); choose another folder.") from None
    return path
