"""Every vector against every query, in NumPy: the oracle for the other indexes."""

from __future__ import annotations

import numpy as np

from serving.indexes.ranking import best, rounded
from serving.ports import Floats, Keys, Ranking

BLOCK = 64
"""Queries scored at a time, to bound the (Q, N) matrix of scores."""


class ExactIndex:
    """A growing matrix; a removed row is overwritten by the last one."""

    def __init__(self, dim: int) -> None:
        self._vectors: Floats = np.empty((0, dim), dtype=np.float32)
        self._keys: Keys = np.empty(0, dtype=np.int64)
        self._rows: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Append, doubling the room when it is used up."""
        size, needed = len(self), len(self) + len(keys)
        if needed > len(self._keys):
            room = max(needed, 2 * len(self._keys))
            self._vectors = np.resize(self._vectors, (room, self._vectors.shape[1]))
            self._keys = np.resize(self._keys, room)
        self._vectors[size:needed], self._keys[size:needed] = vectors, keys
        self._rows.update(zip(keys.tolist(), range(size, needed), strict=True))

    def remove(self, keys: Keys) -> None:
        """Constant time a key."""
        for key in keys.tolist():
            row = self._rows.pop(key, None)
            last = len(self._rows)
            if row is None or row == last:
                continue
            self._vectors[row], self._keys[row] = self._vectors[last], self._keys[last]
            self._rows[int(self._keys[row])] = row

    def search(self, queries: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        """Exact. See `Index`."""
        keys, vectors = self._keys[: len(self)], self._vectors[: len(self)]
        if allowed is not None:
            rows = [self._rows[key] for key in allowed.tolist() if key in self._rows]
            keys, vectors = keys[rows], vectors[rows]
        rankings: list[Ranking] = []
        for start in range(0, len(queries), BLOCK):
            scores = rounded(queries[start : start + BLOCK] @ vectors.T)  # (Q, N)
            rankings.extend(best(keys, row, k) for row in scores)
        return rankings
