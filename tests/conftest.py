"""Settings that must be made before torch and transformers are imported."""

import os

# No test may depend on a hub that is or is not there.
os.environ["HF_HUB_OFFLINE"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:
    # Several workers with several threads each are slower than one thread each.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
