"""Whether a process is at work in the folder of a run, and how to be that process."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from training.lock import LOCK, LockError, locked

ATTEMPTS, PAUSE = 20, 0.05
"""Of who wants to work there; seconds between two of them."""


def occupied(folder: Path) -> bool:
    """Whether another process has it.

    To ask is to share the lock for an instant: any number may ask at once, and who wants to work there asks again.
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
    """Holds the folder, which is made if it is not there; who only asks about it does not prevent that.

    Raises:
        LockError: another process has it, and keeps it.
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
