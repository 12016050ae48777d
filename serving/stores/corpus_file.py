"""One corpus in one SQLite file: WAL, synchronous=FULL, a transaction for every write."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from serving.errors import Conflict, NotFound
from serving.ports import Change, Content, Corpus, Document, Floats, Keys, Size, StoreError
from serving.stores.migrations import is_foreign, mark, migrate

BLOCK = 4096
"""Rows a read fetches at a time."""
_CORPUS = "name, description, recall_target, created, fingerprint, dim"


class CorpusFile:
    """An open file, made if there is none. One connection writes, another reads what is committed; a lock before each.

    Closed, by one thread while others want to use it, it is a corpus that is not there: `NotFound`.

    Raises:
        StoreError: the file is not ours, of a later version, or corrupt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing, self._reading = threading.RLock(), threading.Lock()
        self._open = True
        with _naming(path):
            if not path.exists() or not path.stat().st_size:
                mark(path)
            elif is_foreign(path):
                raise StoreError(f"{path}: not a corpus of this server; move it elsewhere")
            self._writer, self._reader = _connect(path), _connect(path)
            try:
                _prepare(self._writer)
                _prepare(self._reader)
                with self._transaction() as writer:
                    migrate(writer, path)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """SQLite folds the write-ahead log into the file when the last connection goes."""
        with self._writing, self._reading:
            self._open = False
            self._reader.close()
            self._writer.close()

    def create(self, corpus: Corpus, content: Content | None) -> None:
        """The corpus and all of its content, or nothing."""
        with self._transaction() as writer:
            row = (
                corpus.name,
                corpus.description,
                corpus.recall_target,
                corpus.created,
                corpus.fingerprint,
                corpus.dim,
            )
            writer.execute(f"INSERT INTO corpora ({_CORPUS}) VALUES (?, ?, ?, ?, ?, ?)", row)
            if content:
                _put(writer, content)

    def describe(self, description: str | None, recall_target: float | None) -> None:
        """Take over what is not None."""
        with self._transaction() as writer:
            writer.execute(
                "UPDATE corpora SET description = coalesce(?, description), recall_target = coalesce(?, recall_target)",
                (description, recall_target),
            )

    def corpus(self) -> Corpus | None:
        """None in a file whose creation was never committed, or that was dropped."""
        rows = self._read(f"SELECT {_CORPUS} FROM corpora")
        return Corpus(*rows[0]) if rows else None

    def retire(self) -> None:
        """Close it; from this commit on there is no corpus here, even if the file can't be removed."""
        with self._writing:
            with self._transaction() as writer:
                writer.execute("DELETE FROM corpora")
            self.close()

    def put(self, content: Content) -> Change:
        """See `Store.put`."""
        with self._transaction() as writer:
            return _put(writer, content)

    def delete(self, keys: Sequence[int]) -> None:
        """See `Store.delete`."""
        with self._transaction() as writer:
            writer.executemany("DELETE FROM documents WHERE key = ?", ((key,) for key in keys))

    def key(self, document: str) -> int:
        """See `Store.key`."""
        return int(self._one("key", document)[0])

    def document(self, document: str) -> Document:
        """See `Store.document`."""
        return _document(self._one("id, text, metadata", document))

    def documents(self, keys: Sequence[int]) -> dict[int, Document]:
        """See `Store.documents`."""
        return {
            key: _document(row)
            for block in _blocks(keys)
            for key, *row in self._read(
                f"SELECT key, id, text, metadata FROM documents WHERE key IN ({_marks(block)})", *block
            )
        }

    def page(self, after: int, limit: int) -> list[tuple[int, Document]]:
        """See `Store.page`."""
        rows = self._read(
            "SELECT key, id, text, metadata FROM documents WHERE key > ? ORDER BY key LIMIT ?", after, limit
        )
        return [(key, _document(row)) for key, *row in rows]

    def metadata(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """See `Store.metadata`."""
        last = 0
        while rows := self._read("SELECT key, metadata FROM documents WHERE key > ? ORDER BY key LIMIT ?", last, BLOCK):
            for last, metadata in rows:
                yield last, orjson.loads(metadata)

    def vectors(self, keys: Sequence[int] | None) -> Iterator[tuple[Keys, Floats]]:
        """See `Store.vectors`."""
        if keys is not None:
            for block in _blocks(keys):
                where = f"SELECT key, vector FROM vectors WHERE key IN ({_marks(block)}) ORDER BY key"
                if rows := self._read(where, *block):
                    yield _matrix(rows)
            return
        last = 0
        while rows := self._read("SELECT key, vector FROM vectors WHERE key > ? ORDER BY key LIMIT ?", last, BLOCK):
            last = rows[-1][0]
            yield _matrix(rows)

    def size(self) -> Size:
        """Documents, and bytes of the database without its log."""
        pages = "page_count * page_size FROM pragma_page_count, pragma_page_size"
        return Size(*self._read(f"SELECT (SELECT count(*) FROM vectors), {pages}")[0])

    def _one(self, columns: str, document: str) -> Sequence[Any]:
        rows: list[Sequence[Any]] = self._read(f"SELECT {columns} FROM documents WHERE id = ?", document)
        if not rows:
            raise NotFound(f"corpus {self.path.stem!r} has no document {document!r}")
        return rows[0]

    def _read(self, statement: str, *values: Any) -> list[Any]:
        with self._reading, _naming(self.path):
            self._check_open()
            return self._reader.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._writing:
            self._check_open()
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    def _check_open(self) -> None:
        if not self._open:
            raise NotFound(f"there is no corpus {self.path.stem!r}")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of SQLite and of the disk name no file."""
    try:
        yield
    except (sqlite3.DatabaseError, OSError) as error:
        raise StoreError(f"{path}: {error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _put(writer: sqlite3.Connection, content: Content) -> Change:
    ((fingerprint, dim),) = writer.execute("SELECT fingerprint, dim FROM corpora").fetchall()
    if fingerprint != content.fingerprint:
        if writer.execute("SELECT 1 FROM documents LIMIT 1").fetchone():
            raise Conflict(f"the corpus was embedded by another bundle ({fingerprint}, {dim} dimensions)")
        binding = (content.fingerprint, content.vectors.shape[1])
        writer.execute("UPDATE corpora SET fingerprint = ?, dim = ?", binding)
    removed = [
        row[0]
        for document in content.documents
        for row in writer.execute("DELETE FROM documents WHERE id = ? RETURNING key", (document.id,)).fetchall()
    ]
    last = writer.execute("SELECT seq FROM sqlite_sequence WHERE name = 'documents'").fetchone()
    first = 1 + (last[0] if last else 0)
    added = range(first, first + len(content.documents))
    writer.executemany(
        "INSERT INTO documents (key, id, text, metadata) VALUES (?, ?, ?, ?)",
        (
            (key, document.id, document.text, orjson.dumps(document.metadata).decode())
            for key, document in zip(added, content.documents, strict=True)
        ),
    )
    vectors = content.vectors.astype("<f4")
    writer.executemany(
        "INSERT INTO vectors (key, vector) VALUES (?, ?)",
        ((key, vector.tobytes()) for key, vector in zip(added, vectors, strict=True)),
    )
    return Change(np.array(removed, dtype=np.int64), np.array(added, dtype=np.int64))


def _document(row: Sequence[str]) -> Document:
    return Document(id=row[0], text=row[1], metadata=orjson.loads(row[2]))


def _matrix(rows: Sequence[tuple[int, bytes]]) -> tuple[Keys, Floats]:
    keys = np.array([key for key, _ in rows], dtype=np.int64)
    flat = np.frombuffer(b"".join(vector for _, vector in rows), dtype="<f4")
    return keys, flat.reshape(len(rows), -1).astype(np.float32)


def _blocks(keys: Sequence[int]) -> Iterator[Sequence[int]]:
    return (keys[i : i + BLOCK] for i in range(0, len(keys), BLOCK))


def _marks(block: Sequence[int]) -> str:
    return ",".join("?" * len(block))
