"""Vectors as rows of SQLite: float32 in a blob, with a checksum that includes the key."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np

from serving.ports import Floats, Keys
from serving.stores.blocks import BLOCK, marks
from serving.stores.failures import DamageError

BLOCK_BYTES = 32 << 20
"""A block ends after this many bytes of vectors, even if it has few vectors."""
Row = tuple[int, bytes, int]
"""Key, vector, checksum."""
STORED = "<f4"
Table = Literal["vectors", "fresh"]
"""The table of served vectors, and the table of a re-embedding's vectors, which will replace them."""


def rows(keys: Iterable[int], vectors: Floats) -> Iterator[Row]:
    """Yield a row for each key and vector of the (N, D) `vectors`."""
    for key, vector in zip(keys, np.ascontiguousarray(vectors, dtype=STORED), strict=True):
        blob = vector.tobytes()
        yield key, blob, checksum(key, blob)


def checksum(key: int, blob: bytes) -> int:
    """Return the checksum of a vector and its key. Under another key, the same vector has another checksum."""
    return zlib.crc32(blob, key & 0xFFFFFFFF)


def matrix(found: Sequence[Row]) -> tuple[Keys, Floats]:
    """Return (n,) keys and (n, D) vectors.

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
    """Return the next block of keys and vectors after the key `after`. It is empty if there are none left."""
    select = f"SELECT key, vector, checksum FROM {table} WHERE key > ? ORDER BY key LIMIT ?"
    found, left = list[Row](), BLOCK_BYTES
    for row in reader.execute(select, (after, BLOCK)):
        found.append(row)
        left -= len(row[1]) if isinstance(row[1], bytes) else 0  # `matrix` reports any other type as damage
        if left <= 0:
            break
    return matrix(found)


def of(reader: sqlite3.Connection, keys: Sequence[int]) -> tuple[Keys, Floats]:
    """Return the existing ones of up to `BLOCK` `keys`, sorted, and their vectors."""
    select = f"SELECT key, vector, checksum FROM vectors WHERE key IN ({marks(keys)}) ORDER BY key"
    return matrix(reader.execute(select, keys).fetchall())
