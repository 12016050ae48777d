"""The order of hits and the computation of scores that all indexes share."""

from __future__ import annotations

from collections.abc import Sequence

import faiss
import numpy as np
from numpy.typing import NDArray

from serving.ports import Floats, Keys, Ranking

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
