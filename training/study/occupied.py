"""Locks that show whether a process works in a run's folder."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from training.lock import LOCK, LockError, locked

ATTEMPTS, PAUSE = 20, 0.05
"""Attempts to take the lock, and seconds between two attempts."""


def occupied(folder: Path) -> bool:
    """Return whether another process has the folder.

    The check takes a shared lock for an instant, so any number of processes can check at once. A process that wants the
    exclusive lock retries.
    """
    try:
        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def occupying(folder: Path) -> Iterator[None]:
    """Lock the folder, and create it if needed.

    Concurrent checks do not prevent the lock.

    Raises:
        LockError: another process keeps the folder locked.
    """
    with ExitStack() as stack:
        for left in reversed(range(ATTEMPTS)):
            try:
                stack.enter_context(locked(folder))
                break
            except LockError:
                if not left:
                    raise
                time.sleep(PAUSE)
        yield
