"""Writes to the rows of a corpus, inside the caller's transaction."""

from __future__ import annotations

import secrets
import sqlite3
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Literal
from unicodedata import unidata_version

import numpy as np
import orjson

from serving.errors import Conflict, Invalid, ServiceError
from serving.ports import Change, Content, Corpus, Removal, Span, Stemming, Write
from serving.stores import fields, overtaken, reading, tombstones, vectors, words
from serving.stores.blocks import blocks, marks
from serving.stores.records import DOCUMENT, PASSAGE, DocumentRow, PassageRow, document_in, part, passages_of


def create(writer: sqlite3.Connection, corpus: Corpus) -> None:
    row = (
        corpus.name,
        corpus.description,
        corpus.recall_target,
        corpus.created,
        corpus.fingerprint,
        corpus.dim,
        None,  # no stemming yet: `stem` sets it below
        secrets.token_hex(8),
        unidata_version,
    )
    writer.execute(f"INSERT INTO corpora ({reading.CORPUS}, unicode) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    stem(writer, corpus.wanted_stemming)


def attempt(writer: sqlite3.Connection, write: Write) -> Change | ServiceError:
    """Apply `write` and return the change. If the write is refused, return the error; nothing has changed then."""
    writer.execute("SAVEPOINT attempt")
    try:
        outcome: Change | ServiceError = apply(writer, write)
    except ServiceError as refusal:
        writer.execute("ROLLBACK TO attempt")
        outcome = refusal
    writer.execute("RELEASE attempt")
    return outcome


def apply(writer: sqlite3.Connection, write: Write) -> Change:
    """Apply `write` to the corpus.

    Raises:
        Conflict: the corpus has a different fingerprint.
        Invalid: an id occurs twice.
    """
    match write:
        case Removal(ids):
            overtaken.note(writer, ids)
            return Change(_remove(writer, ids), np.array([], dtype=np.int64), np.empty((0, 0), dtype=np.float32))
        case Content(job=None):
            overtaken.note(writer, [document.id for document in write.documents])
            return _put(writer, write)
        case Content():
            return _put(writer, overtaken.remaining(writer, write))


def stem(writer: sqlite3.Connection, stemming: Stemming) -> None:
    """Set the stemming of an empty corpus.

    Raises:
        Conflict: the corpus has documents that were indexed with different stemming.
    """
    corpus = reading.corpus(writer)
    if corpus.wanted_stemming == stemming:
        return
    if reading.size(writer).documents:
        raise Conflict(
            f"corpus {corpus.name!r} holds documents, indexed with the stemming {corpus.wanted_stemming!r}: "
            f"make another corpus with {stemming!r} and upload them there"
        )
    words.create(writer, stemming)
    writer.execute("UPDATE corpora SET stemming = ?", (stemming,))


def _put(writer: sqlite3.Connection, content: Content) -> Change:
    ids = [document.id for document in content.documents]
    if repeated := [name for name, times in Counter(ids).items() if times > 1]:
        raise Invalid(f"the id {repeated[0]!r} is given twice in one upload", field="documents")
    _bind(writer, content)
    removed = _remove(writer, ids)
    (first,) = writer.execute(
        "SELECT 1 + coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'passages'"
    ).fetchone()
    keys = count(first)
    documents, passages, texts = [], [], []
    spans: Sequence[Sequence[Span | None]] = content.spans or [[None]] * len(ids)
    for document, cut in zip(content.documents, spans, strict=True):
        own = [next(keys) for _ in cut]
        documents.append(DocumentRow.of(own[0], document, content.chunking))
        passages += [PassageRow.of(key, own[0], span) for key, span in zip(own, cut, strict=True)]
        texts += [(key, part(document.text, span)) for key, span in zip(own, cut, strict=True)]
    writer.executemany(f"INSERT INTO documents ({DOCUMENT}) VALUES (?, ?, ?, ?, ?, ?)", documents)
    writer.executemany(f"INSERT INTO passages ({PASSAGE}) VALUES (?, ?, ?, ?, ?)", passages)
    added = np.array([key for key, _ in texts], dtype=np.int64)
    writer.executemany(
        "INSERT INTO vectors (key, vector, checksum) VALUES (?, ?, ?)", vectors.rows(added.tolist(), content.vectors)
    )
    fields.index(writer, ((row.number, orjson.loads(row.metadata)) for row in documents))
    words.index(writer, texts)
    _count(writer, 1, len(documents), passages)
    return Change(removed, added, content.vectors)


def promise(writer: sqlite3.Connection, wanted: Corpus) -> None:
    """Bind a corpus that has no encoder yet to the encoder of `wanted`.

    Raises:
        Conflict: the corpus is bound to a different encoder.
    """
    ((bound,),) = writer.execute("SELECT fingerprint FROM corpora")
    if bound is None:
        writer.execute("UPDATE corpora SET fingerprint = ?, dim = ?", (wanted.fingerprint, wanted.dim))
    elif bound != wanted.fingerprint:
        raise Conflict(f"corpus {wanted.name!r} is another encoder's: POST /corpora/{wanted.name}/reembed moves it")


def _bind(writer: sqlite3.Connection, content: Content) -> None:
    """Bind an empty corpus to the encoder of `content`. A corpus with documents keeps its encoder."""
    dim = content.vectors.shape[1]
    fingerprint, bound, held = writer.execute("SELECT fingerprint, dim, documents FROM corpora").fetchone()
    if (fingerprint, bound) == (content.fingerprint, dim):
        return
    if held:
        raise Conflict(f"the corpus was embedded by another bundle ({fingerprint}, {bound} dimensions)")
    writer.execute("UPDATE corpora SET fingerprint = ?, dim = ?", (content.fingerprint, dim))


def _remove(writer: sqlite3.Connection, ids: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Remove documents, and return the sorted keys of their passages.

    SQLite also deletes the documents' passages and vectors.
    """
    gone: list[int] = []
    for block in blocks(ids):
        select = f"SELECT {DOCUMENT} FROM documents WHERE id IN ({marks(block)})"
        documents = {row[0]: document_in(row) for row in writer.execute(select, block)}
        passages = list(passages_of(writer, list(documents)))
        words.remove(writer, [(row.key, part(documents[row.document].text, row.span())) for row in passages])
        fields.remove(writer, ((number, document.metadata) for number, document in documents.items()))
        keys = [row.key for row in passages]
        writer.executemany("DELETE FROM documents WHERE number = ?", ((number,) for number in documents))
        tombstones.add(writer, keys)
        _count(writer, -1, len(documents), passages)
        gone += keys
    return np.sort(np.array(gone, dtype=np.int64))


def _count(writer: sqlite3.Connection, sign: Literal[1, -1], documents: int, passages: Sequence[PassageRow]) -> None:
    counts = documents, len(passages), sum(row.start is not None for row in passages)
    update = "UPDATE corpora SET documents = documents + ?, passages = passages + ?, spans = spans + ?"
    writer.execute(update, [sign * count for count in counts])
