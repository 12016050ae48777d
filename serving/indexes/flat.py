"""FAISS flat: every vector, in FAISS's own loop; exact."""

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
    """Nothing is built and nothing kept: it reads the mapped vectors."""

    name = "flat"
    knob: str | None = None
    refined = 2
    """Of equal scores FAISS returns any: some more than are wanted, so that the oldest are likelier among them."""

    def parameters(self, count: int, dim: int) -> Parameters:  # noqa: ARG002
        """None."""
        return {}

    def memory(self, count: int, dim: int) -> int:  # noqa: ARG002
        """None."""
        return 0

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:  # noqa: ARG002
        """A view."""
        return flat(vectors)

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:  # noqa: ARG002
        """A longer view."""
        return flat(vectors)

    def write(self, index: faiss.Index, path: str) -> None:  # noqa: ARG002
        """An empty file: the vectors are beside it."""
        Path(path).touch()

    def read(self, path: str, vectors: Floats) -> faiss.Index:  # noqa: ARG002
        """A view."""
        return flat(vectors)

    def efforts(self, parameters: Parameters) -> Sequence[int]:  # noqa: ARG002
        """One, as there is no choice."""
        return [1]

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        """See `Kind`."""
        parameters = limited(faiss.SearchParameters(), wanted.bitmap)
        _, rows = index.search(queries, wanted.rows, params=parameters)
        return rows  # type: ignore[no-any-return]
