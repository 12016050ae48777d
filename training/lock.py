"""One process at a time: a lock that the system takes back from whoever dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.errors import Refused

LOCK = "lock"


class LockError(Refused):
    """Another process has the folder; the message names it."""


@contextmanager
def locked(folder: Path, *, wait: bool = False, name: str = LOCK) -> Iterator[None]:
    """Holds `folder`, which is made if it is not there, by the file `name` in it.

    Raises:
        LockError: another process has it, unless `wait` says to wait for that.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise LockError(f"{folder}: another process is at work there") from error
        yield
