"""The format of a corpus file: its numbered migrations, the check of a file from another machine, and verification.

A released migration never changes.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, get_args
from unicodedata import unidata_version

from serving.corpora.ports import StoreError
from serving.corpora.stores import corrections, fields, records, words, writing
from serving.corpora.stores.queries import Rules
from serving.corpora.stores.records import DOCUMENT, PASSAGE, PassageRow, document_in
from serving.corpora.values import Stemming
from serving.operations.bounds import MAX_SEARCHED_FIELDS
from serving.operations.files import UNREADABLE, DamageError

log = logging.getLogger(__name__)
SAID = 20
"""Maximum number of reported errors of one kind. A failing disk can cause the same error in every row."""
APPLICATION = int.from_bytes(b"ISOS")
"""SQLite's `application_id`, which distinguishes a corpus file from any other database."""
_MAGIC, _APPLICATION_AT = b"SQLite format 3\0", slice(68, 72)
"""Beginning of a SQLite file, and the position of the application id; see https://www.sqlite.org/fileformat.html,
section 1.3."""
_PAGE_BYTES = 8192
"""Page size, which has room for five vectors of 384 dimensions. SQLite's default of 4096 bytes has room for two, and
wastes a quarter of the page (ADR 0018)."""
Step = Callable[[sqlite3.Connection], None]
_RENAMED = re.compile(r'^(CREATE TABLE )"(\w+)"')
"""Pattern of the CREATE statement of a renamed table, whose name SQLite quotes. Re-embedding renames tables."""
MAX_STATEMENT = 65_536
"""Maximum bytes of a table's CREATE statement. The statements of this format have a few hundred bytes."""
Schema = frozenset[tuple[str, str, str, str | None]]
"""SQLite's schema of tables and indexes: type, name, table and statement."""


def _first(connection: sqlite3.Connection) -> None:
    """Create the tables of format 1, the format of version 1.0.0."""
    for statement in (
        # spans: number of passages that are only a part of their document. If it is 0, searches don't read passages.
        # unicode: version of Unicode that folded the words; see `_index_words`.
        """CREATE TABLE corpora (
            name TEXT PRIMARY KEY,
            description TEXT,
            recall_target REAL,
            created REAL NOT NULL,
            fingerprint TEXT,
            dim INTEGER,
            generation TEXT NOT NULL DEFAULT '',
            documents INTEGER NOT NULL DEFAULT 0,
            passages INTEGER NOT NULL DEFAULT 0,
            spans INTEGER NOT NULL DEFAULT 0,
            fresh TEXT,
            stemming TEXT,
            unicode TEXT
        ) STRICT""",
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
        *writing.TABLES,
    ):
        connection.execute(statement)
    words.create(connection)


def _second(connection: sqlite3.Connection) -> None:
    """Create format 2 from format 1.

    Add columns and tables for changes of metadata, unfinished renames, settings of word search, expiry of documents,
    and the map of the corpus. Also add the table of the vocabulary, which `_index_words` fills later.
    """
    # revision: number of changes of metadata. Each change makes cached results of filters invalid.
    connection.execute("ALTER TABLE corpora ADD COLUMN revision INTEGER NOT NULL DEFAULT 0")
    # former: name of the file if a rename is not complete yet; see `CorpusFile.take_back`.
    connection.execute("ALTER TABLE corpora ADD COLUMN former TEXT")
    for column in records.WORDS.split(", "):
        connection.execute(f"ALTER TABLE corpora ADD COLUMN {column} TEXT")
    connection.execute(corrections.TABLE)
    connection.execute("ALTER TABLE documents ADD COLUMN expires_at INTEGER")
    connection.execute("CREATE INDEX documents_by_expiry ON documents (expires_at) WHERE expires_at IS NOT NULL")
    # map: origin of the map whose points are in the table `places`.
    connection.execute("ALTER TABLE corpora ADD COLUMN map TEXT")
    connection.execute(records.MAP_TABLE)
    connection.execute("UPDATE corpora SET unicode = NULL")


MIGRATIONS: tuple[Step, ...] = (_first, _second)


def migrate(connection: sqlite3.Connection, file: Path) -> None:
    """Run the missing migrations inside the caller's transaction. If the word index is outdated, index all words again.

    Raises:
        StoreError: a later version wrote the file.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        known = f"format {version}, known up to {len(MIGRATIONS)}"
        raise StoreError(f"{file}: was written by a later version ({known}): use that version")
    if version < len(MIGRATIONS):
        for step in MIGRATIONS[version:]:
            step(connection)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    _index_words(connection, file)


def _index_words(connection: sqlite3.Connection, file: Path) -> None:
    """Index all words again if they were folded by another version of Unicode, or if a migration requires it.

    FTS5 deletes a passage correctly only if it gets the words that were indexed for the passage. Another version of
    Unicode may fold the same passage to other words.
    """
    found = connection.execute("SELECT unicode FROM corpora").fetchone()
    if found in (None, (unidata_version,)):
        return
    log.info("%s: words are indexed again, by Unicode %s", file, unidata_version)
    writing.index_words_again(connection)
    connection.execute("UPDATE corpora SET unicode = ?", (unidata_version,))


def check_ours(path: Path) -> None:
    """Raise an error unless a file begins like a corpus file.

    Only the first bytes are read, because SQLite may write when it opens a file.

    Raises:
        DamageError: the file is empty or begins with zeros.
        StoreError: another program wrote this file.
    """
    with path.open("rb") as file:
        header = file.read(100)
    if not any(header):
        raise DamageError("contains no corpus: it is empty, or begins with zeros")
    if not (header.startswith(_MAGIC) and header[_APPLICATION_AT] == APPLICATION.to_bytes(4)):
        raise StoreError(f"{path}: not a corpus of this server; move it elsewhere and start again")


def mark(path: Path) -> None:
    """Prepare a new SQLite file: set its page size, incremental vacuum, and the application id `APPLICATION`.

    Call this function before the write-ahead log is used, so that the file itself has the application id.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")  # the creator of the file syncs the whole file
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")


