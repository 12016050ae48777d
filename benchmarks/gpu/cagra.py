"""CAGRA: a graph of neighbours, built and searched on the device (Ootomo et al., 2023). FAISS needs cuVS for it."""

from __future__ import annotations

from collections.abc import Sequence

import faiss
import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.corpora.indexes.kind import BuildError, Candidates, Parameters, Pause

DEGREE = 64
"""Neighbours of a vector, FAISS's default."""
EFFORTS = tuple(range(32, 545, 32))
"""Values of `itopk_size`, which cuVS rounds up to a multiple of 32."""


class Cagra:
    """A CAGRA index for measurements only. It is not stored in files, and the server does not offer it."""

    name = "gpu-cagra"
    knob: str | None = "itopk_size"
    refined = 1

    def __init__(self) -> None:
        self._resources = faiss.StandardGpuResources()

    def parameters(self, count: int, dim: int) -> Parameters:  # noqa: ARG002 - the same for any number
        """Return the degrees of the graph, before and after pruning."""
        return {"graph_degree": DEGREE, "intermediate_graph_degree": 2 * DEGREE}

    def memory(self, count: int, dim: int) -> int:
        """Return the bytes of the vectors and both graphs, which are all on the device."""
        return count * (4 * dim + 4 * 3 * DEGREE)

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """Build the graph by L2 distance, which orders unit vectors like their inner product."""
        pause()
        config = faiss.GpuIndexCagraConfig()
        config.graph_degree = parameters["graph_degree"]
        config.intermediate_graph_degree = parameters["intermediate_graph_degree"]
        index = faiss.GpuIndexCagra(self._resources, vectors.shape[1], faiss.METRIC_L2, config)
        index.train(np.ascontiguousarray(vectors))
        return index

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:  # noqa: ARG002 - refused
        """Refuse, because the graph can't grow."""
        raise BuildError(f"{self.name} can't take further vectors")

    def write(self, index: faiss.Index, path: str) -> None:  # noqa: ARG002 - refused
        """Refuse, because the graph is only measured."""
        raise BuildError(f"{self.name} is not kept")

    def read(self, path: str, vectors: Floats) -> faiss.Index:  # noqa: ARG002 - refused
        """Refuse, because the graph is not stored."""
        raise BuildError(f"{self.name} is not kept")

    def efforts(self, parameters: Parameters) -> Sequence[int]:  # noqa: ARG002 - the same for any graph
        """Return the sizes of the candidate list."""
        return EFFORTS

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        """Find rows for each query among all vectors, without filters."""
        assert wanted.bitmap is None, "CAGRA is measured without filters"
        parameters = faiss.SearchParametersCagra(itopk_size=max(wanted.effort, wanted.rows))
        _, rows = index.search(queries, wanted.rows, params=parameters)
        return rows  # type: ignore[no-any-return]
