"""Documents and passages as rows of SQLite, each with a checksum that knows its place."""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import orjson

from serving.ports import Chunking, Document, Passage, Span
from serving.stores.blocks import blocks, marks
from serving.stores.failures import DamageError

DOCUMENT = "number, id, text, metadata, hash, checksum"
PASSAGE = 'key, document, start, "end", checksum'
_PLACE = struct.Struct("<qqqq")
_OTHER_TYPES = (AttributeError, TypeError, struct.error)
"""What a checksum raises where a text, say, has become a number."""


class DocumentRow(NamedTuple):
    """`DOCUMENT`: the number is the key of its first passage, the metadata are JSON."""

    number: int
    id: str
    text: str
    metadata: str
    hash: bytes
    checksum: int

    @classmethod
    def of(cls, number: int, document: Document, chunking: Chunking | None) -> DocumentRow:
        """What is stored of a document."""
        metadata = orjson.dumps(document.metadata).decode()
        digest = content_hash(document.text, chunking)
        row = cls(number, document.id, document.text, metadata, digest, 0)
        return row._replace(checksum=row.expected())

    def expected(self) -> int:
        """The checksum of what it holds."""
        number, name, text, metadata, digest, _ = self
        parts = b"\0".join((name.encode(), metadata.encode(), digest, text.encode()))
        return zlib.crc32(parts, number & 0xFFFFFFFF)

    def document(self) -> Document:
        """What was stored.

        Raises:
            DamageError: it is no more what was written.
        """
        _, name, text, metadata, _, checksum = self
        try:
            intact = self.expected() == checksum
        except _OTHER_TYPES:
            intact = False
        if not intact:
            raise DamageError(f"document {name!r} is damaged; restore a snapshot")
        return Document(name, text, orjson.loads(metadata))


class PassageRow(NamedTuple):
    """`PASSAGE`: the number of its document, and the span in its text, which are both NULL for all of it."""

    key: int
    document: int
    start: int | None
    end: int | None
    checksum: int

    @classmethod
    def of(cls, key: int, document: int, span: Span | None) -> PassageRow:
        """What is stored of a passage."""
        start, end = span or (None, None)
        row = cls(key, document, start, end, 0)
        return row._replace(checksum=row.expected())

    def expected(self) -> int:
        """The checksum of what it holds."""
        key, document, start, end, _ = self
        return zlib.crc32(_PLACE.pack(key, document, -1 if start is None else start, -1 if end is None else end))

    def span(self) -> Span | None:
        """What was stored.

        Raises:
            DamageError: it is no more what was written.
        """
        key, _, start, end, checksum = self
        try:
            intact = self.expected() == checksum
        except _OTHER_TYPES:
            intact = False
        if not intact:
            raise DamageError(f"passage {key} is damaged; restore a snapshot")
        return None if start is None or end is None else Span(start, end)


def content_hash(text: str, chunking: Chunking | None) -> bytes:
    """What texts have in common whose passages have the same vectors."""
    return blake2b(struct.pack("<qq", *(chunking or (-1, -1))) + text.encode(), digest_size=16).digest()


def part(text: str, span: Span | None) -> str:
    """The text of a passage."""
    return text if span is None else text[span.start : span.end]


def documents(reader: sqlite3.Connection, numbers: Sequence[int]) -> dict[int, Document]:
    """Those of `numbers` that exist."""
    found: dict[int, Document] = {}
    for block in blocks(numbers):
        select = f"SELECT {DOCUMENT} FROM documents WHERE number IN ({marks(block)})"
        for row in reader.execute(select, block):
            found[row[0]] = DocumentRow(*row).document()
    return found


def passages(reader: sqlite3.Connection, keys: Sequence[int]) -> dict[int, Passage]:
    """Those of `keys` that exist."""
    spans: list[tuple[int, int, Span | None]] = []
    for block in blocks(keys):
        select = f"SELECT {PASSAGE} FROM passages WHERE key IN ({marks(block)})"
        spans += [(row[0], row[1], PassageRow(*row).span()) for row in reader.execute(select, block)]
    owners = documents(reader, sorted({number for _, number, _ in spans}))
    return {key: Passage(owners[number], span) for key, number, span in spans}


def passages_of(reader: sqlite3.Connection, numbers: Sequence[int]) -> Iterator[PassageRow]:
    """Of each document, in order of keys."""
    for block in blocks(numbers):
        select = f"SELECT {PASSAGE} FROM passages WHERE document IN ({marks(block)}) ORDER BY key"
        yield from map(PassageRow._make, reader.execute(select, block))
