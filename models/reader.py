"""Handling of a closed stdout, as after `| head`."""

from __future__ import annotations

import os
import select
import sys

GONE = 141
"""Exit status of a command whose stdout was closed. Shells report the same status for SIGPIPE."""


def flush() -> None:
    """Flush stdout, if the process has one.

    Raises:
        BrokenPipeError: the reader has closed stdout.
    """
    if sys.stdout is not None:
        sys.stdout.flush()


def has_gone(error: OSError) -> bool:
    """Return whether `error` means that stdout is closed, and not some other pipe or connection.

    If so, stdout is redirected to nowhere. Otherwise Python would fail again at exit.
    """
    if not isinstance(error, BrokenPipeError):
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not poll.poll(0):  # nothing to report, so the other end of the pipe is open
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return True
