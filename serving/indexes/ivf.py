"""IVF: lists of vectors by their nearest centroid. A search reads the lists of the centroids nearest to the query.

The lists contain the vectors in full, with 8 bits per component (SQ8), or as product codes (PQ; Jégou et al., 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from serving.indexes.kind import BuildError, Candidates, Parameters, Pause, blocks, limited, steps
from serving.ports import Floats

Codes = Literal["flat", "sq8", "pq"]
ROUNDS = 10
"""Iterations of k-means."""
POINTS = 64
"""Training vectors per centroid. FAISS's default of 256 takes four times as long for the same recall."""
PQ_POINTS = 16_384
LEAST = 1_024
"""Minimum number of vectors. Below it, IVF gains nothing and has too little to train on."""


class Ivf:
    """An inverted file, trained on a sample of its vectors."""

    knob: str | None = "nprobe"

    def __init__(self, codes: Codes) -> None:
        self.name = f"ivf-{codes}"
        self.refined = {"flat": 1, "sq8": 2, "pq": 8}[codes]
        self._codes = codes

    def parameters(self, count: int, dim: int) -> Parameters:
        """Return 4√N lists and, for PQ, the bytes per code.

        A code has an eighth of the dimension, at least 8 bytes, rounded down to a divisor of the dimension.
        """
        lists = {"nlist": max(1, min(int(4 * count**0.5), count // 39))}
        if self._codes != "pq":
            return lists
        return lists | {"m": next(m for m in range(min(dim, max(8, dim // 8)), 0, -1) if dim % m == 0)}

    def memory(self, count: int, dim: int) -> int:
        """Return the bytes of codes and rows in growing lists, and of the training sample."""
        parameters = self.parameters(count, dim)
        code = {"flat": 4 * dim, "sq8": dim, "pq": parameters.get("m", 0)}[self._codes]
        return int(1.5 * count * (code + 8)) + 4 * dim * min(count, POINTS * parameters["nlist"])

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """Train centroids by spherical k-means and add all vectors. A fixed seed makes centroids reproducible."""
        if len(vectors) < LEAST:
            raise BuildError(f"{len(vectors)} vectors are too few for {self.name}, which needs {LEAST}")
        index = self._empty(vectors.shape[1], parameters)
        sample = _sample(vectors, POINTS * parameters["nlist"])
        _train_centres(index.quantizer, sample, parameters["nlist"], pause)
        index.train(sample[:PQ_POINTS])
        for block in blocks(vectors, pause):
            index.add(block)
        return index

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:
        index.add(np.ascontiguousarray(vectors[index.ntotal :]))
        return index

    def write(self, index: faiss.Index, path: str) -> None:
        faiss.write_index(index, path)

    def read(self, path: str, vectors: Floats) -> faiss.Index:  # noqa: ARG002
        """Map the index. Its lists stay in the file."""
        return faiss.read_index(path, faiss.IO_FLAG_MMAP)

    def efforts(self, parameters: Parameters) -> Sequence[int]:
        """Return values of nprobe, up to a quarter of the lists."""
        return steps(1, max(1, parameters["nlist"] // 4))

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        parameters = faiss.SearchParametersIVF(nprobe=wanted.effort)
        _, rows = index.search(queries, wanted.rows, params=limited(parameters, wanted.bitmap))
        return rows  # type: ignore[no-any-return]

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


def _sample(vectors: Floats, most: int) -> Floats:
    rows = np.random.default_rng(0).permutation(len(vectors))[:most]
    return np.ascontiguousarray(vectors[np.sort(rows)])[np.argsort(rows)]


def _train_centres(centres: faiss.IndexFlatIP, sample: Floats, count: int, pause: Pause) -> None:
    settings = faiss.ClusteringParameters()
    settings.niter, settings.spherical = 1, True
    settings.min_points_per_centroid, settings.max_points_per_centroid = 1, POINTS
    clustering = faiss.Clustering(sample.shape[1], count, settings)
    for _ in range(ROUNDS):  # each round starts from the centres of the previous one
        pause()
        centres.reset()
        clustering.train(sample, centres)
