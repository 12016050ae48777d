"""What filters matched, kept as long as it is true: who searches with a filter often searches with it again."""

from __future__ import annotations

import sqlite3
import sys
import threading
from pathlib import Path

from serving.filters import Filter
from serving.lru import Lru
from serving.ports import Keys
from serving.stores import reading

KEPT_BYTES = 64 << 20
"""Of all corpora together: 8 million keys."""
BESIDE_BYTES = 400
"""Of an entry, beside its keys and the name of its filter: the moment, the array's head."""
_Moment = tuple[str, int, int]
"""Generation, documents, greatest key ever given out: whatever adds raises the key, whatever else removes documents."""


class Matched:
    """Keys by corpus and filter, of the moment that they were looked up at."""

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self._kept: Lru[tuple[Path, str], tuple[_Moment, Keys]] = Lru(max_bytes)
        self._lock = threading.Lock()

    def keys(self, file: Path, reader: sqlite3.Connection, where: Filter) -> Keys:
        """See `Store.matching`; inside the transaction of whoever calls, who reads `file`."""
        now = _moment(reader)
        key = file, repr(where)  # filters that are equal may match differently: 1 == True
        with self._lock:
            kept = self._kept.get(key)
        if kept and kept[0] == now:
            return kept[1]
        found = reading.keys_matching(reader, where)
        found.flags.writeable = False
        with self._lock:
            self._kept.put(key, (now, found), found.nbytes + sys.getsizeof(key[1]) + BESIDE_BYTES)
        return found


def _moment(reader: sqlite3.Connection) -> _Moment:
    generation, documents, last = reader.execute(
        "SELECT generation, documents, (SELECT max(seq) FROM sqlite_sequence WHERE name = 'passages') FROM corpora"
    ).fetchone()
    return generation, documents, last or 0
