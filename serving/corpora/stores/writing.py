"""Writes to the rows of a corpus, inside the caller's transaction."""

from __future__ import annotations

import secrets
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal
from unicodedata import unidata_version

import numpy as np
import orjson

from models.runtimes.base import Floats
from serving.corpora.stores import fields, records, words
from serving.corpora.stores.fields import blocks
from serving.corpora.stores.queries import Rules
from serving.corpora.values import (
    OWN,
    Change,
    Changes,
    Content,
    Corpus,
    Document,
    Expiry,
    Keys,
    Patch,
    Removal,
    Span,
    Stemming,
    WordSettings,
    Write,
)
from serving.errors import Conflict, Invalid, ServiceError
from serving.operations.bounds import Bounds, check_metadata

TABLES = (
    "CREATE TABLE uploads (job TEXT PRIMARY KEY) STRICT, WITHOUT ROWID",
    """CREATE TABLE overtaken (
        job TEXT NOT NULL REFERENCES uploads(job) ON DELETE CASCADE,
        id TEXT NOT NULL,
        PRIMARY KEY (job, id)
    ) STRICT, WITHOUT ROWID""",
)
_LACKING = f"""SELECT {records.PASSAGE} FROM passages
    WHERE key > ? AND NOT EXISTS (SELECT 1 FROM fresh WHERE fresh.key = passages.key)"""


