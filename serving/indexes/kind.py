"""What an approximate index must do for `Main` to search it; FAISS numbers the vectors by their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from serving.ports import Floats

Parameters = Mapping[str, int]
"""What a kind is built with, by the names that the literature has for it."""
BLOCK = 8_192
"""Vectors added at a time: between them a build can be cancelled."""


class BuildError(RuntimeError):
    """This kind can't be built from these vectors, or not here; the message says why."""


class CancelledError(Exception):
    """The build was told to stop; nothing of it is kept."""


Pause = Callable[[], None]
"""Called every now and then while an index is built; raises `CancelledError` to stop it."""


class Candidates(NamedTuple):
    """What an index is asked for."""

    rows: int
    """For each query."""
    effort: int
    bitmap: NDArray[np.uint8] | None
    """A bit for each row, the lowest of a byte first: rows that may be found; None: every one."""


class Kind(Protocol):
    """A way to find most of the nearest vectors at a fraction of the cost."""

    name: str
    knob: str | None
    """What makes a search better and dearer, its effort; None if it is exact."""
    refined: int
    """Candidates for each hit wanted, which are then scored with the vectors themselves."""

    def parameters(self, count: int, dim: int) -> Parameters:
        """For `count` vectors."""

    def memory(self, count: int, dim: int) -> int:
        """Bytes that building it needs at once, the mapped vectors not counted."""

    def build(self, vectors: Floats, parameters: Parameters, pause: Pause) -> faiss.Index:
        """Over (N, D) unit vectors, on the threads that this thread gives OpenMP."""

    def complete(self, index: faiss.Index, vectors: Floats) -> faiss.Index:
        """With those of `vectors` too that come after what it was built from."""

    def write(self, index: faiss.Index, path: str) -> None:
        """Keep what can't be had from the vectors."""

    def read(self, path: str, vectors: Floats) -> faiss.Index:
        """What `write` wrote, beside the same vectors, which must outlive it."""

    def efforts(self, parameters: Parameters) -> Sequence[int]:
        """What the effort may be, ascending, as long as it is cheaper than exact search."""

    def search(self, index: faiss.Index, queries: Floats, wanted: Candidates) -> NDArray[np.int64]:
        """(Q, count) rows of candidates, -1 where there are no more."""


def blocks(vectors: Floats, pause: Pause) -> Iterator[Floats]:
    """`vectors` in order, some at a time."""
    for start in range(0, len(vectors), BLOCK):
        pause()
        yield np.ascontiguousarray(vectors[start : start + BLOCK])


def steps(first: int, last: int) -> list[int]:
    """From `first` to `last`, each about a fifth more than the one before."""
    found = [first]
    while found[-1] < last:
        found.append(min(last, max(found[-1] + 1, round(found[-1] * 1.2))))
    return found


def limited(parameters: faiss.SearchParameters, bitmap: NDArray[np.uint8] | None) -> faiss.SearchParameters:
    """`parameters`, kept to the rows of `bitmap`, if there is one."""
    if bitmap is not None:
        parameters.sel = faiss.IDSelectorBitmap(bitmap)
    return parameters
