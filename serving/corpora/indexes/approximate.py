"""Kinds of indexes that FAISS builds on the CPU: flat, HNSW and IVF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.corpora.indexes.exact import flat
from serving.corpora.indexes.kind import BuildError, Candidates, Parameters, Pause, steps

LINKS, WIDTH = 32, 80
MOST = 2_048
"""Maximum effort (`efSearch`). With more effort, a search costs about as much as comparing all vectors."""
BLOCK = 8_192
"""Number of vectors that are added in one step. A build can be cancelled between two steps."""
Codes = Literal["flat", "sq8", "pq"]
ROUNDS = 10
"""Number of iterations of k-means."""
POINTS = 64
"""Number of training vectors per centroid. FAISS's default of 256 takes four times as long and gives the same
recall."""
PQ_POINTS = 16_384
LEAST = 1_024
"""Minimum number of vectors for an IVF index. With fewer vectors, IVF is not faster than exact search, and the training
has too little data."""


class _OnCpu:
    """Methods that all kinds of CPU indexes share."""

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:
        index.add(np.ascontiguousarray(vectors[index.ntotal :]))
        return index

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        """Return the row numbers (Q, number of candidates) of the nearest vectors.

        If the search reaches too few vectors for a query, the remaining row numbers of this query are -1.
        """
        parameters = self._search_parameters(wanted)
        if wanted.bitmap is not None:
            parameters.sel = faiss.IDSelectorBitmap(wanted.bitmap)
        _, rows = index.search(queries, wanted.rows, params=parameters)
        return rows  # type: ignore[no-any-return]

    def _search_parameters(self, wanted: Candidates) -> faiss.SearchParameters:  # noqa: ARG002
        return faiss.SearchParameters()


class Flat(_OnCpu):
    """Brute-force search by FAISS. The index stores nothing, because it searches the memory-mapped vectors."""

    name = "flat"
    knob: str | None = None
    refined = 2
    """Number of candidates per hit. FAISS orders equal scores arbitrarily. With additional candidates, the oldest of
    equal vectors are more likely to be found."""

    def parameters(self, count: int, dim: int) -> Parameters:  # noqa: ARG002
        return {}

    def memory(self, count: int, dim: int) -> int:  # noqa: ARG002
        return 0

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:  # noqa: ARG002
        return flat(vectors)

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:  # noqa: ARG002
        return flat(vectors)

    def write(self, index: faiss.Index, path: str) -> None:  # noqa: ARG002
        """Write an empty file, because the vectors are stored in another file."""
        Path(path).touch()

    def read(self, path: str, vectors: Floats) -> faiss.Index:  # noqa: ARG002
        return flat(vectors)

    def efforts(self, parameters: Parameters) -> Sequence[int]:  # noqa: ARG002
        return [1]


class Hnsw(_OnCpu):
    """A layered graph of neighbours, which is searched from the top layer (Malkov and Yashunin, 2018).

    The index stores only the graph. Distances are computed from the memory-mapped vectors.
    """

    name = "hnsw"
    knob: str | None = "efSearch"
    refined = 1

    def parameters(self, count: int, dim: int) -> Parameters:  # noqa: ARG002
        return {"M": LINKS, "efConstruction": WIDTH}

    def memory(self, count: int, dim: int) -> int:
        """Return the bytes that a build needs for the graph and for FAISS's copy of the vectors together."""
        return count * (4 * dim + 4 * 2 * LINKS + 16)

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """Build the graph by adding the vectors in the order of their rows.

        The graph is deterministic, because the caller sets a single thread.
        """
        index = faiss.IndexHNSWFlat(vectors.shape[1], parameters["M"], faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = parameters["efConstruction"]
        return _with(index, vectors, pause)

    def extended(self, index: faiss.Index, vectors: Floats, pause: Pause) -> faiss.Index:
        """Return an in-memory copy of an index from `build`, with `vectors` added. `index` does not change."""
        return _with(faiss.clone_index(index), vectors, pause)

    def write(self, index: faiss.Index, path: str) -> None:
        """Write the graph of `index` to the file at `path`, without the vectors."""
        writer = faiss.FileIOWriter(path)
        faiss.write_index(index, writer, faiss.IO_FLAG_SKIP_STORAGE)

    def read(self, path: str, vectors: Floats) -> faiss.Index:
        """Memory-map the graph in the file `path`, and attach `vectors`, which the file does not contain."""
        index = faiss.read_index(path, faiss.IO_FLAG_SKIP_STORAGE | faiss.IO_FLAG_MMAP_IFC)
        storage = flat(vectors)
        storage.this.disown()
        index.storage, index.own_fields = storage, True
        return index

    def efforts(self, parameters: Parameters) -> Sequence[int]:  # noqa: ARG002
        return steps(10, MOST)

    def _search_parameters(self, wanted: Candidates) -> faiss.SearchParameters:
        return faiss.SearchParametersHNSW(efSearch=max(wanted.effort, wanted.rows))


def _with(index: faiss.Index, vectors: Floats, pause: Pause) -> faiss.Index:
    for start in range(0, len(vectors), BLOCK):
        pause()
        index.add(np.ascontiguousarray(vectors[start : start + BLOCK]))
    return index


class Ivf(_OnCpu):
    """An inverted file: lists of vectors by their nearest centroid.

    The centroids are trained on a sample of the vectors.

    A search reads the lists of the centroids that are nearest to the query. The lists contain float32 vectors, 8 bits
    per component (SQ8), or product codes (PQ; Jégou et al., 2011).
    """

    knob: str | None = "nprobe"

    def __init__(self, codes: Codes) -> None:
        self.name = f"ivf-{codes}"
        self.refined = {"flat": 1, "sq8": 2, "pq": 8}[codes]
        self._codes = codes

    def parameters(self, count: int, dim: int) -> Parameters:
        """Return the number of lists (`nlist`) and, for PQ, the bytes per code (`m`).

        There are 4√N lists for N vectors, but at most N/39. A code has one byte for every eight dimensions, or 8 bytes
        if that is more. The number of bytes is then rounded down to a divisor of the dimension, so it can be below 8.
        """
        lists = {"nlist": max(1, min(int(4 * count**0.5), count // 39))}
        if self._codes != "pq":
            return lists
        return lists | {"m": next(m for m in range(min(dim, max(8, dim // 8)), 0, -1) if dim % m == 0)}

    def memory(self, count: int, dim: int) -> int:
        """Return the peak bytes of a build: the growing lists of codes and row numbers, and the training sample."""
        parameters = self.parameters(count, dim)
        code = {"flat": 4 * dim, "sq8": dim, "pq": parameters.get("m", 0)}[self._codes]
        return int(1.5 * count * (code + 8)) + 4 * dim * min(count, POINTS * parameters["nlist"])

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """Train the centroids by spherical k-means with a fixed seed, and add all vectors.

        Raises:
            BuildError: there are fewer than `LEAST` vectors.
        """
        if len(vectors) < LEAST:
            raise BuildError(f"{len(vectors)} vectors are too few for {self.name}, which needs {LEAST}")
        index = self._empty(vectors.shape[1], parameters)
        drawn = np.random.default_rng(0).permutation(len(vectors))[: POINTS * parameters["nlist"]]
        sample = np.ascontiguousarray(vectors[np.sort(drawn)])[np.argsort(drawn)]
        _train_centres(index.quantizer, sample, parameters["nlist"], pause)
        index.train(sample[:PQ_POINTS])
        return _with(index, vectors, pause)

    def write(self, index: faiss.Index, path: str) -> None:
        faiss.write_index(index, path)

    def read(self, path: str, vectors: Floats) -> faiss.Index:  # noqa: ARG002
        return faiss.read_index(path, faiss.IO_FLAG_MMAP)

    def efforts(self, parameters: Parameters) -> Sequence[int]:
        """Return the values of `nprobe` to try, up to a quarter of the number of lists."""
        return steps(1, max(1, parameters["nlist"] // 4))

    def _search_parameters(self, wanted: Candidates) -> faiss.SearchParameters:
        return faiss.SearchParametersIVF(nprobe=wanted.effort)

    def _empty(self, dim: int, parameters: Parameters) -> faiss.IndexIVF:
        centres, lists, metric = faiss.IndexFlatIP(dim), parameters["nlist"], faiss.METRIC_INNER_PRODUCT
        match self._codes:
            case "flat":
                index = faiss.IndexIVFFlat(centres, dim, lists, metric)
            case "sq8":
                index = faiss.IndexIVFScalarQuantizer(centres, dim, lists, faiss.ScalarQuantizer.QT_8bit, metric)
            case "pq":
                index = faiss.IndexIVFPQ(centres, dim, lists, parameters["m"], 8, metric)
                index.pq.cp.niter = ROUNDS
        centres.this.disown()
        index.own_fields = True
        return index


def _train_centres(centres: faiss.IndexFlatIP, sample: Floats, count: int, pause: Pause) -> None:
    settings = faiss.ClusteringParameters()
    settings.niter, settings.spherical = 1, True
    settings.min_points_per_centroid, settings.max_points_per_centroid = 1, POINTS
    clustering = faiss.Clustering(sample.shape[1], count, settings)
    for _ in range(ROUNDS):  # each round continues with the centres of the previous round
        pause()
        centres.reset()
        clustering.train(sample, centres)
