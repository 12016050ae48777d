"""The built part of an index: vectors in a mapped file, and an approximate index over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.corpora.indexes.exact import Rows, flat, nearest, products, rows_of
from serving.corpora.indexes.kind import Candidates, Kind, Parameters
from serving.corpora.ports import Keys, Ranking
from serving.operations.cancelling import check_cancelled

EXACT_ROWS = 5_000
"""Rows that pass a filter up to which reading them all is as fast as an index that skips the others."""
MEASURED_K = 10
"""The k of the measured and promised recall@k."""
TOGETHER = 256
"""Queries between two checks for cancellation."""
FOR_ONE_THREAD = 4
"""Queries up to which waking other threads costs more time than they save."""


@dataclass(frozen=True)
class Tuning:
    """Efforts that reach the recall target, measured on this index."""

    target: float
    queries: int = 0
    """Vectors that were held out as queries."""
    efforts: Mapping[float, int] = field(default_factory=dict)
    """Efforts by the share of vectors that pass the filter. Without an entry, only exact search reaches the target."""
    recalls: Mapping[float, float] = field(default_factory=dict)
    """Measured recall by the same shares; 1.0 where search is exact."""

    def effort(self, share: float) -> int | None:
        """Return the effort for `share`, interpolated on a log scale; None below the least share: search exactly."""
        if share in self.efforts:
            return self.efforts[share]
        shares = sorted(self.efforts)
        if not shares or share < 0.9 * shares[0]:
            return None
        efforts = np.log([self.efforts[one] for one in shares])
        return int(np.ceil(np.exp(np.interp(np.log(share), np.log(shares), efforts)) - 1e-6))


class Approximate(NamedTuple):
    """An approximate index built over the vectors."""

    kind: Kind
    parameters: Parameters
    built: faiss.Index


class Marks:
    """Immutable set of the rows that may be found, out of `size`: those marked `live`, the sorted `rows`, or all.

    Arrays with an entry per row are only made when needed.
    """

    def __init__(self, size: int, *, live: NDArray[np.bool_] | None = None, rows: Rows | None = None) -> None:
        self._size, self._live, self._rows = size, live, rows
        if live is not None:
            self.count = int(np.count_nonzero(live))
        else:
            self.count = size if rows is None else len(rows)

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        """Mask of the rows that may be found."""
        if self._live is not None:
            return self._live
        live = np.full(self._size, self._rows is None)
        if self._rows is not None:
            live[self._rows] = True
        return live

    @cached_property
    def rows(self) -> Rows | None:
        """Sorted rows that may be found; None means all."""
        if self.count == self._size:
            return None
        return np.flatnonzero(self.live) if self._rows is None else self._rows

    @cached_property
    def bitmap(self) -> NDArray[np.uint8] | None:
        """Bitmap of the rows that may be found; None means all."""
        return None if self.count == self._size else np.packbits(self.live, bitorder="little")

    def only(self, rows: Rows) -> Marks:
        """Return the marks restricted to the sorted `rows`."""
        return Marks(self._size, rows=rows[self.live[rows]])

    def without(self, rows: Rows) -> Marks:
        if not self.live[rows].any():
            return self
        live = self.live.copy()
        live[rows] = False
        return Marks(self._size, live=live)


@dataclass(frozen=True)
class Main:
    """(N, D) vectors under N keys, none of which ever changes. Without `approximate`, every search is exact."""

    keys: Keys
    """Sorted keys, except that those of the `tuning.queries` held-out vectors come last, sorted as well."""
    vectors: Floats
    approximate: Approximate | None
    tuning: Tuning
    build_seconds: float = 0.0
    bytes: int = 0
    """Bytes of its files."""
    reason: str | None = None
    """The reason why there is no approximate index."""
    holds_queries: bool = True
    """True if the queries of `tuning` were added. It is false for a growing graph, which is measured with later
    vectors."""

    @property
    def kind(self) -> str:
        return "exact" if self.approximate is None else self.approximate.kind.name

    @property
    def fell_back(self) -> bool:
        """True if the CPU serves in place of a failed device, slower than an index built for the CPU."""
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
        """Return the best `k` of the live rows, among the sorted `allowed` keys if given.

        The answer has `k` hits if there are so many.
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
        """Return the sorted rows of those sorted `keys` that are in this part."""
        first = len(self.keys) - (self.tuning.queries if self.holds_queries else 0)
        return np.concatenate([rows_of(self.keys[:first], keys), first + rows_of(self.keys[first:], keys)])

    def candidates(
        self, queries: Floats, k: int, effort: int, bitmap: NDArray[np.uint8] | None, threads: int = 1
    ) -> list[Ranking]:
        """Search the approximate index and score its candidates with the vectors. There may be fewer than `k`."""
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
        assert self.approximate is not None, "no effort without an index"
        return self.approximate.kind.efforts(self.approximate.parameters)

    @cached_property
    def _flat(self) -> faiss.IndexFlatIP:
        return flat(self.vectors)

    def _effort(self, count: int, k: int) -> int | None:
        """Return the tuned effort, increased for larger `k`. None means exact search, as the cheaper or only way."""
        if self.approximate is None or count <= max(EXACT_ROWS, k):
            return None
        tuned = self.tuning.effort(count / len(self.keys))
        if tuned is None:
            return None
        effort = int(np.ceil(tuned * max(1.0, k / MEASURED_K) ** 0.5))
        if effort > tuned and effort > self.efforts()[-1]:
            return None
        return effort
