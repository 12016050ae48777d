"""IVF: vectors in lists by the nearest of some centres; a search reads the lists of the centres nearest to it.

In the lists they are whole, in 8 bits a number (SQ8), or in product codes (PQ; Jégou et al., 2011).
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
"""Of k-means."""
POINTS = 64
"""Of its training for each centre; FAISS would take 256, for four times the time and the same recall."""
PQ_POINTS = 16_384
LEAST = 1_024
"""Vectors, below which there is nothing to gain and too little to train on."""


class Ivf:
    """Trained on a sample of the vectors it holds."""

    knob: str | None = "nprobe"

    def __init__(self, codes: Codes) -> None:
        self.name = f"ivf-{codes}"
        self.refined = {"flat": 1, "sq8": 2, "pq": 8}[codes]
        self._codes = codes

    def parameters(self, count: int, dim: int) -> Parameters:
        """4√N lists, and for PQ the bytes of a code: an eighth of the width, or 8, as far as it divides."""
        lists = {"nlist": max(1, min(int(4 * count**0.5), count // 39))}
        if self._codes != "pq":
            return lists
        return lists | {"m": next(m for m in range(min(dim, max(8, dim // 8)), 0, -1) if dim % m == 0)}

    def memory(self, count: int, dim: int) -> int:
        """Codes and rows in lists that grow, and the sample that it is trained on."""
        parameters = self.parameters(count, dim)
        code = {"flat": 4 * dim, "sq8": dim, "pq": parameters.get("m", 0)}[self._codes]
        return int(1.5 * count * (code + 8)) + 4 * dim * min(count, POINTS * parameters["nlist"])

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """Centres by spherical k-means from a seed of its own: the same every time."""
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
        """See `Kind`."""
        index.add(np.ascontiguousarray(vectors[index.ntotal :]))
        return index

    def write(self, index: faiss.Index, path: str) -> None:
        """All of it."""
        faiss.write_index(index, path)

    def read(self, path: str, vectors: Floats) -> faiss.Index:  # noqa: ARG002
        """The lists stay in the file, mapped."""
        return faiss.read_index(path, faiss.IO_FLAG_MMAP)

    def efforts(self, parameters: Parameters) -> Sequence[int]:
        """Of nprobe, up to a quarter of the lists."""
        return steps(1, max(1, parameters["nlist"] // 4))

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        """See `Kind`."""
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
    for _ in range(ROUNDS):  # each from the centres of the one before
        pause()
        centres.reset()
        clustering.train(sample, centres)
