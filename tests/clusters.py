"""Ray for tests: a local Ray with two CPUs, or a cluster of several nodes on this machine."""

from __future__ import annotations

import gc
import inspect
import os
import socket
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.conftest import PATIENCE

CALM = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_gcs_server_port_wait_time_s": str(int(PATIENCE)),  # Ray's own time limits are too short for a busy machine.
    "RAY_raylet_start_wait_time_s": str(int(PATIENCE)),
    "RAY_worker_register_timeout_seconds": str(int(5 * PATIENCE)),
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(PATIENCE),
    "RAY_memory_monitor_refresh_ms": "0",  # Ray would repeatedly kill its workers because other processes need memory.
    "RAY_local_fs_capacity_threshold": "1.0",
    "RAY_worker_niceness": "0",  # Without this setting, Ray's workers would wait for all other processes.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),  # noqa: PTH109
}
MEMORY = 80_000_000
"""Bytes of a node's object store."""


@contextmanager
def small_ray() -> Iterator[None]:
    """Run Ray with two CPUs in this process and its children."""
    with _calm():
        with warnings.catch_warnings(action="ignore"):
            import ray

            ray.init("local", num_cpus=2, object_store_memory=MEMORY, include_dashboard=False, log_to_driver=False)
        try:
            yield
        finally:
            _end(ray.shutdown)


@contextmanager
def nodes(count: int, cpus: int = 1) -> Iterator[Any]:
    """Run a cluster of several nodes on this machine, and a head node without CPUs."""
    with _calm():
        with warnings.catch_warnings(action="ignore"):
            from ray.cluster_utils import Cluster

            cluster = Cluster()
            for each in (0, *[cpus] * count):
                start_node(cluster, each)
        try:
            yield cluster
        finally:
            _end(cluster.shutdown)


def start_node(cluster: Any, cpus: int) -> Any:
    """Start a node of a cluster on this machine. The first node is the head."""
    return cluster.add_node(num_cpus=cpus, object_store_memory=MEMORY, include_dashboard=False)


@contextmanager
def _calm() -> Iterator[None]:
    """Set the environment of a Ray on a busy machine. Its nodes do not wait for their agents.

    A node dies if its agents need more than 15 s to start, which no option changes. The agents serve dashboards and
    environments of packages, which no test uses. So a node gets their ports before they start.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CALM.items():
            patch.setenv(name, value)
        with warnings.catch_warnings(action="ignore"):
            import ray._raylet as names
            from ray._private import services, utils
        start_raylet = services.start_raylet

        def start(redis: str, gcs: str, node: str, *given: Any, **options: Any) -> Any:
            session = inspect.signature(start_raylet).bind(redis, gcs, node, *given, **options).arguments["session_dir"]
            for port in ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN"):
                names.persist_port(session, node, getattr(names, f"{port}_PORT_NAME"), -1)  # type: ignore[attr-defined]
            return start_raylet(redis, gcs, node, *given, **{**options, "runtime_env_agent_port": free_port()})

        patch.setattr(services, "start_raylet", start)
        patch.setattr(utils, "get_dashboard_dependency_error", ImportError)
        yield


def _end(shut_down: Callable[[], Any]) -> None:
    """Stop Ray and wait for its processes.

    Ray kills them without waiting, and their objects would warn when they are deleted.
    """
    gc.collect()
    processes = [one for one in gc.get_objects() if isinstance(one, subprocess.Popen) and "/ray/" in str(one.args)]
    shut_down()
    for one in processes:
        with suppress(subprocess.TimeoutExpired):
            one.wait(PATIENCE)


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
