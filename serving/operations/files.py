"""File errors, and SQLite databases with their side files."""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import orjson

from models.bundle.disk import fsync
from serving.errors import Damaged, InsufficientStorage, Stopped, Unhealthy

log = logging.getLogger(__name__)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError, orjson.JSONDecodeError)
"""Exceptions that SQLite and parsers raise if a file is damaged."""
PATIENCE = 60.0
"""Timeout of SQLite locks in seconds. Locks are held briefly, so only a bug can cause a timeout."""
_SIDE = ("-journal", "-wal", "-shm")
"""Suffixes of SQLite's side files. These files exist while the database is open, and after a crash."""


class DamageError(Exception):
    """A row differs from what was written. The message names the row. `logged` is the message without document ids."""

    def __init__(self, message: str, logged: str | None = None) -> None:
        super().__init__(message)
        self.logged = logged or message


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert disk errors, which name no file, to the server's errors for the file `path`.

    A failed SQL statement means a damaged file, because the statements are fixed and the file's format was checked.

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
    """Return the message of `error` without document content. sqlite3 quotes text that it can't decode."""
    return str(getattr(error, "logged", error)).partition(" with text ")[0]


def _is_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def is_damage(error: Exception) -> bool:
    """Return whether `error` means that the file is damaged.

    The lowest byte of a SQLite error code is the kind of error. The higher bytes are details. Python's own error for
    text that is not UTF-8 has no code.
    """
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return not isinstance(error, OSError)


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing SQLite file exclusively for this process. Any thread may use the connection.

    Raises:
        sqlite3.OperationalError: the file does not exist.
    """
    # The VFS unix-excl keeps the index of the write-ahead log in memory. The default VFS writes the index to a file,
    # which fails on a full disk. The database would then be unreadable.
    existing = f"{path.absolute().as_uri()}?mode=rw&vfs=unix-excl"
    return sqlite3.connect(
        existing, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False, factory=_Connection
    )


class _Connection(sqlite3.Connection):
    """A connection whose rollback also closes its cursors.

    After a stopped read, the exception may still refer to a cursor with unread rows. An open cursor would keep its
    snapshot of the file even after the rollback.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def execute(self, *args: Any) -> sqlite3.Cursor:
        made = super().execute(*args)
        self._cursors.add(made)
        return made

    def rollback(self) -> None:
        for cursor in list(self._cursors):
            cursor.close()
        super().rollback()


def remove(path: Path) -> None:
    """Delete the database and its side files."""
    path.unlink(missing_ok=True)
    remove_side_files(path)
    fsync(path.parent)


def remove_side_files(path: Path) -> None:
    """Delete the side files. Otherwise SQLite would replay an old log into a new database of the same name."""
    for beside in with_side_files(path)[1:]:
        beside.unlink(missing_ok=True)


def with_side_files(path: Path) -> list[Path]:
    """Return the paths of the database and of its possible side files."""
    return [path.with_name(path.name + suffix) for suffix in ("", *_SIDE)]


def move(file: Path, to: Path) -> None:
    """Rename `file` to `to` atomically. `to` must not be open."""
    remove_side_files(to)
    file.replace(to)
    fsync(to.parent)
