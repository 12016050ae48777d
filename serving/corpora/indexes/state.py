"""The immutable state of an index during a search, and the report about the state.

An index has built parts, marks of the rows that are not removed, and a tail of vectors added later. A built part has
vectors and usually an approximate index of them. The first part, the main part, has its vectors in a memory-mapped
file. The other parts are graphs that grow, with vectors in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.corpora.indexes.exact import ExactIndex, ExactRows, Rows, flat, merged, nearest, products, rows_of
from serving.corpora.indexes.kind import Candidates, Kind, Parameters
from serving.corpora.ports import Ranking
from serving.corpora.values import Keys
from serving.operations.threads import check_cancelled

EXACT_ROWS = 5_000
"""Maximum number of matching rows for which a search with a filter is exact. For so few rows, exact search is as fast
as an approximate index."""
MEASURED_K = 10
"""The number k of hits in the recall target and in the measured recall."""
TOGETHER = 256
"""Number of queries that are searched between two checks for cancellation."""
FOR_ONE_THREAD = 4
"""Maximum number of queries that one thread searches. For so few queries, waking other threads costs more time than
it saves."""
BLOCK = 16_384
"""Number of vectors that are copied at a time."""


@dataclass(frozen=True)
class Tuning:
    """Search efforts that reach the recall target, measured on this index.

    An effort is a value of the search parameter that increases recall at a higher cost, such as `efSearch`.
    """

    target: float
    queries: int = 0
    """Number of vectors that were held out as queries."""
    efforts: Mapping[float, int] = field(default_factory=dict)
    """Effort by the share of vectors that match the filter. Shares that need exact search are left out."""
    recalls: Mapping[float, float] = field(default_factory=dict)
    """Measured recall by the share of vectors that match the filter. The recall of exact search is 1.0."""

    def effort(self, share: float) -> int | None:
        """Return the effort for a search whose filter matches this `share` of the vectors.

        The effort is interpolated between the shares in `efforts`, on a logarithmic scale. If `efforts` is empty, or
        `share` is below 90 % of the smallest share in it, return None, which means exact search.
        """
        if share in self.efforts:
            return self.efforts[share]
        shares = sorted(self.efforts)
        if not shares or share < 0.9 * shares[0]:
            return None
        efforts = np.log([self.efforts[one] for one in shares])
        return int(np.ceil(np.exp(np.interp(np.log(share), np.log(shares), efforts)) - 1e-6))


class Approximate(NamedTuple):
    """An approximate index over the vectors of a `Main`, with the kind and parameters of its build."""

    kind: Kind
    parameters: Parameters
    built: faiss.Index


class Marks:
    """Immutable set of the rows that a search may find.

    The set is given by the mask `live` or by the sorted `rows`. If neither is given, the set has all `size` rows. An
    array with an entry for each row is only made when needed.
    """

    def __init__(self, size: int, *, live: NDArray[np.bool_] | None = None, rows: Rows | None = None) -> None:
        self._size, self._live, self._rows = size, live, rows
        if live is not None:
            self.count = int(np.count_nonzero(live))
        else:
            self.count = size if rows is None else len(rows)

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        """Boolean mask (size,) of the rows that a search may find."""
        if self._live is not None:
            return self._live
        live = np.full(self._size, self._rows is None)
        if self._rows is not None:
            live[self._rows] = True
        return live

    @cached_property
    def rows(self) -> Rows | None:
        """Sorted rows that a search may find. None means all rows."""
        if self.count == self._size:
            return None
        return np.flatnonzero(self.live) if self._rows is None else self._rows

    @cached_property
    def bitmap(self) -> NDArray[np.uint8] | None:
        """Bitmap of the rows that a search may find. None means all rows."""
        return None if self.count == self._size else np.packbits(self.live, bitorder="little")

    def only(self, rows: Rows) -> Marks:
        return Marks(self._size, rows=rows[self.live[rows]])

    def without(self, rows: Rows) -> Marks:
        if not self.live[rows].any():
            return self
        live = self.live.copy()
        live[rows] = False
        return Marks(self._size, live=live)


@dataclass(frozen=True)
class Main:
    """Built part of an index, with (N, D) vectors under N keys.

    Keys and vectors never change. Without `approximate`, every search is exact.
    """

    keys: Keys
    """Sorted keys of the indexed vectors, followed by the sorted keys of the `tuning.queries` held-out vectors."""
    vectors: Floats
    approximate: Approximate | None
    tuning: Tuning
    build_seconds: float = 0.0
    bytes: int = 0
    """Bytes of the files of this part."""
    reason: str | None = None
    """Reason why there is no approximate index."""
    holds_queries: bool = True
    """True if the last vectors are the queries of `tuning`. False for a growing graph, which is measured with later
    vectors."""

    @property
    def kind(self) -> str:
        return "exact" if self.approximate is None else self.approximate.kind.name

    @property
    def fell_back(self) -> bool:
        """True if the CPU answers all searches of a GPU index, because the device failed or has no room for the index.

        Such searches are slower than those of an index that was built for the CPU.
        """
        return self.approximate is not None and getattr(self.approximate.built, "fell_back", False)

    def search(
        self,
        queries: Floats,
        k: int,
        marks: Marks,
        allowed: Keys | None = None,
        *,
        exact: bool = False,
        threads: int = 1,
    ) -> list[Ranking]:
        """Return the best `k` hits for each query, among the rows in the set `marks`.

        If `allowed` is given, only rows with these keys are searched. The keys must be sorted. A ranking has fewer than
        `k` hits only if fewer than `k` rows may be searched.
        """
        if allowed is not None:
            marks = marks.only(self.rows(allowed))
        effort = None if exact else self._effort(marks.count, k)
        if effort is None:
            return nearest(self.keys, self.vectors, queries, k, marks.rows)
        found = []
        for start in range(0, len(queries), TOGETHER):
            check_cancelled()
            found += self.candidates(queries[start : start + TOGETHER], k, effort, marks.bitmap, threads)
        short = [at for at, ranking in enumerate(found) if len(ranking.keys) < min(k, marks.count)]
        if short:
            whole = nearest(self.keys, self.vectors, queries[short], k, marks.rows)
            for at, ranking in zip(short, whole, strict=True):
                found[at] = ranking
        return found

    def rows(self, keys: Keys) -> Rows:
        """Return the sorted rows of `keys` in this part. `keys` must be sorted. Keys of other parts are skipped."""
        first = len(self.keys) - (self.tuning.queries if self.holds_queries else 0)
        return np.concatenate([rows_of(self.keys[:first], keys), first + rows_of(self.keys[first:], keys)])

    def candidates(
        self, queries: Floats, k: int, effort: int, bitmap: NDArray[np.uint8] | None, threads: int = 1
    ) -> list[Ranking]:
        """Search the approximate index, and compute the scores of its candidates from the vectors.

        A ranking may have fewer than `k` hits.
        """
        assert self.approximate is not None, "without an index, there is no effort"
        kind, _, index = self.approximate
        queries = np.ascontiguousarray(queries, np.float32)
        faiss.omp_set_num_threads(threads if len(queries) > FOR_ONE_THREAD else 1)
        rows = kind.search(index, queries, Candidates(min(k * kind.refined, len(self.keys)), effort, bitmap))
        scores = products(self._flat, queries, rows)
        keys = self.keys[rows]
        each, order = np.arange(len(rows))[:, None], np.lexsort((keys, -scores))[:, :k]
        keys, scores = keys[each, order], scores[each, order]
        if rows.min() >= 0:
            return list(map(Ranking, keys, scores))
        lengths = np.count_nonzero(scores > -np.inf, axis=1).tolist()
        return [Ranking(keys[at, :length], scores[at, :length]) for at, length in enumerate(lengths)]

    def efforts(self) -> Sequence[int]:
        assert self.approximate is not None, "without an index, there is no effort"
        return self.approximate.kind.efforts(self.approximate.parameters)

    @cached_property
    def _flat(self) -> faiss.IndexFlatIP:
        return flat(self.vectors)

    def _effort(self, count: int, k: int) -> int | None:
        """Return the effort for a search for `k` hits among `count` rows. None means exact search.

        The tuned effort is increased if `k` is greater than `MEASURED_K`. Search is exact if that is cheaper, or if no
        effort was tuned.
        """
        if self.approximate is None or count <= max(EXACT_ROWS, k):
            return None
        tuned = self.tuning.effort(count / len(self.keys))
        if tuned is None:
            return None
        effort = int(np.ceil(tuned * max(1.0, k / MEASURED_K) ** 0.5))
        if effort > tuned and effort > self.efforts()[-1]:
            return None
        return effort


class Part(NamedTuple):
    """A built part, and the set of its rows that are not removed."""

    main: Main
    marks: Marks

    def without(self, keys: Keys) -> Part:
        """Return the part with the sorted `keys` marked as removed."""
        return self._replace(marks=self.marks.without(self.main.rows(keys)))

    def beyond(self, key: int) -> Part:
        """Return the part with all keys up to `key` marked as removed."""
        return self._replace(marks=self.marks.without(np.flatnonzero(self.main.keys <= key)))


class IndexState(NamedTuple):
    """Immutable state of an index."""

    parts: tuple[Part, ...]
    """The main part, followed by the growing graphs (see `live.grown`). Keys of a graph are greater than keys of the
    main part."""
    tail: ExactRows

    @property
    def main(self) -> Main:
        """The main part of the index, which is the first of `parts`."""
        return self.parts[0].main

    @property
    def foremost(self) -> Main:
        """The first part that contains vectors. If no part contains vectors, this is the main part."""
        return next((part.main for part in self.parts if len(part.main.keys)), self.main)

    @property
    def built(self) -> int:
        """Number of vectors in all built parts, including removed vectors."""
        return sum(len(part.main.keys) for part in self.parts)

    @property
    def dead(self) -> int:
        """Number of removed vectors in all built parts."""
        return sum(len(part.main.keys) - part.marks.count for part in self.parts)

    @property
    def tail_count(self) -> int:
        return int(np.count_nonzero(self.tail.live))

    @property
    def fresh(self) -> int:
        """Number of vectors in the growing graphs and the tail, without removed vectors."""
        return sum(part.marks.count for part in self.parts[1:]) + self.tail_count

    @property
    def size(self) -> int:
        """Number of vectors that a search can return."""
        return self.parts[0].marks.count + self.fresh

    @property
    def last_grown(self) -> int:
        """The greatest key of the growing graphs, or 0 if there is no graph."""
        return max((int(part.main.keys[-1]) for part in self.parts[1:]), default=0)

    @property
    def last(self) -> int:
        """The greatest key outside the main part (in the growing graphs and the tail), or 0 if there is none."""
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
        """Return a copy of the state with the new `tail`, and without the `removed` keys in the built parts."""
        removed = np.sort(removed)
        return IndexState(tuple(part.without(removed) for part in self.parts), tail)

    def grown(self, before: Main | None, main: Main, tail: ExactRows) -> IndexState:
        """Return a copy of the state with the graph `main` in place of the graph `before`, and with the shorter `tail`.

        `tail` no longer contains the vectors that moved to the graph. If `before` is None, the graph is added. A row of
        `main` is live if it was live in `before` or in the old tail.
        """
        held = self.tail.keys[self.tail.live]
        old = next((part.marks.live for part in self.parts if part.main is before), np.empty(0, np.bool_))
        live = np.isin(main.keys, held, assume_unique=True)
        live[: len(old)] = old
        grown = Part(main, Marks(len(live), live=live))
        others = tuple(part for part in self.parts if part.main is not before)
        return IndexState((*others, grown) if grown.marks.count else others, tail)

    def rebuilt(self, main: Main, covered: int, tail: ExactRows) -> IndexState:
        """Return a copy of the state with the new main part `main` and the new `tail`.

        `main` contains all vectors up to the key `covered`. The other parts of the state, the growing graphs, therefore
        keep only vectors with greater keys. Parts that become empty are left out.
        """
        beside = (part.beyond(covered) for part in self.parts[1:])
        return IndexState((Part(main, Marks(len(main.keys))), *(part for part in beside if part.marks.count)), tail)

    def copy(self, last: Rows) -> Iterator[tuple[Keys, Floats]]:
        """Yield all live vectors with their keys, in blocks. The vectors in `last` come after all other vectors.

        `last` has the vectors' numbers, sorted. The numbers count the live vectors from 0, in the order of their keys.
        The vectors in `last`, and also the other vectors, are yielded in the order of their keys.
        """
        sources = [
            (main.keys, main.vectors, np.flatnonzero(marks.live)[np.argsort(main.keys[marks.live])])
            for main, marks in self.parts
        ]
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
        """Return a copy of the tail that keeps only live vectors with keys greater than `key`."""
        chosen = np.flatnonzero(self.tail.live & (self.tail.keys > key))
        tail = ExactIndex(self.tail.vectors.shape[1])
        tail.add(self.tail.keys[chosen], self.tail.vectors[chosen])
        return tail


@dataclass(frozen=True, kw_only=True)
class Report:
    """Current state of an index."""

    kind: str
    parameters: Mapping[str, int] = field(default_factory=dict)
    """Parameters of the build, and the effort of searches."""
    target: float
    """Requested recall@10."""
    recall: float
    """Lowest recall@10 of the approximate parts, compared with exact search. It is 1.0 if there are no approximate
    parts."""
    recall_by_filter: Mapping[str, float] = field(default_factory=dict)
    """Measured recall@10 by the share of vectors that match a filter."""
    queries: int = 0
    """Number of vectors that were held out as queries."""
    build_seconds: float
    bytes: int
    """Number of bytes in memory and files."""
    main: int
    """Number of vectors in the built parts, including removed vectors."""
    tail: int
    """Number of vectors in the tail, which is searched exactly."""
    dead: int
    """Number of removed vectors in the built parts."""
    state: Literal["ready", "building"]
    reason: str | None = None
    """Reason why search is exact. None if search is not exact."""
