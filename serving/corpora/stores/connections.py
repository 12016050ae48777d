"""Connections to SQLite files. Each file has one writer, and one reader for each concurrent read."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from serving.corpora.ports import Stop
from serving.errors import Damaged, NotFound
from serving.operations.failpoints import reach
from serving.operations.files import PATIENCE, connect, disk_errors
from serving.operations.threads import check_cancelled, is_cancelled

log = logging.getLogger(__name__)
MEND = "restore a snapshot over it or delete it"
"""Advice in the error message about a damaged file."""
MOST = 128
"""Maximum number of corpora with open files. An open corpus needs about 300 KB and three file descriptors. Each of its
open readers needs two more file descriptors. Opening a corpus takes half a millisecond."""
STEPS = 100_000
"""Number of instructions of SQLite's virtual machine between two checks for cancellation. These instructions take a few
milliseconds."""
READ_STEPS = 5 * STEPS
"""Number of instructions between two checks for cancellation in a read. Reads check less often, because each check
waits for Python's interpreter lock."""
LOG_BYTES = 64 << 20
"""Maximum bytes of the write-ahead log. If the log is larger after a write, the write checkpoints it, unless a long
read prevents this."""
_LOG_PATIENCE_MS = 500
_KEPT = 4
"""Number of readers that stay open between reads. Each needs two file descriptors."""


class Connections:
    """Connections to one SQLite file, which are opened on demand and stay open.

    Readers wait neither for the writer nor for each other. After `close`, each read or write raises `NotFound`, as if
    the corpus did not exist.
    """

    def __init__(
        self, path: Path, synchronous: str = "FULL", stop: Stop | None = None, open_files: OpenFiles | None = None
    ) -> None:
        self.path = path
        self._log = path.with_name(f"{path.name}-wal")
        self.writes = 0
        """Number of writes, including failed writes. The result of a read stays valid until this number changes."""
        self._synchronous = synchronous
        self._stop = stop
        self._open_files = open_files or OpenFiles()
        self._writing = threading.RLock()
        self._turn = threading.Condition()
        """Lock for the following attributes."""
        self._writer: sqlite3.Connection | None = None
        self._idle: list[sqlite3.Connection] = []
        self._reading = 0
        self._alone = False
        self._closed = False
        self._log_bytes = LOG_BYTES
        self.damage = ""
        """Message of the last error that showed that the content of the file is not what was written."""

    @contextmanager
    def disk_errors(self) -> Iterator[None]:
        """Convert errors of the disk in the `with` block to the server's errors, which name the file.

        If the file is damaged, the message also contains the advice `MEND`, and is stored in the attribute `damage`.

        Raises:
            InsufficientStorage: the disk is full.
            Damaged: the content of the file is not what was written.
            Unhealthy: the file can't be read or written.
            Stopped: the work was cancelled while SQLite read the file.
        """
        try:
            with disk_errors(self.path):
                yield
        except Damaged as error:
            self.damage = f"{error.message}; {MEND}, the file is kept as {self.path.name}.damaged"
            raise Damaged(self.damage) from error.__cause__

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run the block in a write transaction.

        When the block has ended, its changes are on disk. After an error, the changes are rolled back.
        """
        with self._used(), self._written(), self.disk_errors():
            writer = self._opened_writer()
            log_bytes = self._log.stat().st_size if self._log.exists() else 0
            try:
                writer.execute("BEGIN IMMEDIATE")
                yield writer
                reach("store.before-commit")
                writer.execute("COMMIT")
            except BaseException as error:
                self._undo(writer)
                if isinstance(error, sqlite3.Error):  # nothing is committed
                    # The log keeps the space of the undone changes. On a full disk, a deletion may need this space.
                    with suppress(OSError):
                        os.truncate(self._log, log_bytes)
                raise
            reach("store.after-commit")
            self._bound_log(writer)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a read transaction, which sees one snapshot of the file.

        Keep the block short, because an open transaction prevents a complete checkpoint of the write-ahead log.

        Raises:
            Stopped: the caller has left or the server stops.
        """
        check_cancelled()
        with self._used(), self.disk_errors():
            reader = self._take()
            try:
                reader.set_progress_handler(self._stop or is_cancelled, READ_STEPS)
                reader.execute("BEGIN")
                yield reader
            finally:
                self._give(reader)

    @contextmanager
    def maintaining(self) -> Iterator[sqlite3.Connection]:
        """Hold the write lock while the block runs, and yield the connection for writes. No transaction is begun."""
        with self._used(), self._written(), self.disk_errors():
            yield self._opened_writer()

    def checkpoint_soon(self) -> None:
        """Checkpoint the write-ahead log, unless a long read prevents the checkpoint.

        The checkpoint empties the log. The checkpoint also shortens the database file if the database has become
        smaller.
        """
        with self.maintaining() as writer:
            self._checkpoint_soon(writer)

    @contextmanager
    def set_aside(self, *, checkpointed: bool = True) -> Iterator[None]:
        """Close all connections while the block runs. Meanwhile, reads and writes of other threads wait.

        With `checkpointed`, the write-ahead log is first written into the file and emptied.

        Raises:
            Unhealthy: the log can't be checkpointed; nothing has changed.
        """
        with self._written(), self.disk_errors():
            self.check_open()
            with self._turn:
                self._alone = True
                self._turn.wait_for(lambda: not self._reading)
            try:
                if checkpointed and not _truncated(self._opened_writer()):
                    raise OSError("its log is in use")
                self._close_connections()
                yield
                self.damage = ""  # the block may have replaced the file
            finally:
                with self._turn:
                    self._alone = False
                    self._turn.notify_all()

    def check_open(self) -> None:
        """Raise `NotFound` if `close` was called."""
        if self._closed:
            raise NotFound(f"there is no corpus {self.path.stem!r}")

    def close_if_idle(self) -> None:
        """Close the connections, unless they are in use. The next use reopens them."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            with self._turn:
                # An outer block of this thread uses the connections.
                if self._alone or (self._writer and self._writer.in_transaction):
                    return
                self._close_connections()
        finally:
            self._writing.release()

    def close(self) -> None:
        """Close the connections permanently, even if the disk fails.

        If it fails, committed changes may remain in the write-ahead log. SQLite applies them when the file is opened
        the next time.
        """
        with self._writing:
            with self._turn:
                self._closed = True
                self._turn.notify_all()
                self._turn.wait_for(lambda: not self._reading)
            self._close_connections()
            self._open_files.closed(self)

    @contextmanager
    def _used(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._open_files.used(self)

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Hold the write lock while the block runs, and increase the counter `writes` when the block has ended.

        The block commits its changes before it ends. A reader that sees the new number therefore also sees the changes.
        """
        with self._writing:
            try:
                yield
            finally:
                self.writes += 1

    def _close_connections(self) -> None:
        for reader in self._idle:
            reader.close()
        self._idle.clear()
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _opened_writer(self) -> sqlite3.Connection:
        self.check_open()
        if self._writer is None:
            writer = self._connect()
            try:
                writer.execute(f"PRAGMA synchronous = {self._synchronous}")
                writer.execute("PRAGMA journal_mode = WAL")
                writer.execute("PRAGMA foreign_keys = ON")
            except BaseException:
                writer.close()
                raise
            self._writer = writer
        return self._writer

    def _undo(self, writer: sqlite3.Connection) -> None:
        """Roll back the transaction of a failed write, unless SQLite itself has already rolled it back.

        If the rollback fails, close the connection, so that nothing gets committed.
        """
        try:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
        except sqlite3.Error:
            log.exception("%s: could not roll back; the connection is opened again", self.path)
            self._writer = None
            writer.close()

    def _bound_log(self, writer: sqlite3.Connection) -> None:
        """Checkpoint the write-ahead log if it is too large.

        SQLite's automatic checkpoints can't empty the log if readers use the log all the time. This checkpoint waits
        for the readers, up to `_LOG_PATIENCE_MS`. Other writes wait meanwhile.
        """
        with suppress(OSError, sqlite3.Error):  # the write is committed, and the next write will report a failing disk
            size = self._log.stat().st_size
            if size <= (self._log_bytes if self._reading else LOG_BYTES):
                return
            # A long read prevents the checkpoint, so don't try again at every commit.
            self._log_bytes = size + LOG_BYTES
            if self._checkpoint_soon(writer):
                self._log_bytes = LOG_BYTES

    @staticmethod
    def _checkpoint_soon(writer: sqlite3.Connection) -> bool:
        """Checkpoint the write-ahead log. Return False if a long read prevented the checkpoint."""
        writer.execute(f"PRAGMA busy_timeout = {_LOG_PATIENCE_MS}")
        try:
            return _truncated(writer)
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


