"""Exact search, which compares every vector with every query.

It is the reference for other indexes and stores new vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from serving.cancelling import check_cancelled
from serving.indexes.ranking import NOTHING, Rows, best, flat, products, rows_of
from serving.ports import Floats, Keys, Ranking

QUERIES, VECTORS = 64, 16_384
"""Queries and vectors scored at a time. This bounds the matrix of scores (4 MB) and the copy of non-contiguous
vectors."""
SLACK = np.float32(1e-5)
"""Several times the error of a float32 product from BLAS for unit vectors."""


def nearest(keys: Keys, vectors: Floats, queries: Floats, k: int, rows: Rows | None = None) -> list[Ranking]:
    """Return the best `k` of (N, D) `vectors` under N `keys` for each row of (Q, D) `queries`, among all or `rows`.

    BLAS preselects candidates block by block, whether or not the vectors are mapped from a file. `products` scores
    those few.
    """
    queries = np.ascontiguousarray(queries, np.float32)
    found = [NOTHING] * len(queries)
    for block_keys, block in _blocks(keys, vectors, rows):
        view = flat(block)
        for start in range(0, len(queries), QUERIES):
            check_cancelled()
            part = queries[start : start + QUERIES]
            scores = part @ block.T
            for at, (query, row) in enumerate(zip(part, scores, strict=True), start):
                found[at] = _better(found[at], block_keys, partial(_scored, view, query), row, k)
    return found


class Held(NamedTuple):
    """The rows of an `ExactIndex` at one moment. They never change."""

    keys: Keys
    """Sorted keys."""
    vectors: Floats
    live: NDArray[np.bool_]

    def search(self, queries: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        rows = None if self.live.all() else np.flatnonzero(self.live)
        if allowed is not None:
            rows = rows_of(self.keys, allowed)
            rows = rows[self.live[rows]]
        return nearest(self.keys, self.vectors, queries, k, rows)


class ExactIndex:
    """A growing matrix whose rows never change. A search sees the rows that existed when it started.

    Removed rows stay until more than half of the rows are removed.
    """

    def __init__(self, dim: int) -> None:
        self._room = self.held = Held(np.empty(0, np.int64), np.empty((0, dim), np.float32), np.empty(0, np.bool_))
        """`held` is the used part of `_room`."""

    def __len__(self) -> int:
        return int(np.count_nonzero(self.held.live))

    @property
    def nbytes(self) -> int:
        """Bytes of keys and vectors, including removed rows and reserved ones."""
        return sum(part.nbytes for part in self._room)

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Append rows, doubling the reserved room when it is used up."""
        size, needed = len(self.held.keys), len(self.held.keys) + len(keys)
        if needed > len(self._room.keys):
            room = self._empty(max(needed, 2 * size))
            room.keys[:size], room.vectors[:size], room.live[:size] = self.held
            self._room = room
        room = self._room
        room.keys[size:needed], room.vectors[size:needed], room.live[size:needed] = keys, vectors, True
        self.held = Held(room.keys[:needed], room.vectors[:needed], room.live[:needed])

    def remove(self, keys: Keys) -> None:
        """Mark rows as removed, in a copy of the marks."""
        rows = rows_of(self.held.keys, np.sort(keys))
        if not self.held.live[rows].any():
            return
        live = self._room.live.copy()
        live[rows] = False
        self._room = self._room._replace(live=live)
        self.held = self.held._replace(live=live[: len(self.held.keys)])
        if 2 * len(self) < len(self.held.keys):
            keys, vectors, live = self.held
            self._room = self.held = Held(keys[live], vectors[live], live[live])

    def search(self, queries: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        return self.held.search(queries, k, allowed)

    def _empty(self, room: int) -> Held:
        vectors = np.empty((room, self.held.vectors.shape[1]), np.float32)
        return Held(np.empty(room, np.int64), vectors, np.empty(room, np.bool_))


def _blocks(keys: Keys, vectors: Floats, rows: Rows | None) -> Iterator[tuple[Keys, Floats]]:
    for start in range(0, len(keys) if rows is None else len(rows), VECTORS):
        chosen = slice(start, start + VECTORS) if rows is None else rows[start : start + VECTORS]
        yield keys[chosen], vectors[chosen]


def _scored(vectors: faiss.IndexFlatIP, query: Floats, rows: Rows) -> Floats:
    return products(vectors, query[None], rows[None]).reshape(-1)


def _better(found: Ranking, keys: Keys, scored: Callable[[Rows], Floats], scores: Floats, k: int) -> Ranking:
    """Merge `found`, from other blocks, with the rows of a block that are among the best `k`."""
    least = found.scores[-1] if len(found.keys) == k else -np.inf
    in_play = np.flatnonzero(scores >= least - SLACK)
    if not len(in_play):
        return found
    if len(in_play) > k:
        chosen = scores[in_play]
        in_play = in_play[chosen >= np.partition(chosen, len(chosen) - k)[len(chosen) - k] - SLACK]
    return best(np.concatenate([found.keys, keys[in_play]]), np.concatenate([found.scores, scored(in_play)]), k)
