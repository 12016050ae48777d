"""Cache of filter results. The same filter is often searched with again."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from serving.filters import Filter
from serving.lru import Lru
from serving.ports import Keys
from serving.stores import reading
from serving.stores.fields import Numbers
from serving.stores.matching import matching
from serving.stores.unmatched import unmatched

T = TypeVar("T")
KEPT_BYTES = 64 << 20
"""Maximum bytes for all corpora together: 8 million keys."""
BESIDE_BYTES = 400
"""Bytes of an entry besides its keys and its filter's name: the version and the array's header."""
_Moment = tuple[str, int, int]
"""Version of a corpus: its generation, its number of documents, and the greatest key ever assigned. Additions raise the
key, and other changes lower the number of documents."""


class Matched:
    """Cache of results by corpus and filter, each valid for one version of the corpus.

    Call its methods in a transaction that reads `file`.
    """

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self._kept: Lru[tuple[Path, str, str], tuple[_Moment, Any]] = Lru(max_bytes)
        self._lock = threading.Lock()

    def keys(self, file: Path, reader: sqlite3.Connection, where: Filter) -> Keys:
        return self._looked_up("keys", file, reader, where, reading.keys_matching)

    def numbers(self, file: Path, reader: sqlite3.Connection, where: Filter) -> Numbers:
        """Return the sorted numbers of the documents that match."""
        return self._looked_up("numbers", file, reader, where, matching)

    def unmatched(self, file: Path, reader: sqlite3.Connection, where: Filter) -> list[str]:
        return self._looked_up("unmatched", file, reader, where, unmatched)

    def _looked_up(
        self,
        what: str,
        file: Path,
        reader: sqlite3.Connection,
        where: Filter,
        look_up: Callable[[sqlite3.Connection, Filter], T],
    ) -> T:
        now = _moment(reader)
        key = file, what, where.name
        with self._lock:
            kept = self._kept.get(key)
        if kept and kept[0] == now:
            found: T = kept[1]
            return found
        found = look_up(reader, where)
        if isinstance(found, np.ndarray):
            found.flags.writeable = False
        size = found.nbytes if isinstance(found, np.ndarray) else sys.getsizeof(str(found))
        with self._lock:
            self._kept.put(key, (now, found), size + sys.getsizeof(key[2]) + BESIDE_BYTES)
        return found


def _moment(reader: sqlite3.Connection) -> _Moment:
    generation, documents, last = reader.execute(
        "SELECT generation, documents, (SELECT max(seq) FROM sqlite_sequence WHERE name = 'passages') FROM corpora"
    ).fetchone()
    return generation, documents, last or 0
