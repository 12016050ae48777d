"""Exact search, and the order of hits in all indexes.

Exact search compares every vector with every query. It is the reference for approximate indexes. An `ExactIndex`
stores newly added vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.corpora.ports import Ranking
from serving.corpora.values import Keys
from serving.operations.threads import check_cancelled

Rows = NDArray[np.int64]
"""Row numbers in a matrix of vectors."""
DECIMALS = 6
"""Number of decimals of a score. The last bits of a float32 sum depend on the position of a row in the matrix. After
rounding, equal vectors have equal scores."""
NOTHING = Ranking(np.empty(0, np.int64), np.empty(0, np.float32))
QUERIES, VECTORS = 64, 16_384
"""Maximum number of queries and of vectors in one matrix product. They limit the size of the score matrix (4 MB) and of
copies of vectors."""
SLACK = np.float32(1e-5)
"""Tolerance of the first selection by score. It is several times the error of BLAS for the float32 inner product of
unit vectors."""


def nearest(keys: Keys, vectors: Floats, queries: Floats, k: int, rows: Rows | None = None) -> list[Ranking]:
    """Return the best `k` of the (N, D) `vectors` for each row of (Q, D) `queries`.

    `keys` are the keys of the N vectors. If `rows` is given, only these rows are searched. BLAS first selects
    candidates block by block. `products` then computes the scores of the candidates.
    """
    queries = np.ascontiguousarray(queries, np.float32)
    found = [NOTHING] * len(queries)
    for begin in range(0, len(keys) if rows is None else len(rows), VECTORS):
        chosen = slice(begin, begin + VECTORS) if rows is None else rows[begin : begin + VECTORS]
        block_keys, block = keys[chosen], vectors[chosen]
        view = flat(block)
        for start in range(0, len(queries), QUERIES):
            check_cancelled()
            part = queries[start : start + QUERIES]
            scores = part @ block.T
            for at, (query, row) in enumerate(zip(part, scores, strict=True), start):
                found[at] = _better(found[at], block_keys, view, query, row, k=k)
    return found


def _better(found: Ranking, keys: Keys, block: faiss.IndexFlatIP, query: Floats, scores: Floats, *, k: int) -> Ranking:
    """Merge the rows of a block into `found`, the best hits of earlier blocks. Return the best `k` hits.

    `keys` are the keys of the block's rows. `scores` are the scores of these rows as computed by BLAS. These scores
    only select candidates. `products` computes the final scores of the candidates.
    """
    least = found.scores[-1] if len(found.keys) == k else -np.inf
    in_play = np.flatnonzero(scores >= least - SLACK)
    if not len(in_play):
        return found
    if len(in_play) > k:
        chosen = scores[in_play]
        in_play = in_play[chosen >= np.partition(chosen, len(chosen) - k)[len(chosen) - k] - SLACK]
    final = products(block, query[None], in_play[None])[0]
    return best(np.concatenate([found.keys, keys[in_play]]), np.concatenate([found.scores, final]), k)


class ExactRows(NamedTuple):
    """An immutable snapshot of the rows of an `ExactIndex`."""

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
    """A growing matrix of vectors with exact search.

    A search uses the rows that existed when the search started. Removed rows stay in memory until more than half of the
    rows are removed.
    """

    def __init__(self, dim: int) -> None:
        self._room = self.rows = ExactRows(np.empty(0, np.int64), np.empty((0, dim), np.float32), np.empty(0, np.bool_))
        """`_room` has spare capacity for more rows. `rows` is the used part of `_room`."""

    def __len__(self) -> int:
        return int(np.count_nonzero(self.rows.live))

    @property
    def nbytes(self) -> int:
        """Bytes of keys and vectors, including removed rows and spare capacity."""
        return sum(part.nbytes for part in self._room)

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Append (N, D) vectors under N keys, which are greater than all earlier keys.

        The capacity is doubled when it is used up.
        """
        size, needed = len(self.rows.keys), len(self.rows.keys) + len(keys)
        if needed > len(self._room.keys):
            capacity, dim = max(needed, 2 * size), self.rows.vectors.shape[1]
            vectors_room = np.empty((capacity, dim), np.float32)
            room = ExactRows(np.empty(capacity, np.int64), vectors_room, np.empty(capacity, np.bool_))
            room.keys[:size], room.vectors[:size], room.live[:size] = self.rows
            self._room = room
        room = self._room
        room.keys[size:needed], room.vectors[size:needed], room.live[size:needed] = keys, vectors, True
        self.rows = ExactRows(room.keys[:needed], room.vectors[:needed], room.live[:needed])

    def remove(self, keys: Keys) -> None:
        """Remove the rows of `keys`.

        The rows are marked in a copy of the array `live`, because running searches still read the old array. If fewer
        than half of all rows are then live, the live rows are copied to new arrays.
        """
        rows = rows_of(self.rows.keys, np.sort(keys))
        if not self.rows.live[rows].any():
            return
        live = self._room.live.copy()
        live[rows] = False
        self._room = self._room._replace(live=live)
        self.rows = self.rows._replace(live=live[: len(self.rows.keys)])
        if 2 * len(self) < len(self.rows.keys):
            keys, vectors, live = self.rows
            self._room = self.rows = ExactRows(keys[live], vectors[live], live[live])


