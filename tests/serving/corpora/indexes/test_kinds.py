"""Tests of every kind of main index: results, storage, and ids that must not be returned."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from models.runtimes.base import Floats
from serving.corpora.indexes import KINDS
from serving.corpora.indexes.approximate import Hnsw, Ivf
from serving.corpora.indexes.building import recall
from serving.corpora.indexes.exact import nearest
from serving.corpora.indexes.gpu import GPU_KINDS, trouble
from serving.corpora.indexes.kind import BuildError, CancelledError, Candidates, Kind
from serving.corpora.indexes.state import Approximate, Main, Marks, Tuning
from tests.serving.corpora.indexes.vectors import clustered, keys

COUNT = 3000
HERE = KINDS if trouble() else {**KINDS, **GPU_KINDS}
every_kind = pytest.mark.parametrize("kind", HERE.values(), ids=HERE.keys())


@pytest.fixture(scope="module")
def vectors() -> Floats:
    faiss.omp_set_num_threads(1)
    return clustered(COUNT)


def main(kind: Kind, vectors: Floats, efforts: dict[float, int] | None = None) -> Main:
    parameters = kind.parameters(*vectors.shape)
    index = kind.build(vectors, parameters, lambda: None)
    tuning = Tuning(0.95, efforts=efforts or {1.0: kind.efforts(parameters)[-1]})
    return Main(keys(range(1, len(vectors) + 1)), vectors, Approximate(kind, parameters, index), tuning)


@pytest.mark.slow
@every_kind
def test_with_all_its_effort_it_finds_nearly_all(kind: Kind, vectors: Floats) -> None:
    queries = clustered(100, seed=1)
    built = main(kind, vectors)
    truth = nearest(built.keys, vectors, queries, 10)
    for threads in (1, 2):
        found = built.candidates(queries, 10, built.efforts()[-1], None, threads)
        assert recall(found, truth).mean() > 0.97
        for one in found:
            assert np.array_equal(np.lexsort((one.keys, -one.scores)), np.arange(10))


@pytest.mark.slow
@every_kind
def test_more_effort_finds_no_less(kind: Kind, vectors: Floats) -> None:
    queries = clustered(200, seed=2)
    built = main(kind, vectors)
    truth = nearest(built.keys, vectors, queries, 10)
    efforts = built.efforts()
    least, most = (
        recall(built.candidates(queries, 10, effort, None), truth).mean() for effort in (efforts[0], efforts[-1])
    )
    assert least <= most
    assert list(efforts) == sorted(set(efforts))


@every_kind
def test_what_is_read_is_what_was_written(kind: Kind, vectors: Floats, tmp_path: Path) -> None:
    queries, bitmap = clustered(20, seed=3), Marks(COUNT, rows=np.arange(0, COUNT, 2)).bitmap
    parameters = kind.parameters(*vectors.shape)
    index = kind.build(vectors[:2900], parameters, lambda: None)
    index = kind.complete(index, vectors)
    kind.write(index, str(tmp_path / "index"))
    read = kind.read(str(tmp_path / "index"), vectors)
    assert index.ntotal == read.ntotal == COUNT
    for marks in (None, bitmap):
        for effort in kind.efforts(parameters)[::5]:
            wanted = Candidates(10, effort, marks)
            assert np.array_equal(kind.search(index, queries, wanted), kind.search(read, queries, wanted))


@every_kind
def test_what_was_added_last_is_found(kind: Kind, vectors: Floats) -> None:
    parameters = kind.parameters(*vectors.shape)
    index = kind.complete(kind.build(vectors[:2900], parameters, lambda: None), vectors)
    rows = kind.search(index, vectors[2900:], Candidates(3 * kind.refined, kind.efforts(parameters)[-1], None))
    own = (rows == np.arange(2900, COUNT)[:, None]).any(axis=1)
    assert own.mean() > 0.95


@every_kind
def test_only_marked_rows_are_found(kind: Kind, vectors: Floats) -> None:
    built = main(kind, vectors)
    queries = clustered(30, seed=4)
    for step in (2, 20, 200):
        rows = np.arange(1, COUNT, step)
        index = built.approximate
        assert index is not None
        found = kind.search(index.built, queries, Candidates(10, built.efforts()[-1], Marks(COUNT, rows=rows).bitmap))
        assert set(found.ravel().tolist()) <= {-1, *rows.tolist()}


@every_kind
def test_an_answer_is_never_short(kind: Kind, vectors: Floats, monkeypatch: pytest.MonkeyPatch) -> None:
    # All vectors except the remaining ones are left out of exact search.
    monkeypatch.setattr("serving.corpora.indexes.state.EXACT_ROWS", 0)
    least = kind.efforts(kind.parameters(*vectors.shape))[0]
    built = main(kind, vectors, {1.0: least, 0.001: least})
    marks = Marks(COUNT).without(np.arange(0, COUNT, 7))
    for allowed in (keys(range(1, COUNT, 50)), keys(range(1, 31)), keys([5]), keys([1]), keys([COUNT + 9])):
        live = {key for key in allowed.tolist() if key <= COUNT and (key - 1) % 7}
        for k in (1, 10, 100):
            for ranking in built.search(clustered(5, seed=5), k, marks, allowed):
                assert len(ranking.keys) == len(set(ranking.keys.tolist())) == min(k, len(live))
                assert set(ranking.keys.tolist()) <= live


def test_nodes_that_no_link_leads_to_are_found_when_all_are_asked_for() -> None:
    """Search thousands of equal vectors, which divide an HNSW graph into unconnected pieces."""
    vectors = np.concatenate([np.repeat(clustered(1), 1000, axis=0), clustered(500, seed=8)])
    built = main(Hnsw(), vectors)
    (ranking,) = built.search(vectors[:1], 1500, Marks(1500))
    assert sorted(ranking.keys.tolist()) == list(range(1, 1501))


@every_kind
def test_memory_is_foreseen_and_grows(kind: Kind) -> None:
    assert kind.memory(1_000_000, 384) >= kind.memory(100_000, 384) >= 0
    assert Ivf("pq").memory(10**6, 384) < Ivf("sq8").memory(10**6, 384) < Ivf("flat").memory(10**6, 384)


@pytest.mark.parametrize("codes", ["flat", "sq8", "pq"])
def test_ivf_needs_enough_to_train_on(codes: str) -> None:
    kind = KINDS[f"ivf-{codes}"]
    with pytest.raises(BuildError, match="100 vectors are too few"):
        kind.build(clustered(100), kind.parameters(100, 16), lambda: None)


@pytest.mark.parametrize("dim", [1, 3, 7, 48])
def test_pq_splits_any_width(dim: int) -> None:
    parameters = Ivf("pq").parameters(10_000, dim)
    assert dim % parameters["m"] == 0


@pytest.mark.parametrize("name", ["hnsw", "ivf-flat", "ivf-sq8", "ivf-pq"])
def test_a_build_stops_when_told(name: str, vectors: Floats) -> None:
    def stop() -> None:
        raise CancelledError

    with pytest.raises(CancelledError):
        KINDS[name].build(vectors, KINDS[name].parameters(*vectors.shape), stop)
