"""Interface of the kinds of approximate indexes. A search returns the row numbers of the nearest vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats

Parameters = Mapping[str, int]
"""Parameters for building a kind. Their names come from the literature."""


class BuildError(RuntimeError):
    """A kind of index can't be built from these vectors or on this machine. The message gives the reason."""


class CancelledError(Exception):
    """The build was cancelled. Its files are deleted."""


Pause = Callable[[], None]
"""Function that a build calls often. It raises `CancelledError` to cancel the build."""


class Candidates(NamedTuple):
    """Effort of a search, number of candidates per query, and rows that the search may return."""

    rows: int
    """Number of candidates per query."""
    effort: int
    """Value of the search parameter that increases recall at a higher cost (see `Kind.knob`)."""
    bitmap: NDArray[np.uint8] | None
    """Bitmap of the rows that the search may return, with the lowest bit of a byte first. None means all rows."""


class Kind(Protocol):
    """A kind of index, with the methods that build, write, read and search indexes of this kind."""

    name: str
    knob: str | None
    """Name of the search parameter that increases recall at a higher cost (the effort). None for an exact kind."""
    refined: int
    """Number of candidates per hit. The exact scores of the candidates are computed from the vectors."""

    def parameters(self, count: int, dim: int) -> Parameters:
        """Return the build parameters, by name, for `count` vectors."""

    def memory(self, count: int, dim: int) -> int:
        """Return the peak bytes of memory of a build of `count` vectors, without the memory-mapped vectors."""

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """Build an index over (N, D) unit vectors. The caller sets the number of OpenMP threads."""

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:
        """Complete an index of the first rows of `vectors` by adding the remaining rows. Return the complete index."""

    def write(self, index: faiss.Index, path: str) -> None:
        """Write those parts of the index that can't be computed from the vectors."""

    def read(self, path: str, vectors: Floats) -> faiss.Index:
        """Read an index that `write` has written.

        `vectors` must be the vectors of this index, and must outlive the index.
        """

    def efforts(self, parameters: Parameters) -> Sequence[int]:
        """Return the efforts that a measurement tries, in ascending order.

        An effort is a value of the search parameter `knob`. A search with any of these efforts must be cheaper than
        exact search.
        """

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        """Return the rows (Q, number of candidates) of the nearest vectors. Missing candidates are -1."""


def steps(first: int, last: int) -> list[int]:
    """Return increasing numbers from `first` to `last`, in steps of about 20 %."""
    found = [first]
    while found[-1] < last:
        found.append(min(last, max(found[-1] + 1, round(found[-1] * 1.2))))
    return found
