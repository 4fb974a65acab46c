"""One parent of commands for all tests that kill them or shut their disks: it takes seconds to start."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from hostile.children import Children

UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


@pytest.fixture(scope="session")
def children() -> Iterator[Children]:
    """Commands that see mounts of their own, where that is permitted."""
    tried = [*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"]
    can_mount = bool(shutil.which("unshare")) and not subprocess.run(tried, check=False, capture_output=True).returncode
    with Children(UNSHARE if can_mount else (), can_mount=can_mount) as found:
        yield found
