"""Store and index move together: under concurrent writers a search sees every write that returned before it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from serving.corpora import Corpora, Wanted
from serving.errors import NotFound
from serving.filters import compile_filter
from serving.indexes import INDEXES
from serving.ports import Content, Document, Floats
from serving.stores import STORES

DIM = 16


def vector(seed: int) -> Floats:
    drawn = np.random.default_rng(seed).standard_normal((1, DIM)).astype(np.float32)
    unit: Floats = drawn / np.linalg.norm(drawn)
    return unit


def content(name: str, seed: int) -> Content:
    return Content([Document(name, f"text {seed}", {"seed": seed})], vector(seed), "f")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("index", INDEXES)
def test_concurrent_writers(tmp_path: Path, store: str, index: str) -> None:
    corpora = Corpora(STORES[store](tmp_path), INDEXES[index])
    corpora.create("c")

    def write(worker: int) -> None:
        rng = random.Random(worker)
        for step in range(15):
            seed = 1000 * worker + step
            corpora.put("c", content(f"shared {rng.randrange(5)}", seed + 500))
            corpora.put("c", content(f"own {worker} {step % 4}", seed))
            (found,) = corpora.search("c", vector(seed), Wanted(k=1))
            assert found[0].document.text == f"text {seed}"
            assert found[0].score == pytest.approx(1, abs=1e-5)
            if step % 5 == 4:
                corpora.delete("c", f"own {worker} {step % 4}")
                (found,) = corpora.search("c", vector(seed), Wanted(k=1))
                assert found[0].document.text != f"text {seed}"

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(1, 5)))
    live = corpora.search("c", vector(0), Wanted(k=100, with_vector=True))
    corpora._places.clear()
    rebuilt = corpora.search("c", vector(0), Wanted(k=100, with_vector=True))
    assert [(hit.document, hit.score) for hit in live[0]] == [(hit.document, hit.score) for hit in rebuilt[0]]
    for hit in live[0]:
        assert hit.vector is not None
        assert np.array_equal(hit.vector, vector(hit.document.metadata["seed"])[0])
    assert corpora.delete_where("c", compile_filter({"seed": {"$gte": 0}})) == len(live[0])
    assert corpora.search("c", vector(0), Wanted()) == [[]]
    corpora.close()


def test_a_missing_corpus(tmp_path: Path) -> None:
    corpora = Corpora(STORES["memory"](tmp_path), INDEXES["exact"])
    with pytest.raises(NotFound):
        corpora.search("nope", vector(0), Wanted())
    assert not corpora._places
