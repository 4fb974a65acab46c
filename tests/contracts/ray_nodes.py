"""A real Ray cluster of several nodes on this machine: each is a set of processes that can be killed alone."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
# Whoever reaches a Ray can run code on it. Ray itself would leave a token in the home folder.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@contextmanager
def nodes(*others: Mapping[str, Any], head_cpus: int = 2) -> Iterator[tuple[Any, list[Any]]]:
    """A cluster that this process is in, and the nodes besides its head. Workers find the modules of the tests."""
    import ray
    from ray.cluster_utils import Cluster

    before = os.environ.get("PYTHONPATH")
    # Nodes hand on the environment that they are started in.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), str(TESTS.parent / "src"), before]))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": head_cpus, "include_dashboard": False})
    try:
        added = [cluster.add_node(**{"num_cpus": 1, **other}) for other in others]
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield cluster, added
    finally:
        ray.shutdown()
        cluster.shutdown()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
