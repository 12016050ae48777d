"""The connections to one SQLite file: one that writes, as many that read as there are readers at once."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from serving.cancelling import check_cancelled, is_cancelled
from serving.errors import Damaged, NotFound
from serving.failpoints import reach
from serving.ports import Stop
from serving.stores.failures import MEND, naming
from serving.stores.open_files import OpenFiles

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds to wait for a lock. Nobody holds one for long: it stands between a bug and a caller."""
STEPS = 100_000
"""Of SQLite's machine between two looks whether to stop: some milliseconds."""
READ_STEPS = 5 * STEPS
"""The same of a read: each look waits for the interpreter, which others may keep busy."""
LOG_BYTES = 64 << 20
"""Of the write-ahead log, beyond which it is folded into the file even if readers must be waited for."""
_LOG_PATIENCE_MS = 500
_KEPT = 4
"""Readers that stay open between reads: each takes two file descriptors."""


class _Connection(sqlite3.Connection):
    """Its reads end with their transaction. A cursor with rows left keeps its moment of the file beyond a rollback, and
    the error of a read that was stopped may hold one for long.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def execute(self, *args: Any) -> sqlite3.Cursor:
        """See `sqlite3.Connection`."""
        made = super().execute(*args)
        self._cursors.add(made)
        return made

    def rollback(self) -> None:
        """See `sqlite3.Connection`."""
        for cursor in list(self._cursors):
            cursor.close()
        super().rollback()


class Connections:
    """Readers wait neither for the writer nor for each other. Opened where they are needed, kept where they were.

    Closed, while others want to use it, it is a corpus that is not there: `NotFound`.
    """

    def __init__(
        self, path: Path, synchronous: str = "FULL", stop: Stop | None = None, open_files: OpenFiles | None = None
    ) -> None:
        self.path = path
        self.writes = 0
        """How often something may have been written: the same before and after, and so is what was read."""
        self._synchronous = synchronous
        self._stop = stop
        self._open_files = open_files or OpenFiles()
        self._writing = threading.RLock()
        self._turn = threading.Condition()
        """Around what follows."""
        self._writer: sqlite3.Connection | None = None
        self._idle: list[sqlite3.Connection] = []
        self._reading = 0
        self._alone = False
        self._closed = False
        self._log_bytes = LOG_BYTES
        self.damaged = False
        """Whether something else than was written has been found in the file."""

    @contextmanager
    def naming(self) -> Iterator[None]:
        """See `failures.naming`; damage is remembered, and what can be done about it is said."""
        try:
            with naming(self.path):
                yield
        except Damaged as error:
            self.damaged = True
            kept = f"the file is kept as {self.path.name}.damaged"
            raise Damaged(f"{error.message}; {MEND}, {kept}") from error.__cause__

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: committed and on disk after the block, or undone."""
        with self._used(), self._written(), self.naming():
            writer = self._opened_writer()
            try:
                writer.execute("BEGIN IMMEDIATE")
                yield writer
                reach("store.before-commit")
                writer.execute("COMMIT")
            except BaseException:
                self._undo(writer)
                raise
            reach("store.after-commit")
            self._bound_log(writer)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One moment of the file, whatever is committed meanwhile. Not for long: the log can't be folded before it.

        Raises:
            Stopped: nobody waits for what is read any more.
        """
        check_cancelled()
        with self._used(), self.naming():
            reader = self._take()
            try:
                reader.set_progress_handler(self._stop or is_cancelled, READ_STEPS)
                reader.execute("BEGIN")
                yield reader
            finally:
                self._give(reader)

    @contextmanager
    def maintaining(self) -> Iterator[sqlite3.Connection]:
        """The writer outside of a transaction."""
        with self._used(), self._written(), self.naming():
            yield self._opened_writer()

    def fold_soon(self) -> None:
        """Bring the log into the file, which then is as short as what it holds, unless readers keep it from that."""
        with self.maintaining() as writer:
            self._fold_soon(writer)

    @contextmanager
    def alone(self, *, folded: bool) -> Iterator[None]:
        """Nobody has the file open, and if `folded` there is nothing in its log; others wait for the end of the block.

        Raises:
            Unhealthy: the log can't be folded; nothing has changed.
        """
        with self._written(), self.naming():
            self.check_open()
            with self._turn:
                self._alone = True
                self._turn.wait_for(lambda: not self._reading)
            try:
                self._close_readers()
                if folded:
                    self._fold()
                self._close_writer()
                yield
                self.damaged = False  # it may be another file
            finally:
                with self._turn:
                    self._alone = False
                    self._turn.notify_all()

    def check_open(self) -> None:
        """Raise `NotFound` where it has been closed for good."""
        if self._closed:
            raise NotFound(f"there is no corpus {self.path.stem!r}")

    def rest(self) -> None:
        """Close, unless somebody uses it now; the next who does opens it again."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            with self._turn:
                if self._alone or (self._writer and self._writer.in_transaction):  # in an outer block of this thread
                    return
                self._close_readers()
                self._close_writer()
        finally:
            self._writing.release()

    def close(self) -> None:
        """Let go, whatever the disk says: what is not folded is in the log, and replayed when the file is opened."""
        with self._writing:
            with self._turn:
                self._closed = True
                self._turn.notify_all()
                self._turn.wait_for(lambda: not self._reading)
            self._close_readers()
            self._close_writer()
            self._open_files.closed(self)

    @contextmanager
    def _used(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._open_files.used(self)

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Nobody else writes; counted once it is committed, so that who sees the count sees what was written."""
        with self._writing:
            try:
                yield
            finally:
                self.writes += 1

    def _close_readers(self) -> None:
        for reader in self._idle:
            reader.close()
        self._idle.clear()

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _fold(self) -> None:
        busy, _, _ = self._opened_writer().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise OSError("its log is in use")

    def _opened_writer(self) -> sqlite3.Connection:
        self.check_open()
        if self._writer is None:
            writer = self._connect()
            try:
                writer.execute("PRAGMA journal_mode = WAL")
                writer.execute(f"PRAGMA synchronous = {self._synchronous}")
                writer.execute("PRAGMA foreign_keys = ON")
            except BaseException:
                writer.close()
                raise
            self._writer = writer
        return self._writer

    def _undo(self, writer: sqlite3.Connection) -> None:
        """Some errors have rolled back already; what can't be rolled back is never committed by a new connection."""
        try:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
        except sqlite3.Error:
            log.exception("%s: could not roll back; opened anew", self.path)
            self._writer = None
            writer.close()

    def _bound_log(self, writer: sqlite3.Connection) -> None:
        """SQLite folds the log when it can; under readers that never pause it never can, so they are made to."""
        beside = self.path.with_name(self.path.name + "-wal")
        size = beside.stat().st_size if beside.exists() else 0
        if size <= (self._log_bytes if self._reading else LOG_BYTES):
            return
        self._log_bytes = size + LOG_BYTES  # a long reader is there: not again at every commit
        with suppress(sqlite3.Error):  # the write is committed, and the next one sees a disk that fails
            if self._fold_soon(writer):
                self._log_bytes = LOG_BYTES

    @staticmethod
    def _fold_soon(writer: sqlite3.Connection) -> bool:
        """Whether the log is in the file: a reader that does not end soon keeps it."""
        writer.execute(f"PRAGMA busy_timeout = {_LOG_PATIENCE_MS}")
        try:
            busy, _, _ = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not busy
        finally:
            writer.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000:.0f}")

    def _take(self) -> sqlite3.Connection:
        with self._turn:
            self._turn.wait_for(lambda: not self._alone)
            self.check_open()
            self._reading += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self._connect()
        except BaseException:
            with self._turn:
                self._reading -= 1
                self._turn.notify_all()
            raise

    def _give(self, reader: sqlite3.Connection) -> None:
        try:
            reader.rollback()
            kept = len(self._idle) < _KEPT
        except sqlite3.Error:
            log.exception("%s: a reader could not end its transaction", self.path)
            kept = False
        if not kept:
            reader.close()
        with self._turn:
            self._reading -= 1
            self._idle += [reader] if kept else []
            self._turn.notify_all()

    def _connect(self) -> sqlite3.Connection:
        made = connect(self.path)
        made.set_progress_handler(self._stop, STEPS)
        return made


def connect(path: Path) -> sqlite3.Connection:
    """Open a file that exists, for the connections of this process alone and from any thread.

    Raises:
        sqlite3.OperationalError: there is no such file.
    """
    # unix-excl keeps the index of the write-ahead log in this process's memory. The other VFS writes that index to a
    # file beside the log, for which a full disk has no room: nothing could be read until there is some.
    existing = f"{path.absolute().as_uri()}?mode=rw&vfs=unix-excl"
    return sqlite3.connect(
        existing, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False, factory=_Connection
    )


@contextmanager
def stopping(connection: sqlite3.Connection, stop: Stop) -> Iterator[None]:
    """Around statements that end by `stop`."""
    connection.set_progress_handler(stop, STEPS)
    try:
        yield
    finally:
        connection.set_progress_handler(None, STEPS)
