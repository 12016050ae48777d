"""The format of a corpus file, as the numbered steps that lead to it. A step that has been released never changes."""

from __future__ import annotations

import sqlite3

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


def migrate(connection: sqlite3.Connection, file: str) -> None:
    """Run the steps that the file lacks, inside the caller's transaction.

    Raises:
        ValueError: the file was written by a later version.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise ValueError(f"{file}: written by a later version (format {version}, known up to {len(MIGRATIONS)})")
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
