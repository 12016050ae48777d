"""Records of accepted uploads, in a file of this server.

An upload counts as written when it is accepted. Its job writes the documents later. The job must therefore not
overwrite documents that other requests have written since the upload was accepted. The records are not in Milvus,
because Milvus has no transactions. Writes by other servers are not recorded.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from models.bundle.disk import make_folder
from serving.operations.files import disk_errors

_TABLES = """
CREATE TABLE IF NOT EXISTS uploads (corpus TEXT, job TEXT, PRIMARY KEY (corpus, job)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS overtaken (corpus TEXT, job TEXT, id TEXT, PRIMARY KEY (corpus, job, id),
    FOREIGN KEY (corpus, job) REFERENCES uploads ON DELETE CASCADE) STRICT, WITHOUT ROWID;
"""


class Uploads:
    """Accepted uploads by corpus, and the ids that other requests have written or deleted since an upload was accepted.

    The methods are thread-safe. When a method returns, its change is on disk.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        with disk_errors(file):
            make_folder(file.parent)
            self._database = sqlite3.connect(file, check_same_thread=False)
            for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON"):
                self._database.execute(statement)
            self._database.executescript(_TABLES)

    def accept(self, corpus: str, job: str) -> None:
        self._write("INSERT OR IGNORE INTO uploads VALUES (?, ?)", [(corpus, job)])

    def accepted(self, corpus: str) -> list[str]:
        with self._lock:
            select = "SELECT job FROM uploads WHERE corpus = ? ORDER BY job"
            return [job for (job,) in self._database.execute(select, (corpus,))]

    def release(self, corpus: str, job: str) -> None:
        self._write("DELETE FROM uploads WHERE corpus = ? AND job = ?", [(corpus, job)])

    def forget(self, corpus: str) -> None:
        """Delete all records of a corpus."""
        self._write("DELETE FROM uploads WHERE corpus = ?", [(corpus,)])

    def note(self, corpus: str, ids: Sequence[str]) -> None:
        """Record that a request outside of any upload's job writes or deletes the documents `ids`.

        The jobs of the corpus's accepted uploads must then skip these documents (see `overtaken`).
        """
        insert = "INSERT OR IGNORE INTO overtaken SELECT corpus, job, ? FROM uploads WHERE corpus = ?"
        self._write(insert, [(id, corpus) for id in ids])

    def overtaken(self, corpus: str, job: str) -> set[str]:
        """Return the ids that a job must skip, because later requests have written or deleted these documents."""
        with self._lock:
            select = "SELECT id FROM overtaken WHERE corpus = ? AND job = ?"
            return {id for (id,) in self._database.execute(select, (corpus, job))}

    def close(self) -> None:
        self._database.close()

    def _write(self, statement: str, rows: Sequence[tuple[str, ...]]) -> None:
        with self._lock, disk_errors(self._file), self._database:  # one transaction
            self._database.executemany(statement, rows)
