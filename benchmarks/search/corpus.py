"""Our vector search: a corpus of given vectors in its own store, searched as the server does it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from benchmarks.search.mixture import Vectors
from models import cpus
from serving.corpora.corpora import Corpora
from serving.corpora.open_corpus import Indexes
from serving.corpora.search import Query, SearchOptions
from serving.corpora.stores.sqlite import SqliteStore
from serving.corpora.values import Content, Corpus, Document

NAME = "c"
K = 10
BLOCK = 2048


class Ours:
    """A corpus whose document ids are row numbers. Texts are short, because only the search is measured."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.corpora = self._open()

    def add(self, vectors: Vectors) -> None:
        """Store all vectors in uploads of `BLOCK` vectors. Each upload is committed before the next."""
        self.corpora.create(Corpus(NAME))
        for start in range(0, len(vectors), BLOCK):
            rows = range(start, min(start + BLOCK, len(vectors)))
            documents = [Document(str(row), f"document {row}", {"even": row % 2 == 0, "n": row % 200}) for row in rows]
            self.corpora.put(NAME, Content(documents, np.asarray(vectors[rows.start : rows.stop]), "f"))

    def build(self) -> dict[str, Any]:
        """Build the index, and return its description as in the answer to `GET /corpora/c`."""
        report = self.corpora.build_now(NAME)
        assert report is not None, "it contains documents"
        return asdict(report)

    def opened(self) -> float:
        """Return the seconds from opening the closed store to the first hit."""
        began = time.perf_counter()
        self.corpora = self._open()
        self.corpora.warm()
        self.search(np.eye(1, self.corpora.corpus(NAME)[0].dim, dtype=np.float32))
        return time.perf_counter() - began

    def search(self, queries: Vectors, **wanted: Any) -> list[list[int]]:
        """Return the rows of the best documents for each query."""
        asked = [Query(None, query) for query in queries]
        found = self.corpora.search(NAME, asked, SearchOptions(k=K, **wanted))
        return [[int(hit.passage.document.id) for hit in hits] for hits in found.hits]

    def bytes(self) -> dict[str, int]:
        """Return the bytes on disk of each part of the corpus."""
        parts = {"store": self.folder / "corpora", "index": self.folder / "indexes"}
        return {
            name: sum(file.stat().st_size for file in part.rglob("*") if file.is_file()) for name, part in parts.items()
        }

    def _open(self) -> Corpora:
        indexes = Indexes(self.folder / "indexes", threads=cpus.available())
        return Corpora(SqliteStore(self.folder / "corpora"), indexes)


class Raw:
    """The index of `Ours`, loaded into memory and searched by FAISS alone."""

    def __init__(self, folder: Path, report: dict[str, Any]) -> None:
        (file,) = (folder / "indexes").rglob("index.faiss")
        self._keys = np.load(file.with_name("keys.npy"))
        self._index = faiss.read_index(str(file), faiss.IO_FLAG_SKIP_STORAGE)
        if report["kind"] == "hnsw":  # The file contains only the graph.
            vectors = np.fromfile(file.with_name("vectors.f32"), np.float32).reshape(len(self._keys), -1)
            self._storage = faiss.IndexFlatIP(vectors.shape[1])
            self._storage.add(vectors)
            self._index.storage = self._storage
        parameters = report["parameters"]
        self._parameters: faiss.SearchParameters | None = None
        if "efSearch" in parameters:
            self._parameters = faiss.SearchParametersHNSW()
            self._parameters.efSearch = parameters["efSearch"]
        elif "nprobe" in parameters:
            self._parameters = faiss.SearchParametersIVF()
            self._parameters.nprobe = parameters["nprobe"]

    def search(self, queries: Vectors) -> list[list[int]]:
        """Return the rows of the best documents for each query."""
        _, rows = self._index.search(queries, K, params=self._parameters)
        found: list[list[int]] = (self._keys[rows] - 1).tolist()  # Keys count documents from 1.
        return found


def calls(
    search: Callable[[Vectors], Any], queries: Vectors, at_a_time: int, threads: int, *, seconds: float
) -> dict[str, Any]:
    """Make calls on several threads until the time is up. Return the measurements."""
    parts: Iterator[Vectors] = cycle([queries[i : i + at_a_time] for i in range(0, len(queries), at_a_time)])
    latencies: list[float] = []
    began = time.perf_counter()

    def caller(_: int) -> int:
        faiss.omp_set_num_threads(max(1, faiss.omp_get_max_threads() // threads))
        done = 0
        while (started := time.perf_counter()) - began < seconds:
            part = next(parts)
            search(part)
            done += len(part)
            latencies.append(time.perf_counter() - started)
        return done

    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(caller, range(threads)))
    return {"seconds": time.perf_counter() - began, "queries": done, "latencies": latencies}
