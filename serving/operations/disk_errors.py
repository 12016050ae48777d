"""Errors of the disk and of damaged files, translated into errors that name the file."""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from serving.errors import Damaged, InsufficientStorage, Stopped, Unhealthy

log = logging.getLogger(__name__)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError, orjson.JSONDecodeError)
"""Exceptions that occur when a file's bytes have changed."""


class DamageError(Exception):
    """A row differs from what was written. The message names it; `logged` contains no document id."""

    def __init__(self, message: str, logged: str | None = None) -> None:
        super().__init__(message)
        self.logged = logged or message


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Translate disk errors, which name no file, into the server's errors.

    If a statement fails, the file is the cause, because statements are fixed and the file's format was checked.

    Raises:
        InsufficientStorage: the disk is full.
        Damaged: the file differs from what was written.
        Unhealthy: the file can't be read or written.
        Stopped: the caller has left.
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
    """Return the message without document content, because sqlite3 quotes text that it can't decode."""
    return str(getattr(error, "logged", error)).partition(" with text ")[0]


def _is_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def is_damage(error: Exception) -> bool:
    """Return whether `error` means that bytes have changed.

    The lowest byte of a SQLite error code is the kind of error. The higher bytes are details. Python's own error for
    text that is not UTF-8 has no code.
    """
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return not isinstance(error, OSError)
