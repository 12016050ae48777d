"""HNSW: a layered graph of neighbours, searched from the top layer (Malkov and Yashunin, 2018)."""

from __future__ import annotations

from collections.abc import Sequence

import faiss
import numpy as np
from numpy.typing import NDArray

from serving.indexes.kind import Candidates, Parameters, Pause, blocks, limited, steps
from serving.indexes.ranking import flat
from serving.ports import Floats

LINKS, WIDTH = 32, 80
MOST = 2_048
"""Effort (`efSearch`) above which a search costs about as much as reading every vector."""


class Hnsw:
    """A kind that stores only the graph. Distances are computed from the mapped vectors."""

    name = "hnsw"
    knob: str | None = "efSearch"
    refined = 1

    def parameters(self, count: int, dim: int) -> Parameters:  # noqa: ARG002
        return {"M": LINKS, "efConstruction": WIDTH}

    def memory(self, count: int, dim: int) -> int:
        """Return the bytes of the graph and of the copy of the vectors that FAISS needs during the build."""
        return count * (4 * dim + 4 * 2 * LINKS + 16)

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """Add vectors in the order of their rows. With one thread, the graph is the same every time."""
        index = faiss.IndexHNSWFlat(vectors.shape[1], parameters["M"], faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = parameters["efConstruction"]
        return _with(index, vectors, pause)

    def extended(self, index: faiss.Index, vectors: Floats, pause: Pause) -> faiss.Index:
        """Return a copy, in memory, of what `build` made, with further vectors added."""
        return _with(faiss.clone_index(index), vectors, pause)

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:
        index.add(np.ascontiguousarray(vectors[index.ntotal :]))
        return index

    def write(self, index: faiss.Index, path: str) -> None:
        """Write the graph without its vectors."""
        writer = faiss.FileIOWriter(path)
        faiss.write_index(index, writer, faiss.IO_FLAG_SKIP_STORAGE)

    def read(self, path: str, vectors: Floats) -> faiss.Index:
        """Map the graph, and attach it to the vectors."""
        index = faiss.read_index(path, faiss.IO_FLAG_SKIP_STORAGE | faiss.IO_FLAG_MMAP_IFC)
        storage = flat(vectors)
        storage.this.disown()
        index.storage, index.own_fields = storage, True
        return index

    def efforts(self, parameters: Parameters) -> Sequence[int]:  # noqa: ARG002
        """Return values of efSearch."""
        return steps(10, MOST)

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        """Search the graph. A row is -1 where the graph reaches too few."""
        parameters = faiss.SearchParametersHNSW(efSearch=max(wanted.effort, wanted.rows))
        _, rows = index.search(queries, wanted.rows, params=limited(parameters, wanted.bitmap))
        return rows  # type: ignore[no-any-return]


def _with(index: faiss.Index, vectors: Floats, pause: Pause) -> faiss.Index:
    for block in blocks(vectors, pause):
        index.add(block)
    return index
