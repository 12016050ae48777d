"""The format of a corpus file, as the numbered steps that lead to it. A step that has been released never changes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from serving.ports import StoreError

APPLICATION = int.from_bytes(b"ISOS")
"""SQLite's `application_id`: what tells a corpus file from any other database."""
_MAGIC, _APPLICATION_AT = b"SQLite format 3\0", slice(68, 72)
"""https://www.sqlite.org/fileformat.html, section 1.3."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE corpora (
            name TEXT PRIMARY KEY,
            description TEXT,
            recall_target REAL,
            created REAL NOT NULL,
            fingerprint TEXT,
            dim INTEGER
        ) STRICT""",
        # AUTOINCREMENT: a key that was ever given out is never given out again.
        """CREATE TABLE documents (
            key INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            text TEXT NOT NULL,
            metadata TEXT NOT NULL
        ) STRICT""",
        # Apart from the texts, so that an index is rebuilt without reading them.
        """CREATE TABLE vectors (
            key INTEGER PRIMARY KEY REFERENCES documents(key) ON DELETE CASCADE,
            vector BLOB NOT NULL
        ) STRICT""",
    ),
)


def is_foreign(path: Path) -> bool:
    """Whether somebody else wrote this file. Looks at its first bytes only: SQLite may write when it opens one."""
    with path.open("rb") as file:
        header = file.read(100)
    ours = header.startswith(_MAGIC) and header[_APPLICATION_AT] == APPLICATION.to_bytes(4)
    return bool(header) and not ours


def mark(path: Path) -> None:
    """Make an empty file ours. Before the file has a write-ahead log, so that the mark is in its first page."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION}")


def migrate(connection: sqlite3.Connection, file: Path) -> None:
    """Run the steps that the file lacks, inside the caller's transaction.

    Raises:
        StoreError: the file was written by a later version.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise StoreError(f"{file}: written by a later version (format {version}, known up to {len(MIGRATIONS)})")
    if version == len(MIGRATIONS):
        return
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
