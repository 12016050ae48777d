"""A store of one corpus in a dict, with the `VectorSource` of an index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from models.runtimes.base import Floats
from serving.corpora.values import Keys, Size
from tests.serving.corpora.indexes.vectors import keys as sorted_keys


@dataclass
class DictSource:
    """Source for a `LiveIndex`, and reference for comparisons."""

    dim: int = 16
    held: dict[int, Floats] = field(default_factory=dict)
    graves: set[int] = field(default_factory=set)
    last: int = 0

    def vectors(self, name: str, keys: Sequence[int] | None = None, after: int = 0) -> Iterator[tuple[Keys, Floats]]:
        beyond = [key for key in sorted(self.held) if key > after]
        for start in range(0, len(beyond), 100):
            block = beyond[start : start + 100]
            yield sorted_keys(block), np.stack([self.held[key] for key in block])

    def keys(self, name: str) -> Keys:
        return sorted_keys(set(self.held))

    def tombstones(self, name: str, upto: int) -> Keys:
        return sorted_keys({key for key in self.graves if key <= upto})

    def bury(self, name: str, keys: Keys) -> None:
        self.graves -= set(keys.tolist())

    def last_key(self, name: str) -> int:
        return self.last

    def size(self, name: str) -> Size:
        return Size(len(self.held), 0, len(self.held))

    def put(self, vectors: Floats) -> Keys:
        """Apply a committed write, and return the keys."""
        new = sorted_keys(range(self.last + 1, self.last + 1 + len(vectors)))
        self.held |= dict(zip(new.tolist(), vectors, strict=True))
        self.last += len(vectors)
        return new

    def take(self, gone: Keys) -> None:
        """Apply a committed removal."""
        for key in gone.tolist():
            if self.held.pop(key, None) is not None:
                self.graves.add(key)
