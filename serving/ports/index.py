"""What an index must do, and the vectors that it finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from models.runtimes import base

Floats = base.Floats
Keys = NDArray[np.int64]
Blocks = Iterator[tuple[Keys, Floats]]
"""(n,) keys and (n, D) vectors, in order of keys."""


class Ranking(NamedTuple):
    """The hits of one query, best first; equal scores are ordered oldest first."""

    keys: Keys
    scores: NDArray[np.floating[Any]]
    """Of vectors float32; of words float64: float32 has one number for scores that are told apart."""


class IndexSize(NamedTuple):
    """How much an index holds."""

    vectors: int
    bytes: int


class Index(Protocol):
    """Unit vectors of one width by key, searched by inner product.

    Written by one thread at a time, which its corpus sees to; searched by any number beside it. A search sees all or
    nothing of each write.
    """

    def __len__(self) -> int:
        """Vectors held."""

    @property
    def nbytes(self) -> int:
        """Memory it takes, room for more included."""

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Add (N, D) vectors under N keys, each greater than all it ever held."""

    def remove(self, keys: Keys) -> None:
        """Remove those of `keys` that the index holds."""

    def search(self, queries: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        """For each row of (Q, D) `queries` the best `k`, or all there are, among the sorted `allowed` keys if given."""
