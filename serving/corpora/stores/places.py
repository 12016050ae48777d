"""The stored map of a corpus, with one row for each point.

The row of the corpus stores the origin of the map as JSON.
"""

from __future__ import annotations

import sqlite3
from dataclasses import asdict

import numpy as np
import orjson

from serving.corpora.values import Map, MapOrigin
from serving.errors import Conflict

# The key of a point is the key of its passage. The passage may have been removed, but its key is never assigned again.
TABLE = "CREATE TABLE places (key INTEGER PRIMARY KEY, x REAL NOT NULL, y REAL NOT NULL) STRICT"


def keep(writer: sqlite3.Connection, found: Map, generation: str) -> None:
    """Implement `Store.keep_map`."""
    if writer.execute("SELECT 1 FROM corpora WHERE generation != ?", (generation,)).fetchone():
        raise Conflict("the corpus was restored or embedded again while its map was computed: compute the map again")
    writer.execute("DELETE FROM places")
    rows = zip(found.keys.tolist(), *found.places.T.tolist(), strict=True)
    writer.executemany("INSERT INTO places (key, x, y) VALUES (?, ?, ?)", rows)
    writer.execute("UPDATE corpora SET map = ?", (orjson.dumps(asdict(found.origin)).decode(),))


def kept(reader: sqlite3.Connection) -> Map | None:
    """Implement `Store.kept_map`."""
    (origin,) = reader.execute("SELECT map FROM corpora").fetchone()
    if origin is None:
        return None
    rows = reader.execute("SELECT key, x, y FROM places ORDER BY key").fetchall()
    keys = np.array([key for key, *_ in rows], np.int64)
    places = np.array([place for _, *place in rows], np.float64).reshape(-1, 2)
    return Map(MapOrigin(**orjson.loads(origin)), keys, places)
