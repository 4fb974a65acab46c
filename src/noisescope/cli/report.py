"""Write the report of a run folder: all that was found in it, in one page that opens offline.

Neither the model nor torch is needed. The files go into the run folder; they can be made again at any time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from noisescope.cli.lines import show
from noisescope.core.errors import unknown_name

SUMMARY = "write the report of a run folder, without the model"
EXAMPLE = "noisescope report runs/first --format html,md,json"
FORMATS = ("html", "md", "json", "pdf", "svg", "png")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The folder and the formats."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="run folder of an earlier command")
    parser.add_argument(
        "--format",
        type=formats,
        default=("html", "md", "json"),
        metavar="F,F,...",
        help=f"{', '.join(FORMATS)} (default: html,md,json); pdf and png need Chromium",
    )


def formats(text: str) -> tuple[str, ...]:
    """Comma-separated formats, each once."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in FORMATS:
            raise argparse.ArgumentTypeError(str(unknown_name("report format", name, FORMATS)))
    return names


def run(asked: argparse.Namespace) -> int:
    """The first screen of the report on stdout, and the path of every file that was written."""
    from noisescope.report.summary import to_text
    from noisescope.report.writing import write_report
    from noisescope.runs.reporting import view_of
    from noisescope.sweep.store import Store

    view = view_of(Store(asked.run_folder))
    paths = write_report(view, asked.run_folder, asked.format)
    show([*to_text(view).splitlines(), "", *map(str, paths)])
    return 0
