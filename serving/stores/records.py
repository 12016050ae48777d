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
        parts = b"\0".join((self.id.encode(), self.metadata.encode(), self.hash, self.text.encode()))
        return zlib.crc32(parts, self.number & 0xFFFFFFFF)

    def document(self) -> Document:
        """What was stored.

        Raises:
            DamageError: it is no more what was written.
        """
        if not _is_intact(self):
            raise DamageError(f"document {self.id!r} is damaged; restore a snapshot")
        return Document(self.id, self.text, orjson.loads(self.metadata))


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
        start, end = (-1, -1) if self.start is None or self.end is None else (self.start, self.end)
        return zlib.crc32(struct.pack("<qqqq", self.key, self.document, start, end))

    def span(self) -> Span | None:
        """What was stored.

        Raises:
            DamageError: it is no more what was written.
        """
        if not _is_intact(self):
            raise DamageError(f"passage {self.key} is damaged; restore a snapshot")
        return None if self.start is None or self.end is None else Span(self.start, self.end)


def _is_intact(row: DocumentRow | PassageRow) -> bool:
    try:
        return row.expected() == row.checksum
    except (AttributeError, TypeError, struct.error):  # what was a text is a number now
        return False


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
        found.update((row.number, row.document()) for row in map(DocumentRow._make, reader.execute(select, block)))
    return found


def passages(reader: sqlite3.Connection, keys: Sequence[int]) -> dict[int, Passage]:
    """Those of `keys` that exist."""
    rows: list[PassageRow] = []
    for block in blocks(keys):
        select = f"SELECT {PASSAGE} FROM passages WHERE key IN ({marks(block)})"
        rows += map(PassageRow._make, reader.execute(select, block))
    owners = documents(reader, sorted({row.document for row in rows}))
    return {row.key: Passage(owners[row.document], row.span()) for row in rows}


def passages_of(reader: sqlite3.Connection, numbers: Sequence[int]) -> Iterator[PassageRow]:
    """Of each document, in order of keys."""
    for block in blocks(numbers):
        select = f"SELECT {PASSAGE} FROM passages WHERE document IN ({marks(block)}) ORDER BY key"
        yield from map(PassageRow._make, reader.execute(select, block))
