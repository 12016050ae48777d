"""Tests of the search benchmark: its vectors are as described, and both sides search the same vectors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.search.corpus import K, Ours, Raw, calls
from benchmarks.search.mixture import BLOCK, Vectors, mixture
from serving.corpora.indexes.building import Plan

ROWS, DIM = 6000, 16


def made(rows: int, part: int = 0) -> Vectors:
    return np.concatenate(list(mixture(rows, DIM, clusters=20, part=part)))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    opened = Ours(tmp_path_factory.mktemp("ours"))
    opened.corpora._indexes._plan = Plan(least=100)
    opened.add(made(ROWS))
    yield opened
    opened.corpora.close()


def test_vectors_lie_in_clusters_and_parts_differ() -> None:
    base, queries = made(2000), made(500, part=1)
    np.testing.assert_allclose(np.linalg.norm(base, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(base, made(2000))
    nearest = (queries @ base.T).max(axis=1)
    noise = np.random.default_rng(0).standard_normal((2000, DIM))
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    assert 0.75 < nearest.mean() < 0.999
    assert nearest.mean() > (queries @ noise.T).max(axis=1).mean() + 0.05
    assert next(mixture(BLOCK + 1, 2, clusters=2)).shape == (BLOCK, 2)


@pytest.mark.slow
def test_ours_and_faiss_search_the_same_index(ours: Ours) -> None:
    report = ours.build()
    assert report["kind"] == "hnsw"
    raw, base, queries = Raw(ours.folder, report), made(ROWS), made(50, part=1)
    exact = [set(np.argsort(-(base @ query))[:K].tolist()) for query in queries]
    for search in (ours.search, raw.search, lambda asked: ours.search(asked, exact=True)):
        found = [set(rows) for rows in search(queries)]
        assert np.mean([len(a & b) / K for a, b in zip(found, exact, strict=True)]) > 0.9
    assert np.mean([a == b for a, b in zip(ours.search(queries), raw.search(queries), strict=True)]) > 0.9
    assert set(ours.bytes()) == {"store", "index"} and min(ours.bytes().values()) > ROWS * DIM * 4


def test_calls_counts_queries_not_calls(ours: Ours) -> None:
    taken = calls(ours.search, made(100, part=1), 50, 2, seconds=0.05)
    assert taken["queries"] == 50 * len(taken["latencies"]) > 0
