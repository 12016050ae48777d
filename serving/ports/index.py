"""The protocol of a vector index, and its results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats

Keys = NDArray[np.int64]
Blocks = Iterator[tuple[Keys, Floats]]
"""(n,) keys and (n, D) vectors, in order of keys."""


class Ranking(NamedTuple):
    """Hits of one query, best first. Equal scores are ordered oldest first."""

    keys: Keys
    scores: NDArray[np.floating[Any]]
    """float32 for vectors, float64 for words, since float32 would merge distinct scores of words."""


class IndexSize(NamedTuple):
    """Size of an index."""

    vectors: int
    bytes: int


class Index(Protocol):
    """Unit vectors of one dimension by key, searched by inner product.

    One thread at a time may write, which the corpus ensures; any number may search concurrently. A search sees each
    write completely or not at all.
    """

    def __len__(self) -> int:
        """Return the number of vectors."""

    @property
    def nbytes(self) -> int:
        """Memory in bytes, including spare capacity."""

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Add (N, D) vectors with N keys, each greater than all keys it ever had."""

    def remove(self, keys: Keys) -> None:
        """Remove the `keys` that the index has."""

    def search(self, queries: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        """Return up to `k` best hits for each row of (Q, D) `queries`, among the sorted `allowed` keys if given."""
