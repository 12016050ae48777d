"""Rows of a corpus file: documents, passages, vectors, the map and the corpus itself.

The rows of documents, passages and vectors have a checksum that includes their key. Functions run in the transaction of
the caller.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import orjson

from models.runtimes.base import Floats
from serving.corpora.stores.fields import BLOCK, Numbers, blocks, numbers
from serving.corpora.stores.queries import Rules, rules
from serving.corpora.stores.words import IndexedRow, searched_texts
from serving.corpora.values import (
    Chunking,
    Corpus,
    Document,
    Keys,
    KnownText,
    Map,
    MapOrigin,
    Page,
    Passage,
    Size,
    Span,
    Stemming,
    WordSettings,
)
from serving.errors import Conflict
from serving.operations.clock import now
from serving.operations.files import DamageError

DOCUMENT = "number, id, text, metadata, hash, checksum, expires_at"
PASSAGE = 'key, document, start, "end", checksum'
PAGE_CHARACTERS = 4_000_000
"""Maximum characters of texts and metadata on a page of documents. A page ends at this limit, even with few
documents."""
_NUMBERED = f"SELECT {DOCUMENT} FROM (SELECT value FROM json_each(?)) CROSS JOIN documents ON number = value"
"""SQL statement that selects documents by a JSON list of document numbers, in the order of the list. It is prepared
only once, for lists of any length."""
_WHOLE = f"""SELECT {DOCUMENT} FROM (SELECT 1 FROM corpora WHERE spans = 0 AND passages = documents)
    CROSS JOIN (SELECT value FROM json_each(?)) CROSS JOIN documents ON number = value"""
"""SQL statement that selects documents by a JSON list of passage keys. If no document is split, the key of a passage is
the number of its document. If any document is split, the statement selects nothing."""
_PLACE, _MOMENT = struct.Struct("<qqqq"), struct.Struct("<q")
_OTHER_TYPES = (AttributeError, TypeError, struct.error)
"""Exceptions that computing a checksum raises if a damaged value has the wrong type."""
BLOCK_BYTES = 32 << 20
"""Maximum bytes of a block of vectors. A block ends at this limit, even with few vectors."""
Row = tuple[int, bytes, int]
"""Key, vector as bytes, and checksum."""
STORED = "<f4"
Table = Literal["vectors", "fresh"]
"""The table of the vectors that searches use, or the table of new vectors from a re-embedding."""


def marks(block: Sequence[object]) -> str:
    """Return SQL placeholders for the values in `block`, separated by commas, for use in `IN (…)`."""
    return ",".join("?" * len(block))


_DocumentRow = tuple[int, str, str, str, bytes, int, int | None]


class DocumentRow(NamedTuple):
    """Row of the table `documents`, with the columns in `DOCUMENT`.

    `number` is the key of the document's first passage. The metadata are JSON.
    """

    number: int
    id: str
    text: str
    metadata: str
    hash: bytes
    checksum: int
    expires_at: int | None

    @classmethod
    def of(cls, number: int, document: Document, digest: bytes) -> DocumentRow:
        """Return the row of a document. `digest` is the `content_hash` of its text."""
        name, text, metadata, _, expires_at = document
        stored = orjson.dumps(metadata).decode()
        checksum = _checksum(number, name, text, stored, digest, expires_at=expires_at)
        return cls(number, name, text, stored, digest, checksum, expires_at)


def document_in(row: _DocumentRow) -> Document:
    """Return the document in a row with the columns in `DOCUMENT`. For speed, the row is a plain tuple.

    Raises:
        DamageError: the row differs from what was written.
    """
    number, name, text, metadata, digest, checksum, expires_at = row
    try:
        intact = _checksum(number, name, text, metadata, digest, expires_at=expires_at) == checksum
    except _OTHER_TYPES:
        intact = False
    if not intact:
        raise DamageError(f"document {name!r} is damaged", logged=f"a document (row {number}) is damaged")
    return Document(name, text, orjson.loads(metadata), expires_at=expires_at)


def document(reader: sqlite3.Connection, name: str) -> Document | None:
    row = reader.execute(f"SELECT {DOCUMENT} FROM documents WHERE id = ?", (name,)).fetchone()
    return row and document_in(row)


def page(reader: sqlite3.Connection, after: int, limit: int, among: Numbers | None) -> Page:
    """Implement `Store.page`. `among` has the sorted numbers of the matching documents, or is None if all match."""
    if among is not None:
        ahead = among[np.searchsorted(among, after, side="right") :][: limit + 1]
        return page_of(reader, ahead.tolist(), limit, len(among))
    select = f"SELECT {DOCUMENT} FROM documents WHERE number > ? ORDER BY number LIMIT ?"
    ((total,),) = reader.execute("SELECT documents FROM corpora")
    return _page(reader.execute(select, (after, limit + 1)), limit, total)


def page_of(reader: sqlite3.Connection, numbers: Sequence[int], limit: int, total: int) -> Page:
    """Return a page of the documents with these document numbers, in the same order.

    The page ends after `limit` documents, or at `PAGE_CHARACTERS`. If some of `numbers` are left, `Page.more` is True.
    """
    return _page(reader.execute(_NUMBERED, (orjson.dumps([*numbers]).decode(),)), limit, total)


def _page(found: Iterable[_DocumentRow], limit: int, total: int) -> Page:
    rows: list[tuple[int, Document]] = []
    left = PAGE_CHARACTERS
    for row in found:
        if len(rows) == limit or left <= 0:
            return Page(rows, True, total)
        number, _, text, metadata, *_ = row
        rows.append((number, document_in(row)))
        left -= len(text) + len(metadata)
    return Page(rows, False, total)


def ids(reader: sqlite3.Connection, numbers: Sequence[int]) -> list[str]:
    """Return the ids of the documents with these sorted document numbers, in the same order."""
    found: list[str] = []
    for block in blocks(numbers):
        select = f"SELECT id FROM documents WHERE number IN ({marks(block)}) ORDER BY number"
        found += (name for (name,) in reader.execute(select, block))
    return found


def _checksum(number: int, name: str, text: str, metadata: str, digest: bytes, *, expires_at: int | None) -> int:
    parts = b"\0".join((name.encode(), metadata.encode(), digest, text.encode()))
    checksum = zlib.crc32(parts, number & 0xFFFFFFFF)
    return checksum if expires_at is None else zlib.crc32(_MOMENT.pack(expires_at), checksum)


class PassageRow(NamedTuple):
    """Row of the table `passages`, with the columns in `PASSAGE`.

    `document` is the number of the document. `start` and `end` are None if the passage is the whole text.
    """

    key: int
    document: int
    start: int | None
    end: int | None
    checksum: int

    @classmethod
    def of(cls, key: int, document: int, span: Span | None) -> PassageRow:
        start, end = span or (None, None)
        row = cls(key, document, start, end, 0)
        return row._replace(checksum=row.expected())

    def expected(self) -> int:
        key, document, start, end, _ = self
        return zlib.crc32(_PLACE.pack(key, document, -1 if start is None else start, -1 if end is None else end))

    def span(self) -> Span | None:
        """Return the span of the passage, or None for the whole text.

        Raises:
            DamageError: the row differs from what was written.
        """
        key, _, start, end, checksum = self
        try:
            intact = self.expected() == checksum
        except _OTHER_TYPES:
            intact = False
        if not intact:
            raise DamageError(f"passage {key} is damaged")
        return None if start is None or end is None else Span(start, end)


def content_hash(text: str, chunking: Chunking | None) -> bytes:
    """Return a hash of a text and its chunking. Documents with equal hashes can share the vectors of one encoder."""
    return blake2b(struct.pack("<qq", *(chunking or (-1, -1))) + text.encode(), digest_size=16).digest()


def part(text: str, span: Span | None) -> str:
    return text if span is None else text[span.start : span.end]


def documents(reader: sqlite3.Connection, numbers: Sequence[int]) -> dict[int, Document]:
    """Return the documents with these distinct document numbers, by number.

    Raises:
        DamageError: a document is missing, or differs from what was written.
    """
    wanted = orjson.dumps([*numbers]).decode()
    found = {row[0]: document_in(row) for row in reader.execute(_NUMBERED, (wanted,))}
    if missing := set(numbers) - found.keys():
        raise DamageError(f"a document (row {min(missing)}) is missing")
    return found


def passages(reader: sqlite3.Connection, keys: Sequence[int]) -> dict[int, Passage]:
    """Return the existing passages of `keys`, by key."""
    wanted = orjson.dumps([*keys]).decode()
    if found := {row[0]: Passage(document_in(row), None) for row in reader.execute(_WHOLE, (wanted,))}:
        return found
    spans: list[tuple[int, int, Span | None]] = []
    for block in blocks(keys):
        select = f"SELECT {PASSAGE} FROM passages WHERE key IN ({marks(block)})"
        spans += [(row[0], row[1], PassageRow(*row).span()) for row in reader.execute(select, block)]
    owners = documents(reader, sorted({number for _, number, _ in spans}))
    return {key: Passage(owners[number], span) for key, number, span in spans}


def owners(reader: sqlite3.Connection, keys: Sequence[int]) -> dict[int, Document]:
    """Implement `Store.owners`. Checksums are not verified, because they include the texts, which are not read."""
    wanted = orjson.dumps([*keys]).decode()
    select = """SELECT passages.key, documents.id, metadata FROM json_each(?) AS wanted
        JOIN passages ON passages.key = wanted.value JOIN documents ON number = document"""
    return {
        key: Document(name, "", orjson.loads(metadata)) for key, name, metadata in reader.execute(select, (wanted,))
    }


def numbers_of(reader: sqlite3.Connection, keys: Keys) -> Numbers:
    """Return the sorted and distinct numbers of the documents to which the passages `keys` belong."""
    if reader.execute("SELECT 1 FROM corpora WHERE passages = documents").fetchone():
        return keys  # a document's number is the key of its first passage
    wanted = orjson.dumps(keys.tolist()).decode()
    select = """SELECT DISTINCT document AS number FROM json_each(?) AS wanted
        JOIN passages ON passages.key = wanted.value"""
    return np.sort(numbers(reader, select, wanted))


def passages_of(reader: sqlite3.Connection, numbers: Sequence[int]) -> Iterator[PassageRow]:
    """Yield the passages of the documents with these document numbers.

    Up to `BLOCK` documents are read at once, and their passages are yielded in order of keys.
    """
    for block in blocks(numbers):
        select = f"SELECT {PASSAGE} FROM passages WHERE document IN ({marks(block)}) ORDER BY key"
        yield from map(PassageRow._make, reader.execute(select, block))


# Vectors are stored as rows, with float32 numbers in a blob.


def rows(keys: Iterable[int], vectors: Floats) -> Iterator[Row]:
    """Yield a row for each key and vector of the (N, D) `vectors`."""
    for key, vector in zip(keys, np.ascontiguousarray(vectors, dtype=STORED), strict=True):
        blob = vector.tobytes()
        yield key, blob, checksum(key, blob)


def checksum(key: int, blob: bytes) -> int:
    """Return the checksum of a vector together with its key."""
    return zlib.crc32(blob, key & 0xFFFFFFFF)


def matrix(found: Sequence[Row]) -> tuple[Keys, Floats]:
    """Convert n rows to their (n,) keys and (n, D) vectors.

    Raises:
        DamageError: a vector differs from what was written under its key.
    """
    for key, blob, written in found:
        if not isinstance(blob, bytes) or checksum(key, blob) != written:
            raise DamageError(f"the vector of passage {key} is damaged")
    keys = np.array([key for key, _, _ in found], dtype=np.int64)
    flat = np.frombuffer(b"".join(blob for _, blob, _ in found), dtype=STORED)
    return keys, flat.reshape(len(found), -1 if found else 0).astype(np.float32)


def beyond(reader: sqlite3.Connection, after: int, table: Table) -> tuple[Keys, Floats]:
    """Return the next block of keys and vectors in `table`, after the key `after`. At the end, the block is empty."""
    select = f"SELECT key, vector, checksum FROM {table} WHERE key > ? ORDER BY key LIMIT ?"
    found, left = list[Row](), BLOCK_BYTES
    for row in reader.execute(select, (after, BLOCK)):
        found.append(row)
        left -= len(row[1]) if isinstance(row[1], bytes) else 0  # `matrix` reports any other type as damage
        if left <= 0:
            break
    return matrix(found)


def of(reader: sqlite3.Connection, keys: Sequence[int]) -> tuple[Keys, Floats]:
    """Return those of `keys` that exist, sorted, and their vectors. `keys` has at most `BLOCK` keys."""
    select = f"SELECT key, vector, checksum FROM vectors WHERE key IN ({marks(keys)}) ORDER BY key"
    return matrix(reader.execute(select, keys).fetchall())


# The map: one row for each point. The row of the corpus has the origin of the map as JSON.

# The key of a point is the key of its passage. The passage may have been removed, but its key is never assigned again.
MAP_TABLE = "CREATE TABLE places (key INTEGER PRIMARY KEY, x REAL NOT NULL, y REAL NOT NULL) STRICT"


def keep_map(writer: sqlite3.Connection, found: Map, generation: str) -> None:
    """Implement `Store.keep_map`."""
    if writer.execute("SELECT 1 FROM corpora WHERE generation != ?", (generation,)).fetchone():
        raise Conflict("the corpus was restored or embedded again while its map was computed: compute the map again")
    writer.execute("DELETE FROM places")
    points = zip(found.keys.tolist(), *found.places.T.tolist(), strict=True)
    writer.executemany("INSERT INTO places (key, x, y) VALUES (?, ?, ?)", points)
    writer.execute("UPDATE corpora SET map = ?", (orjson.dumps(asdict(found.origin)).decode(),))


def kept_map(reader: sqlite3.Connection) -> Map | None:
    """Implement `Store.kept_map`."""
    (origin,) = reader.execute("SELECT map FROM corpora").fetchone()
    if origin is None:
        return None
    rows = reader.execute("SELECT key, x, y FROM places ORDER BY key").fetchall()
    keys = np.array([key for key, *_ in rows], np.int64)
    places = np.array([place for _, *place in rows], np.float64).reshape(-1, 2)
    return Map(MapOrigin(**orjson.loads(origin)), keys, places)


# The corpus.

CORPUS = "stemming, name, description, recall_target, created, fingerprint, dim, generation"
WORDS = "synonyms, stop_words, searched_fields"
"""Columns with `WordSettings` as JSON."""


def corpus(reader: sqlite3.Connection) -> Corpus:
    """Return the name, settings and other attributes of the corpus in the database of `reader`.

    Raises:
        DamageError: the database has no corpus, or the corpus's stemming is unknown.
    """
    row = _stored(reader, f"{CORPUS}, {WORDS}")
    stemming, name, description, recall_target, created, fingerprint, dim, generation, *settings = row
    words = WordSettings(*(None if one is None else orjson.loads(one) for one in settings))
    return Corpus(name, description, recall_target, created, fingerprint, dim, stemming, words, generation)


def word_rules(reader: sqlite3.Connection) -> Rules:
    """Return the rules of word search in the corpus.

    Raises:
        DamageError: the file has no corpus, or the corpus's stemming is unknown.
    """
    return rules(*_stored(reader, f"stemming, {WORDS}"))


def _stored(reader: sqlite3.Connection, columns: str) -> tuple[Any, ...]:
    """Return the given columns of the corpus's row. The first of `columns` must be `stemming`.

    Raises:
        DamageError: the file has no corpus, or the corpus's stemming is unknown.
    """
    row: tuple[Any, ...] | None = reader.execute(f"SELECT {columns} FROM corpora").fetchone()
    if row is None:
        raise DamageError("contains no corpus")
    if row[0] not in (None, *get_args(Stemming)):
        raise DamageError(f"has a corpus of unknown stemming: {row[0]!r}")
    return row


def indexed_rows(reader: sqlite3.Connection, rules: Rules) -> Iterator[IndexedRow]:
    """Yield a row of the word index for each passage.

    Checksums are not verified, so that a damaged document does not prevent the corpus from being served.
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
    """Return the earliest expiry of all documents, which may be in the past. If no document expires, return None."""
    ((soonest,),) = reader.execute("SELECT min(expires_at) FROM documents WHERE expires_at IS NOT NULL")
    return cast("int | None", soonest)


