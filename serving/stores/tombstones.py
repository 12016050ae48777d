"""Tombstones: keys of removed passages, kept while an index on disk may contain them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from serving.ports import Keys
from serving.stores import fields


def add(writer: sqlite3.Connection, keys: Iterable[int]) -> None:
    """Add the keys of passages that have just been removed."""
    writer.executemany("INSERT INTO tombstones (key) VALUES (?)", ((key,) for key in keys))


def upto(reader: sqlite3.Connection, key: int) -> Keys:
    """Implement `Store.tombstones`."""
    return fields.numbers(reader, "SELECT key AS number FROM tombstones WHERE key <= ? ORDER BY key", key)


def bury(writer: sqlite3.Connection, keys: Keys) -> None:
    """Implement `Store.bury`."""
    writer.executemany("DELETE FROM tombstones WHERE key = ?", ((key,) for key in keys.tolist()))
