"""Tests of exact search against a plain loop: in memory, mapped from a file, and across blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serving.corpora.indexes import exact
from serving.corpora.indexes.exact import ExactIndex, nearest, rows_of
from tests.serving.corpora.indexes.vectors import TIES, clustered, keys, ranked


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "VECTORS", 64)
    monkeypatch.setattr(exact, "QUERIES", 3)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 500])
@pytest.mark.parametrize("k", [1, 2, 9])
@pytest.mark.parametrize("mapped", [False, True])
def test_nearest_is_a_plain_loop(tmp_path: Path, count: int, k: int, mapped: bool) -> None:
    vectors, queries = clustered(count), clustered(7, seed=1)
    if mapped and count:
        vectors.tofile(tmp_path / "v")
        vectors = np.memmap(tmp_path / "v", np.float32, "r", shape=vectors.shape)
    rows = np.flatnonzero(np.arange(count) % 3)
    for chosen in (None, rows):
        held = {key: vectors[key - 1] for key in range(1, count + 1) if chosen is None or key - 1 in chosen}
        for query, ranking in zip(
            queries, nearest(keys(range(1, count + 1)), vectors, queries, k, chosen), strict=True
        ):
            truth = ranked(held, query, k)
            assert np.allclose(ranking.scores, [score for _, score in truth], atol=TIES)
            clear = {key for key, score in truth if score > truth[-1][1] + TIES}
            assert clear <= set(ranking.keys.tolist())


def test_equal_vectors_rank_oldest_first_wherever_they_lie() -> None:
    """Check that the same numbers give the same score in any row, block and place of the matrix."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        one = clustered(1, dim=int(rng.integers(1, 400)), seed=int(rng.integers(1000)))
        query = clustered(1, dim=one.shape[1], seed=int(rng.integers(1000)))
        (ranking,) = nearest(keys(range(1, 301)), np.repeat(one, 300, axis=0), query, 130)
        assert ranking.keys.tolist() == list(range(1, 131))


def test_a_search_keeps_to_the_rows_of_its_start() -> None:
    index, vectors = ExactIndex(16), clustered(200)
    index.add(keys(range(1, 101)), vectors[:100])
    held = index.rows
    before = [ranking.keys.tolist() for ranking in held.search(vectors[:5], 10)]
    index.remove(keys(range(1, 90)))
    index.add(keys(range(101, 201)), vectors[100:])
    index.remove(keys([150]))
    assert [ranking.keys.tolist() for ranking in held.search(vectors[:5], 10)] == before
    assert len(index) == 110


def test_removed_rows_leave_memory() -> None:
    index = ExactIndex(16)
    index.add(keys(range(1, 1001)), clustered(1000))
    full = index.nbytes
    index.remove(keys(range(1, 901)))
    assert index.nbytes < full / 2


def test_rows_of_sorted_keys() -> None:
    rng = np.random.default_rng(0)
    for sizes in ((0, 5), (5, 0), (3, 100), (100, 3), (50, 50)):
        held, wanted = (np.unique(rng.integers(0, 120, size)) for size in sizes)
        assert rows_of(held, wanted).tolist() == [
            at for at, key in enumerate(held.tolist()) if key in set(wanted.tolist())
        ]


def test_only_allowed_rows_that_are_not_removed_are_found() -> None:
    index, vectors = ExactIndex(16), clustered(10)
    index.add(keys(range(1, 11)), vectors)
    index.remove(keys([2, 3]))
    (ranking,) = index.rows.search(vectors[:1], 10, keys([2, 4, 6, 99]))
    assert sorted(ranking.keys.tolist()) == [4, 6]


def test_removed_rows_stay_until_more_than_half_are_removed() -> None:
    index, vectors = ExactIndex(16), clustered(6)
    index.add(keys(range(1, 5)), vectors[:4])
    index.remove(keys([1, 2]))
    assert (len(index), len(index.rows.keys)) == (2, 4)
    index.add(keys([5]), vectors[4:5])
    index.remove(keys([3, 5]))
    assert (len(index), index.rows.keys.tolist()) == (1, [4])
    index.add(keys([6]), vectors[5:])
    (ranking,) = index.rows.search(vectors[5:], 5)
    assert ranking.keys.tolist()[0] == 6 and len(ranking.keys) == 2
