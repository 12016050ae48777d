"""HNSW: a graph of neighbours in layers, walked from the top (Malkov and Yashunin, 2018)."""

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
"""Beyond this effort (`efSearch`) a walk costs as much as reading everything, or nearly."""


class Hnsw:
    """The graph alone is kept; its distances come from the mapped vectors."""

    name = "hnsw"
    knob: str | None = "efSearch"
    refined = 1

    def parameters(self, count: int, dim: int) -> Parameters:  # noqa: ARG002
        """FAISS's M and efConstruction."""
        return {"M": LINKS, "efConstruction": WIDTH}

    def memory(self, count: int, dim: int) -> int:
        """The graph, and a copy of the vectors, which FAISS wants of its own while it builds."""
        return count * (4 * dim + 4 * 2 * LINKS + 16)

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """Vectors in the order of their rows; one thread gives the same graph every time."""
        index = faiss.IndexHNSWFlat(vectors.shape[1], parameters["M"], faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = parameters["efConstruction"]
        return _with(index, vectors, pause)

    def extended(self, index: faiss.Index, vectors: Floats, pause: Pause) -> faiss.Index:
        """A copy of what `build` made, in memory, with further vectors."""
        return _with(faiss.clone_index(index), vectors, pause)

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:
        """See `Kind`."""
        index.add(np.ascontiguousarray(vectors[index.ntotal :]))
        return index

    def write(self, index: faiss.Index, path: str) -> None:
        """The graph."""
        writer = faiss.FileIOWriter(path)
        faiss.write_index(index, writer, faiss.IO_FLAG_SKIP_STORAGE)

    def read(self, path: str, vectors: Floats) -> faiss.Index:
        """The graph, mapped, over the vectors."""
        index = faiss.read_index(path, faiss.IO_FLAG_SKIP_STORAGE | faiss.IO_FLAG_MMAP_IFC)
        storage = flat(vectors)
        storage.this.disown()
        index.storage, index.own_fields = storage, True
        return index

    def efforts(self, parameters: Parameters) -> Sequence[int]:  # noqa: ARG002
        """Of efSearch."""
        return steps(10, MOST)

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        """See `Kind`. What the graph does not reach is not found: -1."""
        parameters = faiss.SearchParametersHNSW(efSearch=max(wanted.effort, wanted.rows))
        _, rows = index.search(queries, wanted.rows, params=limited(parameters, wanted.bitmap))
        return rows  # type: ignore[no-any-return]


def _with(index: faiss.Index, vectors: Floats, pause: Pause) -> faiss.Index:
    for block in blocks(vectors, pause):
        index.add(block)
    return index
