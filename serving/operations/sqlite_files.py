"""SQLite files: connections, and the side files that SQLite keeps beside each."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from weakref import WeakSet

from models.bundle.disk import fsync

PATIENCE = 60.0
"""Seconds to wait for a lock. Locks are held briefly, so the timeout occurs only if there is a bug."""
_SIDE = ("-journal", "-wal", "-shm")
"""Suffixes of SQLite's side files. They exist while the file is open, and after a crash."""


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing file. No other process may use the file. Any thread may use the connection.

    Raises:
        sqlite3.OperationalError: the file does not exist.
    """
    # The VFS unix-excl keeps the index of the write-ahead log in memory. The default VFS writes it to a file beside
    # the log. On a full disk that fails, and nothing could be read.
    existing = f"{path.absolute().as_uri()}?mode=rw&vfs=unix-excl"
    return sqlite3.connect(
        existing, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False, factory=_Connection
    )


class _Connection(sqlite3.Connection):
    """A connection whose rollback also closes its cursors.

    After a stopped read, the exception may still refer to a cursor with unread rows. Such a cursor keeps its snapshot
    of the file after a rollback unless it is closed.
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
    """Delete the file and its side files."""
    path.unlink(missing_ok=True)
    remove_side_files(path)
    fsync(path.parent)


def remove_side_files(path: Path) -> None:
    """Delete the side files. SQLite would replay a leftover log into a later file of the same name."""
    for beside in with_side_files(path)[1:]:
        beside.unlink(missing_ok=True)


def with_side_files(path: Path) -> list[Path]:
    """Return the file and its possible side files."""
    return [path.with_name(path.name + suffix) for suffix in ("", *_SIDE)]


def move(file: Path, to: Path) -> None:
    """Rename `file` to `to` in one step. `to` must not be open."""
    remove_side_files(to)
    file.replace(to)
    fsync(to.parent)
