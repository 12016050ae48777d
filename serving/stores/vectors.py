"""Vectors as rows of SQLite: float32 in a blob, with a checksum that knows its key."""

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
"""Of vectors, with which a block ends however few they are."""
Row = tuple[int, bytes, int]
"""Key, vector, checksum."""
STORED = "<f4"
Table = Literal["vectors", "fresh"]
"""Those that serve, and those of another encoder that are to."""


def rows(keys: Iterable[int], vectors: Floats) -> Iterator[Row]:
    """Of each key and row of (N, D) `vectors`."""
    for key, vector in zip(keys, np.ascontiguousarray(vectors, dtype=STORED), strict=True):
        blob = vector.tobytes()
        yield key, blob, checksum(key, blob)


def checksum(key: int, blob: bytes) -> int:
    """Of a vector in its place: in another one it is another."""
    return zlib.crc32(blob, key & 0xFFFFFFFF)


def matrix(found: Sequence[Row]) -> tuple[Keys, Floats]:
    """(n,) keys and (n, D) vectors.

    Raises:
        DamageError: a vector is not what was written under its key.
    """
    for key, blob, written in found:
        if not isinstance(blob, bytes) or checksum(key, blob) != written:
            raise DamageError(f"the vector of passage {key} is damaged")
    keys = np.array([key for key, _, _ in found], dtype=np.int64)
    flat = np.frombuffer(b"".join(blob for _, blob, _ in found), dtype=STORED)
    return keys, flat.reshape(len(found), -1 if found else 0).astype(np.float32)


def beyond(reader: sqlite3.Connection, after: int, table: Table) -> tuple[Keys, Floats]:
    """The next block; none behind the last."""
    select = f"SELECT key, vector, checksum FROM {table} WHERE key > ? ORDER BY key LIMIT ?"
    found, left = list[Row](), BLOCK_BYTES
    for row in reader.execute(select, (after, BLOCK)):
        found.append(row)
        left -= len(row[1]) if isinstance(row[1], bytes) else 0  # which `matrix` finds damaged
        if left <= 0:
            break
    return matrix(found)


def of(reader: sqlite3.Connection, keys: Sequence[int]) -> tuple[Keys, Floats]:
    """Those of at most `BLOCK` keys that exist, in order of keys."""
    select = f"SELECT key, vector, checksum FROM vectors WHERE key IN ({marks(keys)}) ORDER BY key"
    return matrix(reader.execute(select, keys).fetchall())
