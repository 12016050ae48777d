"""Reads of a corpus file, inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import cast, get_args

import numpy as np
import orjson

from models.runtimes.base import Floats
from serving.corpora.stores import records
from serving.corpora.stores.fields import numbers
from serving.corpora.stores.queries import Rules, rules
from serving.corpora.stores.records import PassageRow, blocks, marks
from serving.corpora.stores.words import IndexedRow, searched_texts
from serving.corpora.values import Chunking, Corpus, Keys, KnownText, Size, Stemming, WordSettings
from serving.operations.clock import now
from serving.operations.files import DamageError

CORPUS = "name, description, recall_target, created, fingerprint, dim, stemming, generation"
WORDS = "synonyms, stop_words, searched_fields"
"""Columns with `WordSettings` as JSON."""


def corpus(reader: sqlite3.Connection) -> Corpus:
    """Return the corpus in the file.

    Raises:
        DamageError: the file has no corpus, or the corpus's stemming is unknown.
    """
    row = reader.execute(f"SELECT {WORDS}, {CORPUS} FROM corpora").fetchone()
    if row is None:
        raise DamageError("contains no corpus")
    *settings, name, description, recall_target, created, fingerprint, dim, stemming, generation = row
    words = WordSettings(*(None if one is None else orjson.loads(one) for one in settings))
    _check_stemming(stemming)
    return Corpus(name, description, recall_target, created, fingerprint, dim, stemming, words, generation)


def word_rules(reader: sqlite3.Connection) -> Rules:
    """Return the rules of word search in the corpus.

    Raises:
        DamageError: the file has no corpus, or the corpus's stemming is unknown.
    """
    row = reader.execute(f"SELECT stemming, {WORDS} FROM corpora").fetchone()
    if row is None:
        raise DamageError("contains no corpus")
    _check_stemming(row[0])
    return rules(*row)


def _check_stemming(stemming: str | None) -> None:
    if stemming not in (None, *get_args(Stemming)):
        raise DamageError(f"has a corpus of unknown stemming: {stemming!r}")


def indexed_rows(reader: sqlite3.Connection, rules: Rules) -> Iterator[IndexedRow]:
    """Yield the row of each passage in the word index.

    Wrong checksums don't keep the corpus from being served.
    """
    parts = 'SELECT key, start, "end" FROM passages WHERE document = ? ORDER BY key'
    for number, text, metadata in reader.execute("SELECT number, text, metadata FROM documents ORDER BY number"):
        searched = searched_texts(orjson.loads(metadata) if rules.weights else {}, rules)
        for key, start, end in reader.execute(parts, (number,)):
            yield key, text[start:end], *searched


# Expired documents stay in the file until they are deleted. Views of a transaction hide them.

_EXPIRED = "SELECT number FROM main.documents WHERE expires_at <= {moment}"
_VIEWS = {
    "documents": "SELECT * FROM main.documents WHERE expires_at IS NULL OR expires_at > {moment}",
    "passages": f"SELECT * FROM main.passages WHERE document NOT IN ({_EXPIRED})",
    "postings": f"SELECT * FROM main.postings WHERE document NOT IN ({_EXPIRED})",
    "corpora": f"""SELECT {CORPUS}, {WORDS}, revision, documents - gone AS documents,
        passages - gone_passages AS passages, spans - gone_spans AS spans
        FROM main.corpora, (SELECT count(DISTINCT document) AS gone, count(*) AS gone_passages,
        count(start) AS gone_spans FROM main.passages WHERE document IN ({_EXPIRED}))""",
}


def soonest_expiry(reader: sqlite3.Connection) -> int | None:
    """Return the earliest expiry of all documents, which may be in the past. None if no document expires."""
    ((soonest,),) = reader.execute("SELECT min(expires_at) FROM documents WHERE expires_at IS NOT NULL")
    return cast("int | None", soonest)


def hide_expired(reader: sqlite3.Connection) -> None:
    """Hide the documents that have expired from all later reads of the transaction."""
    moment = now()
    for table, select in _VIEWS.items():
        reader.execute(f"CREATE TEMP VIEW {table} AS {select.format(moment=moment)}")


def expired(reader: sqlite3.Connection) -> Keys:
    """Implement `Store.expired`."""
    among = _EXPIRED.format(moment=now())
    return numbers(reader, f"SELECT key AS number FROM passages WHERE document IN ({among}) ORDER BY key")


def size(reader: sqlite3.Connection) -> Size:
    """Return the number of documents, bytes of the database without its log, and passages."""
    counted = "SELECT documents, page_count * page_size, passages FROM corpora, pragma_page_count, pragma_page_size"
    return Size(*reader.execute(counted).fetchone())


def embedded(reader: sqlite3.Connection, texts: Sequence[str], chunking: Chunking | None) -> list[KnownText | None]:
    """Implement `Store.embedded`."""
    hashes = [records.content_hash(text, chunking) for text in texts]
    numbers: dict[bytes, int] = {}
    found: dict[int, KnownText] = {}
    for block in blocks(hashes):
        numbers.update(reader.execute(f"SELECT hash, number FROM documents WHERE hash IN ({marks(block)})", block))
    for some in blocks(sorted(set(numbers.values()))):
        found.update(_held(reader, some))
    return [found[numbers[one]] if one in numbers else None for one in hashes]


def _held(reader: sqlite3.Connection, numbers: Sequence[int]) -> Iterator[tuple[int, KnownText]]:
    passages: dict[int, list[PassageRow]] = defaultdict(list)
    for row in records.passages_of(reader, numbers):
        passages[row.document].append(row)
    rows: dict[int, Floats] = {}
    for block in blocks([row.key for own in passages.values() for row in own]):
        keys, matrix = records.of(reader, block)
        rows.update(zip(keys.tolist(), matrix, strict=True))
    for number, own in passages.items():
        spans = [span for row in own if (span := row.span())]
        yield number, KnownText(spans or None, np.stack([rows[row.key] for row in own]))
