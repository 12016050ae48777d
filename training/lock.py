"""A file lock for one process at a time. The system releases it if the process dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.errors import Refused

LOCK = "lock"


class LockError(Refused):
    """Another process has the folder. The message names it."""


@contextmanager
def locked(folder: Path, *, wait: bool = False, name: str = LOCK) -> Iterator[None]:
    """Lock `folder` by the file `name` in it, and create the folder if needed.

    Raises:
        LockError: another process has the lock, and `wait` is false.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise LockError(f"{folder}: another process is at work there") from error
        yield