def hide_expired(reader: sqlite3.Connection) -> None:
    """Hide expired documents from all later reads in the same transaction."""
    moment = now()
    for table, select in _VIEWS.items():
        reader.execute(f"CREATE TEMP VIEW {table} AS {select.format(moment=moment)}")


def expired(reader: sqlite3.Connection) -> Keys:
    """Implement `Store.expired`."""
    among = _EXPIRED.format(moment=now())
    return numbers(reader, f"SELECT key AS number FROM passages WHERE document IN ({among}) ORDER BY key")


def size(reader: sqlite3.Connection) -> Size:
    """Return three numbers: documents, bytes of the database without its log, and passages."""
    counted = "SELECT documents, page_count * page_size, passages FROM corpora, pragma_page_count, pragma_page_size"
    return Size(*reader.execute(counted).fetchone())


def described(reader: sqlite3.Connection) -> tuple[Corpus, Size]:
    return corpus(reader), size(reader)


def embedded(reader: sqlite3.Connection, texts: Sequence[str], chunking: Chunking | None) -> list[KnownText | None]:
    """Implement `Store.embedded`."""
    hashes = [content_hash(text, chunking) for text in texts]
    numbers: dict[bytes, int] = {}
    found: dict[int, KnownText] = {}
    for block in blocks(hashes):
        numbers.update(reader.execute(f"SELECT hash, number FROM documents WHERE hash IN ({marks(block)})", block))
    for some in blocks(sorted(set(numbers.values()))):
        found.update(_held(reader, some))
    return [found[numbers[one]] if one in numbers else None for one in hashes]


def _held(reader: sqlite3.Connection, numbers: Sequence[int]) -> Iterator[tuple[int, KnownText]]:
    passages: dict[int, list[PassageRow]] = defaultdict(list)
    for row in passages_of(reader, numbers):
        passages[row.document].append(row)
    rows: dict[int, Floats] = {}
    for block in blocks([row.key for own in passages.values() for row in own]):
        keys, matrix = of(reader, block)
        rows.update(zip(keys.tolist(), matrix, strict=True))
    for number in numbers:
        own = passages[number]
        if not own or any(row.key not in rows for row in own):
            raise DamageError(f"passages or vectors of a document (row {number}) are missing")
        spans = [span for row in own if (span := row.span())]
        yield number, KnownText(spans or None, np.stack([rows[row.key] for row in own]))
