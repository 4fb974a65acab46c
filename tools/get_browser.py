"""Makes sure that the tests of the report have a browser: installs Chromium where that takes no question.

That is as root on a machine with apt, as in a container of CI. Elsewhere it says what to install; it never fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from noisescope.report.chromium import NoBrowserError, find_chromium


def main() -> int:
    """Look, install if need be, and say what the tests will do."""
    apt = shutil.which("apt-get")
    if not found() and apt is not None and os.geteuid() == 0:
        sys.stderr.write("There is no Chromium yet; apt-get installs it for the tests of the report.\n")
        install(apt)
    if not found():
        sys.stderr.write("WITHOUT CHROMIUM: the tests of the report in a browser are skipped. ")
        sys.stderr.write("Install Chromium or Chrome, or set CHROMIUM to its path.\n")
    return 0


def found() -> bool:
    """Whether there is one."""
    try:
        return bool(find_chromium())
    except NoBrowserError:
        return False


def install(apt: str) -> None:
    """Chromium from the packages of Debian, the lists of packages fetched first."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium", "fonts-dejavu-core"]):
        done = subprocess.run([apt, "--quiet", "--quiet", *words], env=quiet, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            sys.stderr.write(f"apt-get {words[0]} ended with status {done.returncode}.\n")


if __name__ == "__main__":
    sys.exit(main())
