"""Whoever reads what a command prints; `| head` has enough before the end."""

from __future__ import annotations

import os
import select
import sys

GONE = 141
"""The exit status of a command whose reader has gone: what a shell tells of a program that SIGPIPE has ended."""


def flush() -> None:
    """What was printed goes out now, if the process was given a stdout at all.

    Raises:
        BrokenPipeError: nobody reads it any more.
    """
    if sys.stdout is not None:
        sys.stdout.flush()


def has_gone(error: OSError) -> bool:
    """Whether `error` says that nobody reads stdout any more, and not of another pipe or a connection.

    Where it does, stdout leads nowhere from here on: Python would complain once more at its exit.
    """
    if not isinstance(error, BrokenPipeError):
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not poll.poll(0):  # of a pipe whose other end is open there is nothing to say
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return True
