"""The format of a corpus file, as numbered migrations. A released migration never changes."""

from __future__ import annotations

import logging
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from unicodedata import unidata_version

import orjson

from serving.ports import Document, Stemming, StoreError
from serving.stores import fields, overtaken, reading, vectors, words
from serving.stores.failures import DamageError
from serving.stores.records import DOCUMENT, PASSAGE, DocumentRow, PassageRow

log = logging.getLogger(__name__)
APPLICATION = int.from_bytes(b"ISOS")
"""SQLite's `application_id`, which distinguishes a corpus file from any other database."""
_MAGIC, _APPLICATION_AT = b"SQLite format 3\0", slice(68, 72)
"""Parts of the header; see https://www.sqlite.org/fileformat.html, section 1.3."""
_PAGE_BYTES = 8192
"""Page size that fits five vectors of 384 dimensions. SQLite's default of 4096 bytes fits two vectors and wastes a
quarter of the page (ADR 0018)."""

_FOLDED_SINCE = 6
_UNFOLDED: dict[Stemming, str] = {
    "none": "CREATE VIRTUAL TABLE words USING fts5(text, content = '', tokenize = 'unicode61 remove_diacritics 2')",
    "porter": "CREATE VIRTUAL TABLE words USING fts5("
    "text, content = '', tokenize = 'porter unicode61 remove_diacritics 2')",
}
"""Statements that create the word index, up to format 5."""

TOGETHER = 64
"""Documents in memory at a time. Each may have a megabyte of text."""
Step = Callable[[sqlite3.Connection], None]


def _first(connection: sqlite3.Connection) -> None:
    for statement in (
        """CREATE TABLE corpora (
            name TEXT PRIMARY KEY,
            description TEXT,
            recall_target REAL,
            created REAL NOT NULL,
            fingerprint TEXT,
            dim INTEGER
        ) STRICT""",
        # AUTOINCREMENT: no key is ever assigned twice.
        """CREATE TABLE documents (
            key INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            text TEXT NOT NULL,
            metadata TEXT NOT NULL
        ) STRICT""",
        # Vectors are separate from texts, so that rebuilding an index reads no texts.
        """CREATE TABLE vectors (
            key INTEGER PRIMARY KEY REFERENCES documents(key) ON DELETE CASCADE,
            vector BLOB NOT NULL
        ) STRICT""",
    ):
        connection.execute(statement)


def _passages(connection: sqlite3.Connection) -> None:
    """Add documents of several passages, checksums, words, fields, tombstones and vectors of a second encoder."""
    for statement in (
        "ALTER TABLE vectors RENAME TO vectors_1",
        "ALTER TABLE documents RENAME TO documents_1",
        "ALTER TABLE corpora ADD COLUMN generation TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE corpora ADD COLUMN documents INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE corpora ADD COLUMN passages INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE corpora ADD COLUMN fresh TEXT",
        # A document's number is the key of its first passage.
        """CREATE TABLE documents (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            text TEXT NOT NULL,
            metadata TEXT NOT NULL,
            hash BLOB NOT NULL,
            checksum INTEGER NOT NULL
        ) STRICT""",
        "CREATE INDEX documents_by_hash ON documents (hash)",
        # AUTOINCREMENT: no key is ever assigned twice.
        """CREATE TABLE passages (
            key INTEGER PRIMARY KEY AUTOINCREMENT,
            document INTEGER NOT NULL REFERENCES documents(number) ON DELETE CASCADE,
            start INTEGER,
            "end" INTEGER,
            checksum INTEGER NOT NULL
        ) STRICT""",
        "CREATE INDEX passages_by_document ON passages (document)",
        # Vectors are separate from texts, so that rebuilding an index reads no texts.
        """CREATE TABLE vectors (
            key INTEGER PRIMARY KEY REFERENCES passages(key) ON DELETE CASCADE,
            vector BLOB NOT NULL,
            checksum INTEGER NOT NULL
        ) STRICT""",
        """CREATE TABLE fresh (
            key INTEGER PRIMARY KEY REFERENCES passages(key) ON DELETE CASCADE,
            vector BLOB NOT NULL,
            checksum INTEGER NOT NULL
        ) STRICT""",
        "CREATE TABLE tombstones (key INTEGER PRIMARY KEY) STRICT",
        *fields.TABLES,
    ):
        connection.execute(statement)
    create_words(connection, 2, "none")
    last = 0
    old = """SELECT key, id, text, metadata, vector FROM documents_1 JOIN vectors_1 USING (key)
        WHERE key > ? ORDER BY key LIMIT ?"""
    while rows := connection.execute(old, (last, TOGETHER)).fetchall():
        last = rows[-1][0]
        documents = [
            DocumentRow.of(key, Document(name, text, orjson.loads(metadata)), None)
            for key, name, text, metadata, _ in rows
        ]
        connection.executemany(f"INSERT INTO documents ({DOCUMENT}) VALUES (?, ?, ?, ?, ?, ?)", documents)
        connection.executemany(
            f"INSERT INTO passages ({PASSAGE}) VALUES (?, ?, ?, ?, ?)",
            (PassageRow.of(row.number, row.number, None) for row in documents),
        )
        connection.executemany(
            "INSERT INTO vectors (key, vector, checksum) VALUES (?, ?, ?)",
            ((key, vector, vectors.checksum(key, vector)) for key, *_, vector in rows),
        )
        fields.index(connection, ((row.number, orjson.loads(row.metadata)) for row in documents))
    (given,) = connection.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'documents_1'").fetchone()
    connection.execute("DELETE FROM sqlite_sequence WHERE name = 'passages'")
    connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('passages', ?)", (given or 0,))
    connection.execute("DROP TABLE vectors_1")
    connection.execute("DROP TABLE documents_1")
    connection.execute(
        "UPDATE corpora SET generation = ?, documents = (SELECT count(*) FROM documents), "
        "passages = (SELECT count(*) FROM passages)",
        (secrets.token_hex(8),),
    )


