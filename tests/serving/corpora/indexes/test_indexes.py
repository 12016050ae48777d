"""Tests of exact search against a plain loop over all vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.runtimes.base import Floats
from serving.corpora.indexes.exact import ExactIndex
from serving.corpora.values import Keys

DIM = 3
vectors = st.lists(st.integers(-3, 3), min_size=DIM, max_size=DIM)
"""Vectors of small integers. Their products are exact in float32, so even ties can be compared."""
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(vectors, min_size=1, max_size=6)),
        st.tuples(st.just("remove"), st.lists(st.integers(1, 40), max_size=4)),
    ),
    max_size=10,
)


def keys(values: list[int]) -> Keys:
    return np.array(values, dtype=np.int64)


def floats(rows: list[list[int]]) -> Floats:
    return np.array(rows, dtype=np.float32).reshape(-1, DIM)


def ranked(held: dict[int, list[int]], query: list[int], k: int) -> list[tuple[int, float]]:
    scores = {key: float(np.dot(vector, query)) for key, vector in held.items()}
    return sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))[:k]


@given(steps=steps, queries=st.lists(vectors, min_size=1, max_size=3), k=st.integers(1, 12), data=st.data())
def test_index_is_brute_force(
    steps: list[tuple[str, list[Any]]],
    queries: list[list[int]],
    k: int,
    data: st.DataObject,
) -> None:
    index, held, following = ExactIndex(DIM), dict[int, list[int]](), 1
    for verb, values in steps:
        if verb == "add":
            new = list(range(following, following + len(values)))
            following += len(values)
            index.add(keys(new), floats(values))
            held.update(zip(new, values, strict=True))
        else:
            index.remove(keys(values))
            held = {key: vector for key, vector in held.items() if key not in values}
    assert len(index) == len(held)
    allowed = data.draw(st.none() | st.sets(st.integers(1, 40)))
    rankings = index.rows.search(floats(queries), k, None if allowed is None else keys(sorted(allowed)))
    kept = held if allowed is None else {key: held[key] for key in held.keys() & allowed}
    for query, ranking in zip(queries, rankings, strict=True):
        found = list(zip(ranking.keys.tolist(), ranking.scores.tolist(), strict=True))
        assert found == ranked(kept, query, k)


def test_real_vectors_agree_with_float64() -> None:
    rng = np.random.default_rng(0)
    stored = rng.standard_normal((2000, 48)).astype(np.float32)
    stored /= np.linalg.norm(stored, axis=1, keepdims=True)
    index = ExactIndex(48)
    index.add(np.arange(1, 2001), stored)
    for query, ranking in zip(stored[:50], index.rows.search(stored[:50], 10), strict=True):
        exact = stored.astype(np.float64) @ query
        assert ranking.keys[0] == 1 + np.argmax(exact)
        assert np.allclose(ranking.scores, np.sort(exact)[::-1][:10], atol=2e-6)


def test_equal_vectors_rank_oldest_first() -> None:
    one = np.full((1, 48), 48**-0.5, dtype=np.float32)
    index = ExactIndex(48)
    index.add(np.arange(1, 1001), np.repeat(one, 1000, axis=0))
    index.remove(keys([1, 3]))
    assert index.rows.search(one, 4)[0].keys.tolist() == [2, 4, 5, 6]
