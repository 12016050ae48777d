"""What a search sees of an index at one moment: a built part, marks of what is left of it, and a tail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from serving.indexes.exact import ExactIndex, Held
from serving.indexes.main import Main, Marks
from serving.indexes.ranking import Rows, merged
from serving.ports import Floats, Keys, Ranking

BLOCK = 16_384
"""Vectors copied at a time."""


class Seen(NamedTuple):
    """Nothing in it ever changes."""

    main: Main
    marks: Marks
    tail: Held

    @property
    def dead(self) -> int:
        """Vectors of the built part that were removed."""
        return len(self.main.keys) - self.marks.count

    @property
    def fresh(self) -> int:
        """Vectors of the tail."""
        return int(np.count_nonzero(self.tail.live))

    def search(self, queries: Floats, k: int, allowed: Keys | None, *, exact: bool, threads: int) -> list[Ranking]:
        """See `LiveIndex.search`."""
        if not self.marks.count:
            return self.tail.search(queries, k, allowed)
        built = self.main.search(queries, k, self.marks, allowed, exact=exact, threads=threads)
        if not len(self.tail.keys):
            return built
        fresh = self.tail.search(queries, k, allowed)
        return [merged(parts, k) for parts in zip(built, fresh, strict=True)]

    def changed(self, removed: Keys, tail: Held) -> Seen:
        """With another tail, and without what was removed."""
        return Seen(self.main, self.marks.without(self.main.rows(np.sort(removed))), tail)

    def copy(self, last: Rows) -> Iterator[tuple[Keys, Floats]]:
        """All that is live, by key, in blocks; those `last` of them, sorted places in this order, at the end."""
        built = np.flatnonzero(self.marks.live)
        built = built[np.argsort(self.main.keys[built])]
        fresh = np.flatnonzero(self.tail.live)
        first = np.setdiff1d(np.arange(len(built) + len(fresh)), last, assume_unique=True)
        for places in (first, last):
            for start in range(0, len(places), BLOCK):
                block = places[start : start + BLOCK]
                split = int(np.searchsorted(block, len(built)))
                main, tail = built[block[:split]], fresh[block[split:] - len(built)]
                yield (
                    np.concatenate([self.main.keys[main], self.tail.keys[tail]]),
                    np.concatenate([self.main.vectors[main], self.tail.vectors[tail]]),
                )

    def after(self, key: int) -> ExactIndex:
        """A tail of what of this tail is live and beyond `key`."""
        chosen = np.flatnonzero(self.tail.live & (self.tail.keys > key))
        tail = ExactIndex(self.tail.vectors.shape[1])
        tail.add(self.tail.keys[chosen], self.tail.vectors[chosen])
        return tail
