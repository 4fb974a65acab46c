"""Takes the pictures of a report that the documents show, from a run folder: docs/images/*.png. It needs Chromium."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from noisescope.report.chromium import find_chromium
from noisescope.runs.reporting import report

TARGET = Path(__file__).parents[1] / "docs" / "images"
DESK = (1160, 760)


@dataclass(frozen=True)
class Picture:
    """What is taken: a part of the page, or its first screen."""

    name: str
    part: str | None = None
    size: tuple[int, int] = DESK
    scheme: str = "light"


PICTURES = (
    Picture("first-screen"),
    Picture("map", "#map figure >> nth=0"),
    Picture("operators", "#operators figure >> nth=0"),
    Picture("channels", "#channels figure >> nth=0", scheme="dark"),
)


def main() -> int:
    """Make the page of the folder, open it, and take every picture."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("run_folder", type=Path, metavar="RUN", help="run folder of noisescope demo")
    (page,) = report(asked.parse_args().run_folder, ("html",))
    TARGET.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"])
        for one in PICTURES:
            with opened(browser, page, one) as shown:
                take(shown, one, TARGET / f"{one.name}.png")
        browser.close()
    return 0


@contextmanager
def opened(browser: Browser, page: Path, one: Picture) -> Iterator[Page]:
    """The page in a window of the picture's size."""
    width, height = one.size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=one.scheme)
    shown = context.new_page()
    shown.goto(page.resolve().as_uri())
    yield shown
    context.close()


def take(shown: Page, one: Picture, path: Path) -> None:
    """One picture, and its size."""
    if one.part is None:
        shown.screenshot(path=path)
    else:
        # The bar of filters stays in sight while the page scrolls; here it would lie on the picture.
        shown.locator("#filter").evaluate("bar => bar.hidden = true")
        shown.locator(one.part).screenshot(path=path)
    sys.stdout.write(f"{path} {path.stat().st_size / 1e3:.0f} kB\n")


if __name__ == "__main__":
    sys.exit(main())