def rounded(scores: Floats) -> Floats:
    """Round scores to `DECIMALS`. Comparisons and answers use this precision."""
    return scores.round(DECIMALS)


def best(keys: Keys, scores: Floats, k: int) -> Ranking:
    """Return the `k` best hits by score.

    Among hits with equal scores, the oldest hit, which has the lowest key, is first. `scores` must be a result of
    `rounded`.
    """
    if k < len(keys):  # keep all scores that are equal to the k-th
        worst_kept = np.partition(scores, len(scores) - k)[len(scores) - k]
        in_play = scores >= worst_kept
        keys, scores = keys[in_play], scores[in_play]
    order = np.lexsort((keys, -scores))[:k]
    return Ranking(keys[order], scores[order])


def merged(rankings: Sequence[Ranking], k: int) -> Ranking:
    """Return the `k` best hits of several rankings, which must have no key in common."""
    return best(np.concatenate([one.keys for one in rankings]), np.concatenate([one.scores for one in rankings]), k)


def flat(vectors: Floats) -> faiss.IndexFlatIP:
    """Make a FAISS index over (N, D) float32 `vectors` without a copy. `vectors` must outlive the index."""
    view = faiss.IndexFlatIP(vectors.shape[1])
    address = faiss.cast_integer_to_void_ptr(vectors.ctypes.data)
    view.codes = faiss.MaybeOwnedVectorUInt8.create_view(address, vectors.nbytes, view.codes.owner)
    view.ntotal = len(vectors)
    return view


def products(vectors: faiss.IndexFlatIP, queries: Floats, rows: Rows) -> Floats:
    """Return the rounded scores (Q, C) of each query with C vectors of its own.

    Element (i, j) is the score of query i with the vector whose number is element (i, j) of `rows` (Q, C). The number
    -1 gives -inf. Each score is computed separately, in the same order of summation, so equal vectors have equal
    scores.
    """
    rows, queries = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(queries, np.float32)
    scores = np.empty(rows.shape, np.float32)
    faiss.omp_set_num_threads(1)  # a few rows per query take less time than waking another thread
    vectors.compute_distance_subset(
        len(queries), faiss.swig_ptr(queries), rows.shape[1], faiss.swig_ptr(scores), faiss.swig_ptr(rows)
    )
    return rounded(scores)


def rows_of(keys: Keys, wanted: Keys) -> Rows:
    """Return the row numbers of the sorted `wanted` keys in the sorted `keys`. Keys that `keys` lacks are skipped."""
    few, many = (wanted, keys) if len(wanted) <= len(keys) else (keys, wanted)
    places = np.searchsorted(many, few)
    there = places < len(many)
    there[there] = many[places[there]] == few[there]
    return places[there] if few is wanted else np.flatnonzero(there)


def union(*several: Keys) -> Keys:
    """Return the sorted union of arrays of positive integers. The arrays need not be sorted.

    NumPy's own function builds a hash table first, which takes 7 to 50 times as long.
    """
    every = np.sort(np.concatenate(several))
    return every[np.diff(every, prepend=-1) > 0]
