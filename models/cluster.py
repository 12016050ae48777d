"""Connection to a Ray cluster, for commands with `--on ray`.

Ray is an optional dependency, the extra `ray`. Only this module and the packages `on_ray` import it.
"""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from models import cpus
from models.errors import Failed, Refused, first_line, on_one_line

INSTALL = "pip install 'isosphere[ray]'"
OLDEST, NEXT = (2, 60), (3,)
"""Supported versions of Ray: from `OLDEST`, and below `NEXT`."""
SECONDS_TO_ANSWER = 5.0
LOCAL = "local"
"""Special address: Ray is started on this machine, and stopped at the end."""


@contextmanager
def connected(address: str | None) -> Iterator[bool]:
    """Connect to the Ray cluster at `address`, and yield whether this process started Ray.

    If `address` is None, the environment variable `RAY_ADDRESS` gives the address. Without an address, Ray is started
    on this machine. The connection is closed when the `with` block ends. If the process was connected before, that
    connection is used, and stays open.

    Raises:
        Refused: Ray is not installed or not supported, or no cluster answers.
        Failed: Ray does not start on this machine.
    """
    check_version()
    address = address or os.environ.get("RAY_ADDRESS") or LOCAL
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # This variable disables Ray's usage reports.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Hide Ray's warnings about its next version.
        import ray

    if ray.is_initialized():
        yield False
        return
    _check_answer(address)
    own_cpus = cpus.available() if address == LOCAL else None
    try:
        ray.init(address, num_cpus=own_cpus, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:  # Ray's exceptions have no common base class.
        if address == LOCAL:
            raise Failed(f"Ray did not start on this machine: {first_line(error)}") from error
        raise Refused(f"--ray-address {address}: {first_line(error)}") from error
    try:
        yield address == LOCAL
    finally:
        ray.shutdown()


@contextmanager
def own_errors() -> Iterator[None]:
    """Convert Ray's errors that the `with` block raises.

    If a process of the cluster raised a `ValueError`, `OSError` or `Failed`, the same error is raised in this
    process, without Ray's traceback. Any other error of Ray becomes a `Failed` with a short message.
    """
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ValueError | Failed | OSError) and not isinstance(cause, RayError):
                raise cause from None
            cause = getattr(cause, "cause", None) or cause.__cause__
        raise Failed(f"Ray: {on_one_line(error)[:500]}; the same command continues") from error


def smallest_node() -> int:
    """Return the number of CPUs of the smallest live Ray node with at least one CPU, or 1 if there is no such node."""
    return int(min((cpus for node in alive_nodes() if (cpus := node.get("CPU", 0)) >= 1), default=1))


def alive_nodes() -> list[dict[str, float]]:
    """Return the resources of each live node: amounts by Ray's names, such as `CPU`."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def free_resources() -> dict[str, float]:
    """Return the resources of the cluster that no job has reserved: amounts by Ray's names, such as `CPU`."""
    import ray

    return dict(ray.available_resources())  # type: ignore[no-untyped-call]


def check_version() -> None:
    """Raise an error unless a supported version of Ray is installed.

    Raises:
        Refused: Ray is missing, too old or too new; the message has the command that installs it.
    """
    try:
        found = version("ray")
    except PackageNotFoundError:
        raise Refused(f"--on ray needs the extra `ray`: {INSTALL}") from None
    if not OLDEST <= tuple(map(int, found.split(".")[:2])) < NEXT:
        raise Refused(f"--on ray needs Ray {'.'.join(map(str, OLDEST))} or a later 2.x, not {found}: {INSTALL}")


def _check_answer(address: str) -> None:
    """Raise an error if nothing listens at the address.

    Without this check, Ray would try to connect for a minute.

    Raises:
        Refused: nothing listens at `address`, or `address` is invalid.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # The address is `local` or `auto`, so there is no port to check.
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, ValueError, OverflowError) as error:
        raise Refused(
            f"--ray-address {address}: no cluster answers ({getattr(error, 'strerror', None) or error}); "
            "`ray start --head` starts one and prints its address"
        ) from error
