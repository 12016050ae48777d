"""Exact search, which compares every vector with every query.

It is the reference for other indexes and stores new vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.corpora.ports import Keys, Ranking
from serving.operations.threads import check_cancelled

# Set operations on sorted arrays of distinct integers.

Integers = NDArray[np.int64]


def union(*several: Integers) -> Integers:
    """Return the union of arrays of positive integers, sorted or not.

    NumPy's own function builds a hash table first, which takes 7 to 50 times as long.
    """
    every = np.sort(np.concatenate(several))
    return every[np.diff(every, prepend=-1) > 0]


# The order of hits and the computation of scores that all indexes share.

Rows = NDArray[np.int64]
"""Row numbers in a matrix of vectors."""
DECIMALS = 6
"""Decimals of a score. float32 sums vary in the last bit with a row's place in the matrix, but equal vectors need equal
scores."""
NOTHING = Ranking(np.empty(0, np.int64), np.empty(0, np.float32))


def rounded(scores: Floats) -> Floats:
    """Round scores to the precision that is compared and shown."""
    return scores.round(DECIMALS)


def best(keys: Keys, scores: Floats, k: int) -> Ranking:
    """Return the `k` best by score.

    Equal scores are ordered by age, the lowest key first. `scores` must be `rounded`.
    """
    if k < len(keys):  # every score that ties with the k-th stays in play
        worst_kept = np.partition(scores, len(scores) - k)[len(scores) - k]
        in_play = scores >= worst_kept
        keys, scores = keys[in_play], scores[in_play]
    order = np.lexsort((keys, -scores))[:k]
    return Ranking(keys[order], scores[order])


def merged(rankings: Sequence[Ranking], k: int) -> Ranking:
    """Return the `k` best of several rankings of different keys."""
    return best(np.concatenate([one.keys for one in rankings]), np.concatenate([one.scores for one in rankings]), k)


def flat(vectors: Floats) -> faiss.IndexFlatIP:
    """Make a FAISS index over (N, D) float32 `vectors` without a copy. The vectors must outlive it."""
    view = faiss.IndexFlatIP(vectors.shape[1])
    address = faiss.cast_integer_to_void_ptr(vectors.ctypes.data)
    view.codes = faiss.MaybeOwnedVectorUInt8.create_view(address, vectors.nbytes, view.codes.owner)
    view.ntotal = len(vectors)
    return view


def products(vectors: faiss.IndexFlatIP, queries: Floats, rows: Rows) -> Floats:
    """Return (Q, C) rounded scores of (Q, C) `rows`; -inf where a row is -1.

    Each score is computed separately in one order of summation, so equal vectors have equal scores.
    """
    rows, queries = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(queries, np.float32)
    scores = np.empty(rows.shape, np.float32)
    faiss.omp_set_num_threads(1)  # a few rows per query take less time than waking another thread
    vectors.compute_distance_subset(
        len(queries), faiss.swig_ptr(queries), rows.shape[1], faiss.swig_ptr(scores), faiss.swig_ptr(rows)
    )
    return rounded(scores)


def rows_of(keys: Keys, wanted: Keys) -> Rows:
    """Return the rows in the sorted `keys` of those sorted `wanted` keys that exist."""
    if len(wanted) <= len(keys):
        rows = np.searchsorted(keys, wanted)
        there = rows < len(keys)
        there[there] = keys[rows[there]] == wanted[there]
        return rows[there]
    places = np.searchsorted(wanted, keys)
    there = places < len(wanted)
    there[there] = wanted[places[there]] == keys[there]
    return np.flatnonzero(there)


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


class ExactRows(NamedTuple):
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
        self._room = self.held = ExactRows(np.empty(0, np.int64), np.empty((0, dim), np.float32), np.empty(0, np.bool_))
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
        self.held = ExactRows(room.keys[:needed], room.vectors[:needed], room.live[:needed])

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
            self._room = self.held = ExactRows(keys[live], vectors[live], live[live])

    def search(self, queries: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        return self.held.search(queries, k, allowed)

    def _empty(self, room: int) -> ExactRows:
        vectors = np.empty((room, self.held.vectors.shape[1]), np.float32)
        return ExactRows(np.empty(room, np.int64), vectors, np.empty(room, np.bool_))


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
