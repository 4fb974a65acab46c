"""Settings that must be made before torch and transformers are imported, and what tests in a browser need."""

import os
import signal

import pytest

from noisescope.report.chromium import NoBrowserError, find_chromium

# No test may depend on a hub that is or is not there.
os.environ["HF_HUB_OFFLINE"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:
    # Several workers with several threads each are slower than one thread each.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has what it starts in the background ignore Ctrl-C, and every program of a test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--examples", type=int, default=0, help="in how many ways each file of the fuzz tests is damaged")


def pytest_runtest_setup(item):
    if item.get_closest_marker("browser"):
        try:
            find_chromium()
        except NoBrowserError as problem:
            pytest.skip(f"{problem} `make browser` does it where apt is there.")
