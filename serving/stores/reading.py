"""Reads of a corpus file, inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np
import orjson

from serving.filters import Filter
from serving.ports import Chunking, Corpus, Floats, Held, Keys, Size, Stemming
from serving.stores import records, vectors
from serving.stores.blocks import BLOCK, blocks, marks
from serving.stores.failures import DamageError
from serving.stores.matching import matching
from serving.stores.records import PassageRow

CORPUS = "name, description, recall_target, created, fingerprint, dim, stemming, generation"


def corpus(reader: sqlite3.Connection) -> Corpus:
    """Return the corpus in the file.

    Raises:
        DamageError: the file has no corpus, or the corpus's stemming is unknown.
    """
    row = reader.execute(f"SELECT {CORPUS} FROM corpora").fetchone()
    if row is None:
        raise DamageError("holds no corpus")
    found = Corpus(*row)
    if found.wanted_stemming not in get_args(Stemming):
        raise DamageError(f"has a corpus of unknown stemming: {found.stemming!r}")
    return found


def size(reader: sqlite3.Connection) -> Size:
    """Return the number of documents, bytes of the database without its log, and passages."""
    counted = "SELECT documents, page_count * page_size, passages FROM corpora, pragma_page_count, pragma_page_size"
    return Size(*reader.execute(counted).fetchone())


def keys_matching(reader: sqlite3.Connection, where: Filter) -> Keys:
    """Implement `Store.matching`."""
    numbers = matching(reader, where)
    documents, passages = reader.execute("SELECT documents, passages FROM corpora").fetchone()
    if documents == passages:
        return numbers  # a document's number is the key of its first passage
    if len(numbers) <= BLOCK:
        return np.array([row.key for row in records.passages_of(reader, numbers.tolist())], dtype=np.int64)
    # This is one SQLite step, so that other threads can run.
    both = reader.execute("SELECT json_group_array(key), json_group_array(document) FROM passages").fetchone()
    keys, owners = (np.array(orjson.loads(one), dtype=np.int64) for one in both)
    return np.sort(keys[np.isin(owners, numbers)])


def embedded(reader: sqlite3.Connection, texts: Sequence[str], chunking: Chunking | None) -> list[Held | None]:
    """Implement `Store.embedded`."""
    hashes = [records.content_hash(text, chunking) for text in texts]
    numbers: dict[bytes, int] = {}
    found: dict[int, Held] = {}
    for block in blocks(hashes):
        numbers.update(reader.execute(f"SELECT hash, number FROM documents WHERE hash IN ({marks(block)})", block))
    for some in blocks(sorted(set(numbers.values()))):
        found.update(_held(reader, some))
    return [found[numbers[one]] if one in numbers else None for one in hashes]


def _held(reader: sqlite3.Connection, numbers: Sequence[int]) -> Iterator[tuple[int, Held]]:
    passages: dict[int, list[PassageRow]] = defaultdict(list)
    for row in records.passages_of(reader, numbers):
        passages[row.document].append(row)
    rows: dict[int, Floats] = {}
    for block in blocks([row.key for own in passages.values() for row in own]):
        keys, matrix = vectors.of(reader, block)
        rows.update(zip(keys.tolist(), matrix, strict=True))
    for number, own in passages.items():
        spans = [span for row in own if (span := row.span())]
        yield number, Held(spans or None, np.stack([rows[row.key] for row in own]))
