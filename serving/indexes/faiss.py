"""FAISS, flat: the same answers as `exact`, from the library that the approximate indexes come from."""

from __future__ import annotations

import threading
from typing import ClassVar

import faiss
import numpy as np

from serving.indexes.ranking import best, rounded
from serving.ports import Floats, Keys, Ranking


class FaissIndex:
    """Inner product over an id map. FAISS may not write while it searches, hence the lock."""

    recall: ClassVar[float] = 1.0

    def __init__(self, dim: int) -> None:
        self._lock = threading.Lock()
        self._index = faiss.IndexIDMap2(faiss.IndexFlatIP(dim))

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def nbytes(self) -> int:
        """Float32 vectors and their keys."""
        return len(self) * (4 * int(self._index.d) + 8)

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Append."""
        with self._lock:
            self._index.add_with_ids(np.ascontiguousarray(vectors, dtype=np.float32), keys)

    def remove(self, keys: Keys) -> None:
        """One pass over the index, whatever the number of keys."""
        if len(keys):
            with self._lock:
                self._index.remove_ids(faiss.IDSelectorBatch(keys))

    def search(self, queries: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        """See `Index`. Asks for more where the k-th score ties with what was cut off behind it."""
        selector = None if allowed is None else faiss.IDSelectorBatch(allowed)
        with self._lock:
            return [self._one(query[None], k, selector) for query in queries]

    def _one(self, query: Floats, k: int, selector: faiss.IDSelector | None) -> Ranking:
        parameters = None
        if selector is not None:
            parameters = faiss.SearchParameters()
            parameters.sel = selector
        asked = min(k + 1, len(self))
        while asked:
            scores, keys = self._index.search(np.ascontiguousarray(query), asked, params=parameters)
            found = keys[0] >= 0
            ranked = rounded(scores[0][found])
            whole = asked == len(self) or not found.all()
            if whole or ranked[-1] < ranked[k - 1]:
                return best(keys[0][found], ranked, k)
            asked = min(2 * asked, len(self))
        return Ranking(np.empty(0, np.int64), np.empty(0, np.float32))
