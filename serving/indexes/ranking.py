"""The one order of hits that every index answers in, and the one way to compute a score."""

from __future__ import annotations

from collections.abc import Sequence

import faiss
import numpy as np
from numpy.typing import NDArray

from serving.ports import Floats, Keys, Ranking

Rows = NDArray[np.int64]
"""Places in a matrix of vectors."""
DECIMALS = 6
"""float32 sums differ in the last bit with the place of a row in the matrix: equal vectors must stay equal."""
NOTHING = Ranking(np.empty(0, np.int64), np.empty(0, np.float32))


def rounded(scores: Floats) -> Floats:
    """Scores at the precision that is compared and shown."""
    return scores.round(DECIMALS)


def best(keys: Keys, scores: Floats, k: int) -> Ranking:
    """The `k` best by score, equal scores oldest (lowest key) first. `scores` are `rounded` already."""
    if k < len(keys):  # every score that ties with the k-th stays in play
        worst_kept = np.partition(scores, len(scores) - k)[len(scores) - k]
        in_play = scores >= worst_kept
        keys, scores = keys[in_play], scores[in_play]
    order = np.lexsort((keys, -scores))[:k]
    return Ranking(keys[order], scores[order])


def merged(rankings: Sequence[Ranking], k: int) -> Ranking:
    """The `k` best of several rankings of different keys."""
    return best(np.concatenate([one.keys for one in rankings]), np.concatenate([one.scores for one in rankings]), k)


def flat(vectors: Floats) -> faiss.IndexFlatIP:
    """FAISS over (N, D) float32 `vectors` where they are; they must outlive it."""
    view = faiss.IndexFlatIP(vectors.shape[1])
    address = faiss.cast_integer_to_void_ptr(vectors.ctypes.data)
    view.codes = faiss.MaybeOwnedVectorUInt8.create_view(address, vectors.nbytes, view.codes.owner)
    view.ntotal = len(vectors)
    return view


def products(vectors: faiss.IndexFlatIP, queries: Floats, rows: Rows) -> Floats:
    """(Q, C) rounded scores of (Q, C) `rows`, -inf where a row is -1.

    Each by itself, in one order of summation: what is equal in the vectors is equal here, wherever they lie.
    """
    rows, queries = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(queries, np.float32)
    scores = np.empty(rows.shape, np.float32)
    faiss.omp_set_num_threads(1)  # a few rows a query are done before another thread is awake
    vectors.compute_distance_subset(
        len(queries), faiss.swig_ptr(queries), rows.shape[1], faiss.swig_ptr(scores), faiss.swig_ptr(rows)
    )
    return rounded(scores)


def rows_of(keys: Keys, wanted: Keys) -> Rows:
    """Where in the sorted `keys` those of the sorted `wanted` are, that are there."""
    if len(wanted) <= len(keys):
        rows = np.searchsorted(keys, wanted)
        there = rows < len(keys)
        there[there] = keys[rows[there]] == wanted[there]
        return rows[there]
    places = np.searchsorted(wanted, keys)
    there = places < len(wanted)
    there[there] = wanted[places[there]] == keys[there]
    return np.flatnonzero(there)
