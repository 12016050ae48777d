"""Errors of files, and functions for SQLite databases with their side files."""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import ref

import orjson

from models.bundle.disk import fsync
from serving.errors import Damaged, InsufficientStorage, Stopped, Unhealthy

log = logging.getLogger(__name__)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError, orjson.JSONDecodeError)
"""Exceptions by which SQLite and parsers report a damaged file."""
PATIENCE = 60.0
"""Timeout of SQLite's locks, in seconds. Locks are held briefly, so only a bug can cause a timeout."""
_SIDE = ("-journal", "-wal", "-shm")
"""Suffixes of SQLite's side files. These files exist while the database is open, and after a crash."""


class DamageError(Exception):
    """A stored row is not the row that was written.

    The message names the row. `logged` is the message without ids of documents.
    """

    def __init__(self, message: str, logged: str | None = None) -> None:
        super().__init__(message)
        self.logged = logged or message


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert errors of the disk in the `with` block to the server's errors, which name the file `path`.

    A failed SQL statement also counts as an error of the file. The statements are part of the program, and the file's
    format was checked before, so the cause of such a failure is the file or its disk.

    Raises:
        InsufficientStorage: the disk is full.
        Damaged: the content of the file is not what was written.
        Unhealthy: the file can't be read or written.
        Stopped: the work was cancelled while SQLite read the file.
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
    """Return the message of `error` without content of documents.

    If sqlite3 can't decode a text, its message quotes the text. The quotation is removed.
    """
    return str(getattr(error, "logged", error)).partition(" with text ")[0]


def _is_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def is_damage(error: Exception) -> bool:
    """Return whether `error` shows that the file is damaged.

    The lowest byte of a SQLite error code is the kind of error, and the higher bytes are details. A SQLite error
    without a code counts as damage, because Python raises such an error for text that is not UTF-8.
    """
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return not isinstance(error, OSError)


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing SQLite file. While it is open, no other process can open it.

    Any thread may use the connection.

    Raises:
        sqlite3.OperationalError: the file does not exist.
    """
    # With the VFS unix-excl, SQLite keeps the index of the write-ahead log in memory. With the default VFS, SQLite
    # writes the index to a file. This write fails on a full disk, and the database would then be unreadable.
    existing = f"{path.absolute().as_uri()}?mode=rw&vfs=unix-excl"
    return sqlite3.connect(
        existing, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False, factory=_Connection
    )


class _Connection(sqlite3.Connection):
    """A connection that closes its cursors when it rolls back.

    After a stopped read, the exception may still refer to a cursor with unread rows. The open cursor would keep its
    snapshot of the file, even after the rollback.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cursors: set[ref[sqlite3.Cursor]] = set()  # a `WeakSet` takes longer

    def execute(self, *args: Any) -> sqlite3.Cursor:
        made = super().execute(*args)
        self._cursors.add(ref(made, self._cursors.discard))
        return made

    def rollback(self) -> None:
        for cursor in [found for one in list(self._cursors) if (found := one())]:
            cursor.close()
        super().rollback()


def remove(path: Path) -> None:
    """Delete a SQLite database and its side files, such as its write-ahead log."""
    path.unlink(missing_ok=True)
    remove_side_files(path)
    fsync(path.parent)


def remove_side_files(path: Path) -> None:
    """Delete the side files of a SQLite database, such as its write-ahead log.

    Otherwise SQLite would apply an old log to a new database of the same name.
    """
    for beside in with_side_files(path)[1:]:
        beside.unlink(missing_ok=True)


def with_side_files(path: Path) -> list[Path]:
    """Return the paths of a database and of its side files, which may not exist."""
    return [path.with_name(path.name + suffix) for suffix in ("", *_SIDE)]


def move(file: Path, to: Path) -> None:
    """Rename `file` to `to` atomically. No process may have `to` open."""
    remove_side_files(to)
    file.replace(to)
    fsync(to.parent)
