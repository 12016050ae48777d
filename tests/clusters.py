"""A Ray of the tests: one of two CPUs for the session, or clusters of several nodes on this machine."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CALM = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # workers of Ray would otherwise wait for all other processes
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),  # noqa: PTH109
}
MEMORY = 80_000_000
"""Bytes of a node's object store."""


@contextmanager
def small_ray() -> Iterator[None]:
    """Run Ray with two CPUs in this process and its children, without its warnings, which tests turn into errors."""
    before = {name: os.environ.get(name) for name in CALM}
    os.environ.update(CALM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

        ray.init("local", num_cpus=2, object_store_memory=MEMORY, include_dashboard=False, log_to_driver=False)
        try:
            yield
        finally:
            ray.shutdown()
            gc.collect()  # Ray's processes have ended, but their objects would still warn
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def nodes(count: int, cpus: int = 1) -> Iterator[Any]:
    """Run a cluster of several nodes on this machine. The first one is the head, without CPUs."""
    before = {name: os.environ.get(name) for name in CALM}
    os.environ.update(CALM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False},
        )
        try:
            for _ in range(count):
                cluster.add_node(num_cpus=cpus, object_store_memory=MEMORY)
            yield cluster
        finally:
            cluster.shutdown()  # type: ignore[no-untyped-call]
            gc.collect()
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


PYTHON = sys.executable