def create(writer: sqlite3.Connection, corpus: Corpus) -> None:
    row = (
        None,  # no stemming yet: `stem` sets it below
        corpus.name,
        corpus.description,
        corpus.recall_target,
        corpus.created,
        corpus.fingerprint,
        corpus.dim,
        secrets.token_hex(8),
        unidata_version,
    )
    writer.execute(f"INSERT INTO corpora ({records.CORPUS}, unicode) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    stem(writer, corpus.wanted_stemming)
    set_words(writer, corpus.words)


def attempt(writer: sqlite3.Connection, write: Write) -> Change | ServiceError:
    """Apply `write`, and return its change. If the write is refused, change nothing, and return the error."""
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
        Conflict: the corpus has another encoder or dimension.
        Invalid: an id occurs twice.
        Invalid, TooLarge: a patch would give a document metadata that can't be stored.
    """
    match write:
        case Removal(ids):
            note_newer_writes(writer, ids)
            return Change.nothing()._replace(removed=_remove(writer, ids))
        case Patch(ids):
            note_newer_writes(writer, ids)
            _patch(writer, write)
            return Change.nothing()
        case Expiry(moment, limit):
            expired = "SELECT id FROM documents WHERE expires_at <= ? ORDER BY expires_at LIMIT ?"
            ids = [name for (name,) in writer.execute(expired, (moment, limit))]
            return Change.nothing()._replace(removed=_remove(writer, ids))
        case Content(job=None):
            note_newer_writes(writer, [document.id for document in write.documents])
            return _put(writer, write)
        case Content():
            return _put(writer, without_newer_writes(writer, write))


def stem(writer: sqlite3.Connection, stemming: Stemming) -> None:
    """Set the stemming of an empty corpus.

    Raises:
        Conflict: the corpus has documents that were indexed with different stemming.
    """
    corpus = records.corpus(writer)
    if corpus.wanted_stemming == stemming:
        return
    if records.size(writer).documents:
        raise stemmed_otherwise(corpus, stemming)
    writer.execute("UPDATE corpora SET stemming = ?", (stemming,))
    words.create(writer, records.word_rules(writer))


def stemmed_otherwise(corpus: Corpus, stemming: Stemming) -> Conflict:
    """Return the error for a request to change the stemming of a corpus to `stemming` although it has documents."""
    return Conflict(
        f"corpus {corpus.name!r} has documents, indexed with the stemming {corpus.wanted_stemming!r}: create another "
        f"corpus with {stemming!r}, and upload the documents there"
    )


def set_words(writer: sqlite3.Connection, settings: WordSettings) -> None:
    """Store the settings of word search that are not None. If the searched fields change, index all words again."""
    before = records.word_rules(writer).weights.keys()
    given = settings.synonyms, settings.stop_words, settings.fields
    values = [None if one is None else orjson.dumps(one, option=orjson.OPT_SORT_KEYS).decode() for one in given]
    coalesced = ", ".join(f"{column} = coalesce(?, {column})" for column in records.WORDS.split(", "))
    writer.execute(f"UPDATE corpora SET {coalesced}", values)
    if records.word_rules(writer).weights.keys() != before:
        index_words_again(writer)


def index_words_again(writer: sqlite3.Connection) -> None:
    """Replace the content of the word index by the words of all passages, indexed by the current rules."""
    rules = records.word_rules(writer)
    words.create(writer, rules)
    words.clear(writer)
    words.index(writer, records.indexed_rows(writer, rules), rules)
    words.optimize(writer)


def _put(writer: sqlite3.Connection, content: Content) -> Change:
    ids = distinct_ids(content)
    _bind(writer, content)
    removed = _remove(writer, ids)
    (first,) = writer.execute(
        "SELECT 1 + coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'passages'"
    ).fetchone()
    keys = count(first)
    documents, passages, texts = [], list[records.PassageRow](), list[words.IndexedRow]()
    rules = records.word_rules(writer)
    spans: Sequence[Sequence[Span | None]] = content.spans or [[None]] * len(ids)
    for document, cut in zip(content.documents, spans, strict=True):
        own = [next(keys) for _ in cut]
        digest = records.content_hash(document.text, content.chunking)
        documents.append(records.DocumentRow.of(own[0], document, digest))
        passages += [records.PassageRow.of(key, own[0], span) for key, span in zip(own, cut, strict=True)]
        searched = words.searched_texts(document.metadata, rules)
        texts += [(key, records.part(document.text, span), *searched) for key, span in zip(own, cut, strict=True)]
    writer.executemany(f"INSERT INTO documents ({records.DOCUMENT}) VALUES (?, ?, ?, ?, ?, ?, ?)", documents)
    writer.executemany(f"INSERT INTO passages ({records.PASSAGE}) VALUES (?, ?, ?, ?, ?)", passages)
    added = np.array([row.key for row in passages], dtype=np.int64)
    writer.executemany(
        "INSERT INTO vectors (key, vector, checksum) VALUES (?, ?, ?)", records.rows(added.tolist(), content.vectors)
    )
    fields.index(writer, ((row.number, orjson.loads(row.metadata)) for row in documents))
    words.index(writer, texts, rules)
    _count(writer, 1, len(documents), passages)
    return Change(removed, added, content.vectors)


def distinct_ids(content: Content) -> list[str]:
    """Return the ids of the documents, or raise `Invalid` if an id occurs twice."""
    ids = [document.id for document in content.documents]
    if repeated := [name for name, times in Counter(ids).items() if times > 1]:
        raise Invalid(f"the id {repeated[0]!r} is given twice in one upload", field="documents")
    return ids


def _patch(writer: sqlite3.Connection, patch: Patch) -> None:
    """Change the metadata and the expiry of documents. Passages and vectors stay as they are.

    Raises:
        Invalid, TooLarge: the changed metadata of a document can't be stored.
    """
    rules = records.word_rules(writer)
    for block in blocks(patch.ids):
        select = f"SELECT {records.DOCUMENT} FROM documents WHERE id IN ({records.marks(block)})"
        for row in writer.execute(select, block).fetchall():
            stored, before = records.DocumentRow._make(row), records.document_in(row)
            patched = changed(before, patch.changes, patch.bounds)
            metadata, after = patched.metadata, records.DocumentRow.of(stored.number, patched, stored.hash)
            fields.remove(writer, [(after.number, before.metadata)])
            update = "UPDATE documents SET metadata = ?, checksum = ?, expires_at = ? WHERE number = ?"
            writer.execute(update, (after.metadata, after.checksum, after.expires_at, after.number))
            fields.index(writer, [(after.number, metadata)])
            if words.searched_texts(before.metadata, rules) != words.searched_texts(metadata, rules):
                passages = list(records.passages_of(writer, [after.number]))
                words.remove(writer, (_indexed(row, before, rules) for row in passages), rules)
                words.index(writer, (_indexed(row, patched, rules) for row in passages), rules)
    writer.execute("UPDATE corpora SET revision = revision + 1")


def changed(document: Document, changes: Changes, bounds: Bounds) -> Document:
    """Return `document` with `changes` to its metadata and its expiry.

    Raises:
        Invalid, TooLarge: the changed metadata can't be stored.
    """
    metadata = merge_patch(document.metadata, changes.metadata)
    check_metadata(metadata, bounds.metadata_bytes, "metadata")
    expires_at = document.expires_at if changes.expires_at == "kept" else changes.expires_at
    return document._replace(metadata=metadata, expires_at=expires_at)


def merge_patch(target: Any, patch: Any) -> Any:
    """Return `target` after a JSON merge patch: objects are merged, and null removes a member (RFC 7396, section 2)."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def check_bound(corpus: Corpus, fingerprint: str | None, dim: int | None) -> None:
    """Raise an error if a corpus is bound to another encoder, or to vectors with another number of dimensions.

    The fingerprint `OWN` stands for vectors that come with the documents. If `dim` is None, any number of dimensions is
    accepted.

    Raises:
        Conflict: the corpus has another encoder or dimension; the message gives a remedy.
    """
    bound, name = corpus.fingerprint, corpus.name
    if bound not in (None, fingerprint):
        if bound == OWN:
            raise Conflict(
                f"the vectors of corpus {name!r} come with its documents: POST /corpora/{name}/reembed with "
                '"replace_own_vectors": true replaces them by the vectors of an encoder'
            )
        if fingerprint == OWN:
            raise Conflict(f"corpus {name!r} is embedded by an encoder: create another corpus for vectors of your own")
        raise Conflict(
            f"corpus {name!r} is embedded by another encoder: POST /corpora/{name}/reembed replaces the encoder"
        )
    if dim is not None and corpus.dim not in (None, dim):
        raise Conflict(f"the vectors of corpus {name!r} have {corpus.dim} numbers, not {dim}")


def _bind(writer: sqlite3.Connection, content: Content) -> None:
    """Set the encoder and dimension of a corpus without documents to those of `content`.

    Vectors that come with documents have the fingerprint `OWN` instead of an encoder's. Even without documents, a
    corpus can't change from an encoder to `OWN` or back. With `OWN`, it can't change its dimension either.

    Raises:
        Conflict: such a change is needed, or the corpus has documents of another encoder or dimension.
    """
    dim = content.vectors.shape[1]
    fingerprint, bound, held = writer.execute("SELECT fingerprint, dim, documents FROM corpora").fetchone()
    if (fingerprint, bound) == (content.fingerprint, dim):
        return
    if OWN in (fingerprint, content.fingerprint):
        check_bound(records.corpus(writer), content.fingerprint, dim)
    elif held:
        raise Conflict(f"the corpus was embedded by another bundle ({fingerprint}, {bound} dimensions)")
    writer.execute("UPDATE corpora SET fingerprint = ?, dim = ?", (content.fingerprint, dim))


def _remove(writer: sqlite3.Connection, ids: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Delete documents, and return the sorted keys of their passages.

    SQLite itself deletes the passages and their vectors.
    """
    gone: list[int] = []
    rules = records.word_rules(writer)
    for block in blocks(ids):
        select = f"SELECT {records.DOCUMENT} FROM documents WHERE id IN ({records.marks(block)})"
        documents = {row[0]: records.document_in(row) for row in writer.execute(select, block)}
        passages = list(records.passages_of(writer, list(documents)))
        words.remove(writer, [_indexed(row, documents[row.document], rules) for row in passages], rules)
        fields.remove(writer, ((number, document.metadata) for number, document in documents.items()))
        keys = [row.key for row in passages]
        writer.executemany("DELETE FROM documents WHERE number = ?", ((number,) for number in documents))
        writer.executemany("INSERT INTO tombstones (key) VALUES (?)", ((key,) for key in keys))
        _count(writer, -1, len(documents), passages)
        gone += keys
    return np.sort(np.array(gone, dtype=np.int64))


def _indexed(row: records.PassageRow, document: Document, rules: Rules) -> words.IndexedRow:
    return row.key, records.part(document.text, row.span()), *words.searched_texts(document.metadata, rules)


def _count(
    writer: sqlite3.Connection, sign: Literal[1, -1], documents: int, passages: Sequence[records.PassageRow]
) -> None:
    counts = documents, len(passages), sum(row.start is not None for row in passages)
    update = "UPDATE corpora SET documents = documents + ?, passages = passages + ?, spans = spans + ?"
    writer.execute(update, [sign * count for count in counts])


# A re-embedding stores the vectors of the new encoder in a separate table, until every passage has a new vector.


def stale(reader: sqlite3.Connection, fingerprint: str, limit: int) -> list[tuple[int, str]]:
    """Implement `Store.stale`."""
    serving, fresh = reader.execute("SELECT fingerprint, fresh FROM corpora").fetchone()
    if serving == fingerprint:
        return []
    if fresh != fingerprint:
        rows = reader.execute(f"SELECT {records.PASSAGE} FROM passages ORDER BY key LIMIT ?", (limit,)).fetchall()
    else:
        # Vectors usually arrive in order of keys. Keys beyond the last fresh key are read first, which avoids a full
        # scan.
        (last,) = reader.execute("SELECT coalesce(max(key), 0) FROM fresh").fetchone()
        rows = reader.execute(f"{_LACKING} ORDER BY key LIMIT ?", (last, limit)).fetchall()
        if len(rows) < limit:
            rows = reader.execute(f"{_LACKING} ORDER BY key LIMIT ?", (0, limit)).fetchall()
    passages = [records.PassageRow._make(row) for row in rows]
    documents = records.documents(reader, sorted({passage.document for passage in passages}))
    return [(row.key, records.part(documents[row.document].text, row.span())) for row in passages]


def refresh(writer: sqlite3.Connection, fingerprint: str, keys: Keys, matrix: Floats) -> None:
    """Implement `Store.refresh`. Keys of passages that no longer exist are skipped."""
    (fresh,) = writer.execute("SELECT fresh FROM corpora").fetchone()
    if fresh != fingerprint:
        writer.execute("DELETE FROM fresh")
        writer.execute("UPDATE corpora SET fresh = ?", (fingerprint,))
    writer.executemany(
        "INSERT OR REPLACE INTO fresh (key, vector, checksum) SELECT key, ?, ? FROM passages WHERE key = ?",
        ((vector, checksum, key) for key, vector, checksum in records.rows(keys.tolist(), matrix)),
    )


def swap(writer: sqlite3.Connection, fingerprint: str) -> bool:
    """Implement `Store.swap`. The tables of old and new vectors exchange names, so no vector is copied."""
    serving, fresh, passages = writer.execute("SELECT fingerprint, fresh, passages FROM corpora").fetchone()
    if serving == fingerprint:
        return True
    if passages and (fresh != fingerprint or writer.execute(f"{_LACKING} LIMIT 1", (0,)).fetchone()):
        return False
    writer.execute("ALTER TABLE vectors RENAME TO spent")
    writer.execute("ALTER TABLE fresh RENAME TO vectors")
    writer.execute("ALTER TABLE spent RENAME TO fresh")
    writer.execute("DELETE FROM fresh")
    writer.execute(
        "UPDATE corpora SET fingerprint = ?, fresh = NULL, generation = ?, "
        "dim = (SELECT length(vector) / 4 FROM vectors LIMIT 1)",
        (fingerprint, secrets.token_hex(8)),
    )
    return True


# Tombstones are the keys of removed passages. They are kept while an index on disk may contain these keys.


def tombstones(reader: sqlite3.Connection, key: int) -> Keys:
    """Implement `Store.tombstones`. Return the sorted keys of removed passages, up to `key`."""
    return fields.numbers(reader, "SELECT key AS number FROM tombstones WHERE key <= ? ORDER BY key", key)


def bury(writer: sqlite3.Connection, keys: Keys) -> None:
    """Implement `Store.bury`."""
    writer.executemany("DELETE FROM tombstones WHERE key = ?", ((key,) for key in keys.tolist()))


# An upload takes effect when it is accepted, but its job may run for long, and repeats work after a restart. Later
# writes by other requests must win. Until the job ends, the ids that such writes change are recorded, and the job skips
# its rows with these ids.


def accepted(reader: sqlite3.Connection) -> list[str]:
    """Return the sorted ids of the upload jobs that were accepted and not yet released.

    While a job is accepted and not released, other requests' writes and deletions are recorded, so that it skips them.
    """
    return [job for (job,) in reader.execute("SELECT job FROM uploads ORDER BY job")]


def accept(writer: sqlite3.Connection, job: str) -> None:
    """Begin to record the ids of documents that other requests write or remove, for the upload `job`.

    The job must skip its documents with these ids.
    """
    writer.execute("INSERT OR IGNORE INTO uploads (job) VALUES (?)", (job,))


def release(writer: sqlite3.Connection, job: str) -> None:
    """Stop recording the ids of documents that an upload `job` must skip, and delete the recorded ids.

    Call this function when the job has ended.
    """
    writer.execute("DELETE FROM uploads WHERE job = ?", (job,))


def note_newer_writes(writer: sqlite3.Connection, ids: Sequence[str]) -> None:
    """Record that a request that belongs to no job writes or removes the documents `ids`.

    The ids are recorded for each upload job that was accepted and not yet released. The job must skip these documents.
    """
    for job in accepted(writer):
        writer.executemany("INSERT OR IGNORE INTO overtaken (job, id) VALUES (?, ?)", ((job, id) for id in ids))


def without_newer_writes(reader: sqlite3.Connection, content: Content) -> Content:
    """Return an upload job's `content` without documents that a request wrote or removed since the job was accepted."""
    ids = [document.id for document in content.documents]
    gone = set[str]()
    for block in blocks(ids):
        select = f"SELECT id FROM overtaken WHERE job = ? AND id IN ({records.marks(block)})"
        gone.update(id for (id,) in reader.execute(select, (content.job, *block)))
    if not gone:
        return content
    stay = [id not in gone for id in ids]
    rows = stay if content.spans is None else np.repeat(stay, [len(own) for own in content.spans])
    return replace(
        content,
        documents=[document for document, stays in zip(content.documents, stay, strict=True) if stays],
        vectors=content.vectors[np.asarray(rows, dtype=np.bool_)],
        spans=content.spans and [own for own, stays in zip(content.spans, stay, strict=True) if stays],
    )
