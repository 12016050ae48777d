"""FAISS flat index: exact search over every vector in FAISS's own loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from serving.indexes.kind import Candidates, Parameters, Pause, limited
from serving.indexes.ranking import flat
from serving.ports import Floats


class Flat:
    """A kind that builds and stores nothing. It reads the mapped vectors."""

    name = "flat"
    knob: str | None = None
    refined = 2
    """Extra candidates per hit. FAISS breaks ties arbitrarily, so extra ones make it likelier that the oldest are
    included."""

    def parameters(self, count: int, dim: int) -> Parameters:  # noqa: ARG002
        return {}

    def memory(self, count: int, dim: int) -> int:  # noqa: ARG002
        return 0

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:  # noqa: ARG002
        return flat(vectors)

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:  # noqa: ARG002
        return flat(vectors)

    def write(self, index: faiss.Index, path: str) -> None:  # noqa: ARG002
        """Write an empty file, because the vectors have their own."""
        Path(path).touch()

    def read(self, path: str, vectors: Floats) -> faiss.Index:  # noqa: ARG002
        return flat(vectors)

    def efforts(self, parameters: Parameters) -> Sequence[int]:  # noqa: ARG002
        return [1]

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        parameters = limited(faiss.SearchParameters(), wanted.bitmap)
        _, rows = index.search(queries, wanted.rows, params=parameters)
        return rows  # type: ignore[no-any-return]
