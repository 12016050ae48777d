"""What filters matched, kept as long as it is true: who searches with a filter often searches with it again."""

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
"""Of all corpora together: 8 million keys."""
BESIDE_BYTES = 400
"""Of an entry, beside its keys and the name of its filter: the moment, the array's head."""
_Moment = tuple[str, int, int]
"""Generation, documents, greatest key ever given out: whatever adds raises the key, whatever else removes documents."""


class Matched:
    """What was found by corpus and filter, of the moment that it was looked up at.

    Call its methods inside a transaction that reads `file`.
    """

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self._kept: Lru[tuple[Path, str, str], tuple[_Moment, Any]] = Lru(max_bytes)
        self._lock = threading.Lock()

    def keys(self, file: Path, reader: sqlite3.Connection, where: Filter) -> Keys:
        """See `Store.matching`."""
        return self._looked_up("keys", file, reader, where, reading.keys_matching)

    def numbers(self, file: Path, reader: sqlite3.Connection, where: Filter) -> Numbers:
        """Sorted numbers of the documents that match."""
        return self._looked_up("numbers", file, reader, where, matching)

    def unmatched(self, file: Path, reader: sqlite3.Connection, where: Filter) -> list[str]:
        """See `Store.unmatched`."""
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
