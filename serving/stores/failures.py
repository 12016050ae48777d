"""What a caller is told when the disk fails, and the file that it concerns."""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import orjson

from serving.errors import Damaged, InsufficientStorage, ServiceError, Stopped, Unhealthy
from serving.ports import StoreError

log = logging.getLogger(__name__)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError, orjson.JSONDecodeError)
"""What reading raises where bytes have changed."""
MEND = "restore a snapshot over it or delete it"
"""What its owner can do about a corpus of which bytes have changed."""


class Refused(NamedTuple):
    """Why a file that was there at the start can't be served."""

    why: str
    """And what to do about it."""
    damaged: bool
    """Else it is as somebody wrote it, or can't be read for now: its name is not for another."""

    @classmethod
    def of(cls, path: Path, error: ServiceError | StoreError) -> Refused:
        """What `error` says of the file `path`."""
        why, damaged = str(error).replace(str(path), path.name), isinstance(error, Damaged)
        if isinstance(error, ServiceError) and not damaged:
            why = f"{why}; mend that and start again"
        return cls(why, damaged)

    def told(self) -> Unhealthy:
        """What a caller is answered with."""
        return (Damaged if self.damaged else Unhealthy)(self.why)


class DamageError(Exception):
    """A row is not what was written; the message says which, `logged` without an id of a document."""

    def __init__(self, message: str, logged: str | None = None) -> None:
        super().__init__(message)
        self.logged = logged or message


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the disk, which name no file, become what the server answers with.

    A statement that fails is one that the file makes fail: they are all fixed, and of a format that was checked.

    Raises:
        InsufficientStorage: there is no room.
        Damaged: it holds something else than was written.
        Unhealthy: it can't be read or written.
        Stopped: whoever asked for it has gone.
    """
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except (OSError, DamageError, *UNREADABLE) as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
            raise Stopped(f"{path.name}: stopped") from error
        log.error("%s: %s", path, _logged(error))
        told = InsufficientStorage if _is_full(error) else Damaged if is_damage(error) else Unhealthy
        raise told(f"{path.name}: {error}") from error


def _logged(error: Exception) -> str:
    """Without what is of documents: sqlite3 quotes a text that it can't decode."""
    return str(getattr(error, "logged", error)).partition(" with text ")[0]


def _is_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def is_damage(error: Exception) -> bool:
    """Whether bytes have changed.

    Of SQLite's codes the lowest byte says what is wrong, those above it how it was noticed. Python's own error, of a
    text that is not UTF-8, has none.
    """
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return not isinstance(error, OSError)
