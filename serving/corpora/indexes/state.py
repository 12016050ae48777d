"""The immutable state of an index that a search sees: built parts, marks of their live rows, and a tail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple, cast

import numpy as np

from models.runtimes.base import Floats
from serving.corpora.indexes.built import Main, Marks
from serving.corpora.indexes.exact import ExactIndex, ExactRows, Rows, merged
from serving.corpora.ports import Keys, Ranking

BLOCK = 16_384
"""Vectors copied at a time."""


class Part(NamedTuple):
    """A built part, and marks of its live rows."""

    main: Main
    marks: Marks

    def without(self, keys: Keys) -> Part:
        """Return the part without the sorted `keys`, which were removed."""
        return self._replace(marks=self.marks.without(self.main.rows(keys)))

    def beyond(self, key: int) -> Part:
        """Return the part restricted to keys greater than `key`."""
        return self._replace(marks=self.marks.without(np.flatnonzero(self.main.keys <= key)))


class IndexState(NamedTuple):
    """State of an index at one moment. Nothing in it ever changes."""

    parts: tuple[Part, ...]
    """The main part, then the graphs that grow beside it (`growing.py`), whose keys are greater."""
    tail: ExactRows

    @property
    def main(self) -> Main:
        """The first part, the only one with files."""
        return self.parts[0].main

    @property
    def foremost(self) -> Main:
        """The first part that contains anything."""
        return next((part.main for part in self.parts if len(part.main.keys)), self.main)

    @property
    def built(self) -> int:
        """Vectors of all parts, including removed ones."""
        return sum(len(part.main.keys) for part in self.parts)

    @property
    def dead(self) -> int:
        """Removed vectors of the parts."""
        return sum(len(part.main.keys) - part.marks.count for part in self.parts)

    @property
    def tail_count(self) -> int:
        """Vectors of the tail."""
        return int(np.count_nonzero(self.tail.live))

    @property
    def fresh(self) -> int:
        """Vectors that are not in the main part."""
        return sum(part.marks.count for part in self.parts[1:]) + self.tail_count

    @property
    def held(self) -> int:
        """Vectors that may be found."""
        return self.parts[0].marks.count + self.fresh

    @property
    def last_grown(self) -> int:
        """The greatest key of the growing parts; 0 if there is none."""
        return max((int(part.main.keys[-1]) for part in self.parts[1:]), default=0)

    @property
    def last(self) -> int:
        """The greatest key of the growing parts and the tail."""
        return max(self.last_grown, int(self.tail.keys[-1]) if len(self.tail.keys) else 0)

    def search(self, queries: Floats, k: int, allowed: Keys | None, *, exact: bool, threads: int) -> list[Ranking]:
        found = [
            main.search(queries, k, marks, allowed, exact=exact, threads=threads)
            for main, marks in self.parts
            if marks.count
        ]
        if len(self.tail.keys) or not found:
            found.append(self.tail.search(queries, k, allowed))
        return found[0] if len(found) == 1 else [merged(rankings, k) for rankings in zip(*found, strict=True)]

    def changed(self, removed: Keys, tail: ExactRows) -> IndexState:
        """Return the state with another tail and without the `removed` keys."""
        removed = np.sort(removed)
        return IndexState(tuple(part.without(removed) for part in self.parts), tail)

    def grown(self, before: Main | None, main: Main, tail: ExactRows) -> IndexState:
        """Return the state with `main` in place of `before`, if that still exists, and with the shorter `tail`.

        Rows of `main` that the old tail contained stay live if they were live there.
        """
        held = self.tail.keys[self.tail.live]
        old = next((part.marks.live for part in self.parts if part.main is before), np.empty(0, np.bool_))
        live = np.isin(main.keys, held, assume_unique=True)
        live[: len(old)] = old
        grown = Part(main, Marks(len(live), live=live))
        others = tuple(part for part in self.parts if part.main is not before)
        return IndexState((*others, grown) if grown.marks.count else others, tail)

    def rebuilt(self, main: Main, covered: int, tail: ExactRows) -> IndexState:
        """Return the state with a new main part, which contains everything up to the key `covered`."""
        beside = (part.beyond(covered) for part in self.parts[1:])
        return IndexState((Part(main, Marks(len(main.keys))), *(part for part in beside if part.marks.count)), tail)

    def copy(self, last: Rows) -> Iterator[tuple[Keys, Floats]]:
        """Yield all live vectors in blocks, by key. Those at the sorted places `last` in this order come at the end."""
        sources = [(main.keys, main.vectors, _by_key(main.keys, marks.live)) for main, marks in self.parts]
        sources.append((self.tail.keys, self.tail.vectors, np.flatnonzero(self.tail.live)))
        ends = np.cumsum([0, *(len(rows) for _, _, rows in sources)])
        first = np.setdiff1d(np.arange(ends[-1]), last, assume_unique=True)
        for places in (first, last):
            for start in range(0, len(places), BLOCK):
                block = places[start : start + BLOCK]
                splits = pairwise(np.searchsorted(block, ends).tolist())
                chosen = [
                    rows[block[low:high] - end]
                    for (_, _, rows), end, (low, high) in zip(sources, ends, splits, strict=False)
                ]
                yield (
                    np.concatenate([keys[rows] for (keys, _, _), rows in zip(sources, chosen, strict=True)]),
                    np.concatenate([vectors[rows] for (_, vectors, _), rows in zip(sources, chosen, strict=True)]),
                )

    def after(self, key: int) -> ExactIndex:
        """Return a new tail of the live vectors of this tail beyond `key`."""
        chosen = np.flatnonzero(self.tail.live & (self.tail.keys > key))
        tail = ExactIndex(self.tail.vectors.shape[1])
        tail.add(self.tail.keys[chosen], self.tail.vectors[chosen])
        return tail


def _by_key(keys: Keys, live: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Rows:
    rows = np.flatnonzero(live)
    return rows[np.argsort(keys[rows])]


# The report on an index.


@dataclass(frozen=True, kw_only=True)
class Report:
    """State of the index that serves at this moment."""

    kind: str
    parameters: Mapping[str, int] = field(default_factory=dict)
    """Parameters of the build, and the effort of searches."""
    target: float
    """Requested recall@10."""
    recall: float
    """recall@10 against exact search, measured on `queries`. It is 1.0 for exact search itself."""
    recall_by_filter: Mapping[str, float] = field(default_factory=dict)
    """Recall by the share of the vectors that pass a filter."""
    queries: int = 0
    """Vectors that were held out as queries."""
    build_seconds: float
    bytes: int
    """Bytes in memory and files."""
    main: int
    """Vectors in the built parts, including removed ones."""
    tail: int
    """Vectors added since, which are searched exactly."""
    dead: int
    """Vectors of `main` that were removed."""
    state: Literal["ready", "building"]
    reason: str | None = None
    """The reason why search is exact, if it is."""

    @classmethod
    def of(cls, seen: IndexState, *, target: float, memory: int, building: bool) -> Report:
        """Make the report on `seen`, with the details of its foremost part."""
        main, state = seen.foremost, "building" if building else "ready"
        found = cls(
            kind=main.kind,
            target=target,
            recall=min((part.main.tuning.recalls[1.0] for part in seen.parts if part.main.approximate), default=1.0),
            build_seconds=main.build_seconds,
            bytes=memory + seen.main.bytes,
            main=seen.built,
            tail=seen.tail_count,
            dead=seen.dead,
            state=cast("Literal['ready', 'building']", state),
            reason=main.reason,
        )
        if main.approximate is None:
            return found
        kind, parameters, _ = main.approximate
        tuning = main.tuning
        return replace(
            found,
            parameters=dict(parameters) | ({kind.knob: tuning.efforts[1.0]} if kind.knob else {}),
            recall_by_filter={f"{share:g}": recall for share, recall in tuning.recalls.items() if share < 1},
            queries=tuning.queries,
        )
