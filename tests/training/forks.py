"""Processes that start with torch imported, because its import takes longer than most tests."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.conftest import PATIENCE

SERVER = multiprocessing.get_context("forkserver")
"""A process with one thread, which imports all modules once and from which others are forked."""
SERVER.set_forkserver_preload(
    ["training.cli.promote", "training.step", "transformers.models.bert.modeling_bert", "tests.training.forks"]
)


def forked(
    work: Callable[..., Any], *given: Any, said: Path | None = None, environment: Mapping[str, str] | None = None
) -> ForkServerProcess:
    """Start `work(*given)`, a function of a module, in a process of its own.

    `said` receives its stderr, by default that of the tests. `environment` is set in the process first.
    """
    process = SERVER.Process(target=_begin, args=(work, given, said, environment or {}), daemon=True)
    process.start()
    return process


def two_together(work: Callable[..., Any], *given: Any, said: Path | None = None) -> list[int | None]:
    """Run `work(*given)` in two processes that train together as by `torchrun`, and return their exit codes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [told | {"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
    both = [forked(work, *given, said=said, environment=environment) for environment in ranks]
    for process in both:
        process.join(PATIENCE)
    return [process.exitcode for process in both]


def _begin(work: Callable[..., Any], given: tuple[Any, ...], said: Path | None, environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if said:
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, sys.stderr.fileno())
        os.close(file)
    sys.exit(work(*given))