def _spans(connection: sqlite3.Connection) -> None:
    """Add the number of passages that are only a part of their document.

    If it is 0, searches need not read passages.
    """
    connection.execute("ALTER TABLE corpora ADD COLUMN spans INTEGER NOT NULL DEFAULT 0")
    connection.execute("UPDATE corpora SET spans = (SELECT count(start) FROM passages)")


def _uploads(connection: sqlite3.Connection) -> None:
    """Add the table of ids written since an upload was accepted; see `overtaken`."""
    for statement in overtaken.TABLES:
        connection.execute(statement)


def _stemming(connection: sqlite3.Connection) -> None:
    """Add the stemming of the word index."""
    connection.execute("ALTER TABLE corpora ADD COLUMN stemming TEXT")


def _unicode(connection: sqlite3.Connection) -> None:
    """Add the version of Unicode that folded the words; see `_index_words`."""
    connection.execute("ALTER TABLE corpora ADD COLUMN unicode TEXT")
    words.create(connection)


def _fields_within_lists(connection: sqlite3.Connection) -> None:
    """Post all metadata again. Earlier postings lacked objects in lists, names with dots, and dates."""
    connection.execute("DELETE FROM postings")
    # A damaged document must not keep the corpus from being served.
    readable = fields.numbers(connection, "SELECT number FROM documents WHERE json_valid(metadata)")
    for start in range(0, len(readable), TOGETHER):
        some = fields.documents(connection, readable[start : start + TOGETHER])
        fields.index(connection, ((number, metadata) for number, _, metadata in some))


MIGRATIONS: tuple[Step, ...] = (_first, _passages, _spans, _uploads, _stemming, _unicode, _fields_within_lists)


def create_words(connection: sqlite3.Connection, format: int, stemming: Stemming) -> None:
    """Create the empty word index that files of `format` have."""
    words.create(connection, stemming)
    if format < _FOLDED_SINCE:
        connection.execute("DROP TABLE words")
        connection.execute(_UNFOLDED[stemming])


def check_ours(path: Path) -> None:
    """Check the first bytes only, because SQLite may write when it opens a file.

    Raises:
        DamageError: the file is empty or begins with zeros.
        StoreError: another program wrote this file.
    """
    with path.open("rb") as file:
        header = file.read(100)
    if not any(header):
        raise DamageError("holds no corpus: it is empty, or begins with zeros")
    if not (header.startswith(_MAGIC) and header[_APPLICATION_AT] == APPLICATION.to_bytes(4)):
        raise StoreError(f"{path}: not a corpus of this server; move it elsewhere and start again")


def mark(path: Path) -> None:
    """Mark a new file as ours. Call this before the write-ahead log is used, so that the mark is in the file itself."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")


def migrate(connection: sqlite3.Connection, file: Path) -> None:
    """Run the missing migrations inside the caller's transaction, and reindex outdated words.

    Raises:
        StoreError: a later version wrote the file.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        known = f"format {version}, known up to {len(MIGRATIONS)}"
        raise StoreError(f"{file}: written by a later version ({known}); start that version")
    if version < len(MIGRATIONS):
        for step in MIGRATIONS[version:]:
            step(connection)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    _index_words(connection, file)


def _index_words(connection: sqlite3.Connection, file: Path) -> None:
    """Reindex all words if another version of Unicode folded them.

    FTS5 can only delete a passage if it gets the words that it indexed.
    """
    found = connection.execute("SELECT unicode FROM corpora").fetchone()
    if found in (None, (unidata_version,)):
        return
    log.info("%s: words are indexed anew, by Unicode %s", file, unidata_version)
    words.create(connection, reading.corpus(connection).wanted_stemming)
    words.index(connection, _texts(connection))
    connection.execute("UPDATE corpora SET unicode = ?", (unidata_version,))


def _texts(connection: sqlite3.Connection) -> Iterator[tuple[int, str]]:
    """Yield the texts of all passages in the order of their keys.

    Wrong checksums don't keep the corpus from being served.
    """
    parts = 'SELECT key, start, "end" FROM passages WHERE document = ? ORDER BY key'
    for number, text in connection.execute("SELECT number, text FROM documents ORDER BY number"):
        for key, start, end in connection.execute(parts, (number,)):
            yield key, text[start:end]