# A file from another machine must have the tables of a corpus and nothing else. Views, triggers and expressions in
# tables run whenever a table is read or written, and a malicious file could use them to run forever.


def check_schema(path: Path) -> None:
    """Check the schema of the file, and read nothing else.

    A file of a later format passes this check, because `migrate` refuses the file with a better message.

    Raises:
        StoreError: the schema is not that of the file's format.
    """
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as reader:
        reader.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_STATEMENT)  # must be set before SQLite reads the schema
        (format,), found = reader.execute("PRAGMA user_version").fetchone(), _schema(reader)
    format = max(format, 0)  # formats begin at 0
    if format <= len(MIGRATIONS) and found not in (schemas := _schemas(format)):
        first = min(found.symmetric_difference(schemas[0]), key=lambda one: one[1])
        raise StoreError(f"{path}: not a corpus of this server: {first[0]} {first[1]!r} is not part of format {format}")


@cache
def _schemas(format: int) -> list[Schema]:
    """Return the schemas of a format, one for each combination of a stemming and a number of searched fields."""
    found = []
    fields = range(MAX_SEARCHED_FIELDS + 1 if format > 1 else 1)
    for stemming, count in product(get_args(Stemming), fields):
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
            for step in MIGRATIONS[:format]:
                step(made)
            if format:
                words.create(made, Rules(stemming, weights={str(number): 1.0 for number in range(count)}))
            found.append(_schema(made))
    return found


def _schema(reader: sqlite3.Connection) -> Schema:
    rows = reader.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema")
    return frozenset((kind, name, table, sql and _RENAMED.sub(r"\1\2", sql)) for kind, name, table, sql in rows)


# Verification checks a whole corpus file, row by row.


def verify(reader: sqlite3.Connection) -> list[str]:
    """Return a line for each error in the file, except for errors in the word index.

    The word index is not checked here, because its check needs a connection that may write. If SQLite finds errors in
    the structure of the file, the rows are not checked.
    """
    if said := _structure(reader):
        return said  # rows from broken pages are meaningless
    said = []
    for check in (_rows, _counts, fields.check):
        try:
            said += check(reader)
        except UNREADABLE as error:
            said.append(str(error))
    return said


def _structure(reader: sqlite3.Connection) -> list[str]:
    try:
        found = [line for (line,) in reader.execute(f"PRAGMA integrity_check({SAID})")]
        loose = reader.execute("PRAGMA foreign_key_check").fetchmany(SAID)
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [line for line in found if line != "ok"] + [
        f"{table}: row {row} belongs to a missing row of {parent}" for table, row, parent, _ in loose
    ]


def _rows(reader: sqlite3.Connection) -> Iterator[str]:
    (dim,) = reader.execute("SELECT dim FROM corpora").fetchone() or (None,)
    yield from _damaged(reader, f"SELECT {DOCUMENT} FROM documents", document_in)
    yield from _damaged(reader, f"SELECT {PASSAGE} FROM passages", lambda row: PassageRow._make(row).span())
    for table in ("vectors", "fresh"):
        select = f"SELECT key, vector, checksum FROM {table}"
        yield from _damaged(reader, select, lambda row: records.matrix([row]))
    other = reader.execute("SELECT key FROM vectors WHERE length(vector) IS NOT 4 * ? LIMIT ?", (dim, SAID)).fetchall()
    yield from (f"the vector of passage {key} does not have {dim} dimensions" for (key,) in other)


def _damaged(reader: sqlite3.Connection, select: str, read: Callable[[Any], object]) -> Iterator[str]:
    said = 0
    for row in reader.execute(select):  # only one row in memory at a time, because a text may have a megabyte
        try:
            read(row)
        except (DamageError, ValueError) as error:
            said += 1
            if said <= SAID:
                yield str(error)


def _counts(reader: sqlite3.Connection) -> Iterator[str]:
    for said, counted, what in reader.execute(
        """SELECT documents, (SELECT count(*) FROM documents), 'documents' FROM corpora UNION ALL
        SELECT passages, (SELECT count(*) FROM passages), 'passages' FROM corpora UNION ALL
        SELECT spans, (SELECT count(start) FROM passages), 'spans' FROM corpora UNION ALL
        SELECT passages, (SELECT count(*) FROM vectors), 'vectors' FROM corpora"""
    ):
        if said != counted:
            yield f"the table corpora counts {said} {what}, but the file has {counted}"
