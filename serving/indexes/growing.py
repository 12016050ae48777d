"""A graph beside the main index, which takes in the older part of a long tail until a build includes both."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

import faiss
import numpy as np

from serving.indexes.hnsw import Hnsw
from serving.indexes.kind import Pause
from serving.indexes.main import Approximate, Main, Tuning
from serving.indexes.tuning import tune
from serving.ports import Floats, Keys

_HNSW = Hnsw()


class Oldest(NamedTuple):
    """The oldest part of a tail: (N, D) vectors under N keys, and (Q, D) later vectors as queries for measurement."""

    keys: Keys
    vectors: Floats
    later: Floats


def grown(before: Main | None, oldest: Oldest, target: float, pause: Pause) -> Main:
    """Return one graph of the vectors grown `before` and the `oldest` of the tail. `before` itself stays unchanged.

    Raises:
        BuildError: no effort reaches the target.
    """
    begin = perf_counter()
    keys, vectors, queries = oldest
    faiss.omp_set_num_threads(1)
    if before is None or before.approximate is None:
        parameters = _HNSW.parameters(*vectors.shape)
        index = _HNSW.build(vectors, parameters, pause)
    else:
        parameters = before.approximate.parameters
        index = _HNSW.extended(before.approximate.built, vectors, pause)
        keys = np.concatenate([before.keys, keys])
    built = Approximate(_HNSW, parameters, index)
    size = _HNSW.memory(len(keys), vectors.shape[1])
    main = Main(keys, _stored(index), built, Tuning(target), bytes=size, holds_queries=False)
    tuning = tune(main, queries, target, pause)
    seconds = perf_counter() - begin + (before.build_seconds if before else 0.0)
    return replace(main, tuning=tuning, build_seconds=seconds)


def _stored(index: faiss.Index) -> Floats:
    """Return the (N, D) vectors stored in the graph, without a copy.

    They live as long as the graph, so `Main` keeps both.
    """
    storage = faiss.downcast_index(index.storage)
    vectors: Floats = faiss.rev_swig_ptr(storage.get_xb(), index.ntotal * index.d).reshape(index.ntotal, index.d)
    return vectors
