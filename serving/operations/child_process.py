"""Child processes for work that must not share the server's memory or threads. Each runs a module of this server."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from serving.operations.threads import check_cancelled, spend

CHECKED_EVERY = 0.2
"""Seconds between two checks for cancellation while the child process produces no output."""
PART = 1 << 20


@contextmanager
def running(
    module: str,
    *arguments: str,
    stdin: IO[bytes] | int = subprocess.PIPE,
    stderr: int = subprocess.DEVNULL,
    variables: Mapping[str, str] | None = None,
    folder: Path | None = None,
    descriptors: Sequence[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module as a child process while the `with` block runs.

    The process works in `folder`, and inherits the open files in `descriptors`. Its environment has the `variables`.
    The process does not inherit the server's environment variables, because these may contain secrets. Ctrl-C does not
    stop the process. At the end of the block, the process is killed if it still runs.
    """
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONIOENCODING": "utf-8",
        "OMP_NUM_THREADS": "1",
        **(variables or {}),
    }
    with subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment,
        cwd=folder,
        pass_fds=descriptors,
        process_group=0,
    ) as child:
        try:
            yield child
        finally:
            if child.returncode is None:
                os.kill(child.pid, signal.SIGKILL)
                reaped(child)


def drained(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Read and ignore the output of a process until it ends, or for at most `seconds`.

    This function does not reap the process.
    """
    assert child.stdout is not None
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if _readable(child, left) and not os.read(child.stdout.fileno(), PART):
            return


def _readable(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait until a process writes output or closes its output. Return False if neither happens within `seconds`."""
    assert child.stdout is not None
    waiting = select.poll()  # select.select refuses file descriptors above 1023
    waiting.register(child.stdout, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def reaped(child: subprocess.Popen[bytes]) -> int:
    """Wait until a process has ended, and return its exit status.

    Its CPU time is added to that of the work that waits for the process (see `threads.spend`).
    """
    _, status, usage = os.wait4(child.pid, 0)
    spend(usage.ru_utime + usage.ru_stime)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode


def output(child: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield the bytes that a process writes to standard output. Raise `Stopped` if the current work is cancelled."""
    assert child.stdout is not None
    while True:
        check_cancelled()
        if not _readable(child, CHECKED_EVERY):
            continue
        if not (part := os.read(child.stdout.fileno(), PART)):
            return
        yield part


def lines(child: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield the lines that a process writes to standard output, except for an incomplete last line.

    Raises:
        Stopped: the current work is cancelled.
    """
    held = b""
    for part in output(child):
        *whole, held = (held + part).split(b"\n")
        yield from whole
