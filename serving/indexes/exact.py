"""Every vector against every query, in NumPy: the oracle for the other indexes."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from serving.indexes.ranking import best, rounded
from serving.ports import Floats, Keys, Ranking

BLOCK = 64
"""Queries scored at a time, to bound the (Q, N) matrix of scores."""
GONE = 0
"""In the place of a removed key; keys are positive."""


class ExactIndex:
    """A growing matrix whose rows never change: a search keeps to the rows there were at its start.

    A removed row stays until half of the rows are gone, without its key.
    """

    recall: ClassVar[float] = 1.0

    def __init__(self, dim: int) -> None:
        self._rows: tuple[Keys, Floats] = np.empty(0, np.int64), np.empty((0, dim), np.float32)
        self._room = self._rows
        """`_rows` is the used part of it."""

    def __len__(self) -> int:
        return int(np.count_nonzero(self._rows[0] != GONE))

    @property
    def nbytes(self) -> int:
        """Keys and vectors, of removed rows too."""
        return sum(part.nbytes for part in self._room)

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Append, doubling the room when it is used up."""
        size, needed = len(self._rows[0]), len(self._rows[0]) + len(keys)
        if needed > len(self._room[0]):
            held, self._room = self._rows, self._empty(max(needed, 2 * size))
            self._room[0][:size], self._room[1][:size] = held
        self._room[0][size:needed], self._room[1][size:needed] = keys, vectors
        self._rows = self._room[0][:needed], self._room[1][:needed]

    def remove(self, keys: Keys) -> None:
        """A pass over the keys, in a copy of them."""
        gone = np.isin(self._rows[0], keys)
        if not gone.any():
            return
        kept = np.where(gone, GONE, self._rows[0])
        self._rows = kept, self._rows[1]
        live = kept != GONE
        if 2 * np.count_nonzero(live) < len(kept):
            self._rows = kept[live], self._rows[1][live]
            self._room = self._rows
        else:
            room = np.empty(len(self._room[0]), np.int64)
            room[: len(kept)] = kept
            self._room = room, self._room[1]

    def search(self, queries: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        """Exact. See `Index`."""
        keys, vectors = self._rows
        if allowed is not None:
            chosen = np.isin(keys, allowed)
            keys, vectors = keys[chosen], vectors[chosen]
        live = keys != GONE
        rankings: list[Ranking] = []
        for start in range(0, len(queries), BLOCK):
            scores = rounded(queries[start : start + BLOCK] @ vectors.T)  # (Q, N)
            rankings.extend(best(keys[live], row[live], k) for row in scores)
        return rankings

    def _empty(self, room: int) -> tuple[Keys, Floats]:
        return np.empty(room, np.int64), np.empty((room, self._rows[1].shape[1]), np.float32)
