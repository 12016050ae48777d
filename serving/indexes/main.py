"""The built part of an index: vectors in a mapped file, and what finds most of the nearest of them quickly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from serving.cancelling import check_cancelled
from serving.indexes.exact import nearest
from serving.indexes.kind import Candidates, Kind, Parameters
from serving.indexes.ranking import Rows, flat, products, rows_of
from serving.ports import Floats, Keys, Ranking

EXACT_ROWS = 5_000
"""Candidates that a filter leaves, up to which reading them all is as quick as an index that passes over the others."""
MEASURED_K = 10
"""recall@10 is what is measured and promised."""
TOGETHER = 256
"""Queries, after which a search can be stopped."""
FOR_ONE_THREAD = 4
"""Queries, up to which waking other threads takes longer than they save."""


@dataclass(frozen=True)
class Tuning:
    """What effort reaches the recall target, measured on this very index."""

    target: float
    queries: int = 0
    """That were held out."""
    efforts: Mapping[float, int] = field(default_factory=dict)
    """By the share of the vectors that may be found; no entry: nothing reaches the target there but exact search."""
    recalls: Mapping[float, float] = field(default_factory=dict)
    """What search has by the same shares, 1.0 where it is exact."""

    def effort(self, share: float) -> int | None:
        """For a share between those measured in proportion, in logarithms; None below the least: search exactly."""
        if share in self.efforts:
            return self.efforts[share]
        shares = sorted(self.efforts)
        if not shares or share < 0.9 * shares[0]:
            return None
        efforts = np.log([self.efforts[one] for one in shares])
        return int(np.ceil(np.exp(np.interp(np.log(share), np.log(shares), efforts)) - 1e-6))


class Approximate(NamedTuple):
    """What is built over the vectors."""

    kind: Kind
    parameters: Parameters
    built: faiss.Index


class Marks:
    """Which of `size` rows may be found: those marked `live`, or those of the sorted `rows`, or all; never changed.

    Whatever is as long as all rows is made only where it is needed.
    """

    def __init__(self, size: int, *, live: NDArray[np.bool_] | None = None, rows: Rows | None = None) -> None:
        self._size, self._live, self._rows = size, live, rows
        if live is not None:
            self.count = int(np.count_nonzero(live))
        else:
            self.count = size if rows is None else len(rows)

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        """Of each whether it may."""
        if self._live is not None:
            return self._live
        live = np.full(self._size, self._rows is None)
        if self._rows is not None:
            live[self._rows] = True
        return live

    @cached_property
    def rows(self) -> Rows | None:
        """Where they are, sorted; None: everywhere."""
        if self.count == self._size:
            return None
        return np.flatnonzero(self.live) if self._rows is None else self._rows

    @cached_property
    def bitmap(self) -> NDArray[np.uint8] | None:
        """A bit for each; None: all."""
        return None if self.count == self._size else np.packbits(self.live, bitorder="little")

    def only(self, rows: Rows) -> Marks:
        """Those of these that are in the sorted `rows`."""
        return Marks(self._size, rows=rows[self.live[rows]])

    def without(self, rows: Rows) -> Marks:
        """Those of these that are not in `rows`."""
        if not self.live[rows].any():
            return self
        live = self.live.copy()
        live[rows] = False
        return Marks(self._size, live=live)


@dataclass(frozen=True)
class Main:
    """(N, D) vectors under N keys, none of which ever changes; without `approximate` every search is exact."""

    keys: Keys
    """Sorted, but for those of the `tuning.queries` vectors that were held out and then added: these come last, sorted
    too.
    """
    vectors: Floats
    approximate: Approximate | None
    tuning: Tuning
    build_seconds: float = 0.0
    bytes: int = 0
    """In its files."""
    reason: str | None = None
    """Why there is nothing approximate."""
    holds_queries: bool = True
    """Whether those of `tuning` were added; false of a graph that grows, which is measured with what comes after it."""

    @property
    def kind(self) -> str:
        """By its name."""
        return "exact" if self.approximate is None else self.approximate.kind.name

    @property
    def fallen(self) -> bool:
        """Whether the CPU serves in place of a device that failed: slower than what is built for a CPU."""
        return self.approximate is not None and getattr(self.approximate.built, "fallen", False)

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
        """The best `k` of the live rows, among the sorted `allowed` keys if given; `k` of them if there are so many."""
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
        """Where those of `keys`, which are sorted, are that are here; sorted."""
        first = len(self.keys) - (self.tuning.queries if self.holds_queries else 0)
        return np.concatenate([rows_of(self.keys[:first], keys), first + rows_of(self.keys[first:], keys)])

    def candidates(
        self, queries: Floats, k: int, effort: int, bitmap: NDArray[np.uint8] | None, threads: int = 1
    ) -> list[Ranking]:
        """What the approximate index finds, scored with the vectors; maybe fewer than `k`."""
        assert self.approximate is not None, "no effort without an index"
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
        """That its index can make, ascending."""
        assert self.approximate is not None, "no effort without an index"
        return self.approximate.kind.efforts(self.approximate.parameters)

    @cached_property
    def _flat(self) -> faiss.IndexFlatIP:
        return flat(self.vectors)

    def _effort(self, count: int, k: int) -> int | None:
        """As tuned, and the more of it the deeper the answer; None where exact search is cheaper or the only one."""
        if self.approximate is None or count <= max(EXACT_ROWS, k):
            return None
        tuned = self.tuning.effort(count / len(self.keys))
        if tuned is None:
            return None
        effort = int(np.ceil(tuned * max(1.0, k / MEASURED_K) ** 0.5))
        if effort > tuned and effort > self.efforts()[-1]:
            return None
        return effort