def _truncated(writer: sqlite3.Connection) -> bool:
    """Checkpoint and truncate the write-ahead log. Return False if another connection uses the log."""
    busy, _, _ = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


@contextmanager
def stopping(connection: sqlite3.Connection, stop: Stop) -> Iterator[None]:
    """Interrupt running SQL statements in the block when `stop` returns True."""
    connection.set_progress_handler(stop, STEPS)
    try:
        yield
    finally:
        connection.set_progress_handler(None, STEPS)


class Reopenable(Protocol):
    """A resource that is opened on demand."""

    def close_if_idle(self) -> None:
        """Close the resource, unless it is in use.

        `OpenFiles.used` calls this method if too many files are open. The users of a resource call `OpenFiles.used`
        after each use.
        """


class OpenFiles:
    """Limit on the number of open files.

    If more than `most` files are open, the least recently used file is closed, unless this file is in use.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: dict[Reopenable, None] = {}
        """Open files. The most recently used file is last."""

    def used(self, file: Reopenable) -> None:
        """Record a use of `file`.

        If too many files are open, close the least recently used one. If that one is in use, it stays open.
        """
        with self._lock:
            self._open.pop(file, None)
            self._open[file] = None
            longest = next(iter(self._open))
            if len(self._open) <= self._most:
                return
            del self._open[longest]
        longest.close_if_idle()

    def closed(self, file: Reopenable) -> None:
        """Forget a file that was closed permanently."""
        with self._lock:
            self._open.pop(file, None)
