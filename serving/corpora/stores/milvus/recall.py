"""Measurements of the recall of vector indexes, and the choice of the search parameters that reach the target."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from itertools import chain
from math import sqrt
from time import perf_counter

import numpy as np

from models.cli.ending import NativeThread
from models.runtimes.base import Floats
from serving.corpora.indexes.building import CONFIDENCE
from serving.corpora.stores.milvus import rows
from serving.corpora.stores.milvus.indexes import KINDS
from serving.corpora.stores.milvus.lifecycle import Collections
from serving.corpora.stores.milvus.registry import Measured, Record, Registry
from serving.corpora.stores.milvus.table import Rows

log = logging.getLogger(__name__)
QUERIES = 200
"""Maximum number of passages that serve as queries of the measurement. Each is left out of its own hits."""
NEIGHBOURS = 10


class Recall:
    """Measurements of recall: on request, and in the background after many writes.

    A corpus is measured in the background for the first time when it has received at least `exact_below` passages.
    """

    def __init__(self, registry: Registry, collections: Collections, exact_below: int) -> None:
        self._registry = registry
        self._collections = collections
        self._exact_below = exact_below
        self._written: Counter[str] = Counter()
        """Passages written since the last measurement in the background, by corpus."""
        self._measuring = threading.Lock()
        self._closed = False

    def measure(self, name: str) -> Record:
        """Measure the recall of a corpus's index, and return the corpus's record with the result.

        If the corpus is empty, or its collection was replaced meanwhile, return the record without a new result.
        """
        record = self._registry.read(name)
        if record.table is None:
            return record
        found = measure(self._collections.rows(record), record.table.index, record.corpus.wanted_recall)
        if found is None:
            return record
        with self._registry.changing(name) as now:
            return self._registry.write(replace(now, measured=found)) if now.table == record.table else record

    def count(self, record: Record, passages: int) -> None:
        """Count `passages` as written to a corpus. If enough were written, measure its recall in the background.

        The count is enough when it reaches both `exact_below` and the size that the corpus had at its last measurement.
        It begins at 0 again with each measurement in the background. If the current vectors of a corpus were never
        measured, callers also count the passages that are already stored: when the server starts, and at the end of a
        re-embedding. If the type of the index has no search effort, nothing happens.
        """
        if record.table is None or not KINDS[record.table.index].effort:
            return
        self._written[record.name] += passages
        last = record.measured.passages if record.measured else 0
        if self._written[record.name] >= max(last, self._exact_below):
            self.begin(record.name)

    def begin(self, name: str) -> None:
        """Start to measure the recall of a corpus in the background.

        The number of passages that were written since the last measurement is set to 0.
        """
        self._written[name] = 0
        NativeThread(partial(self._measure, name), "index-builder").start()

    def _measure(self, name: str) -> None:
        with self._measuring:
            try:
                self.measure(name)
            except Exception as error:
                if not self._closed:  # after `close`, the error only means that the connection is closed
                    log.warning("the recall of corpus %r was not measured: %s", name, error)

    def close(self) -> None:
        self._closed = True


def measure(corpus: Rows, kind: str, target: float) -> Measured | None:
    """Return the lowest search effort with which recall@10 reaches `target`, and the measured recall.

    `kind` is the type of the index. The hits are compared with those of exact search. The lower confidence limit of the
    recall must reach `target`. If no effort suffices, return the greatest effort. If the corpus is empty, return None.

    The queries are the passages with the smallest hashes of their primary keys.
    """
    begin = perf_counter()
    names = nsmallest(QUERIES, (row["id"] for block in corpus.each(["id"]) for row in block), key=rows.number)
    vectors = {row["id"]: rows.vector(row) for row in corpus.get(names, ["id", rows.VECTOR])}
    names = [name for name in names if name in vectors]  # others were deleted meanwhile
    if not names:
        return None
    queries = np.stack([vectors[name] for name in names])
    truth, passages = _nearest(corpus, names, queries)
    for effort in KINDS[kind].efforts or (0,):
        named = {KINDS[kind].effort: effort} if KINDS[kind].effort else {}
        found = corpus.nearest(queries, NEIGHBOURS + 1, named)
        hits = [len(set(_others(one, name)) & true) for one, name, true in zip(found, names, truth, strict=True)]
        recalls = np.array([hit / len(true) if true else 1.0 for hit, true in zip(hits, truth, strict=True)])
        margin = CONFIDENCE * recalls.std() / sqrt(len(recalls))
        if recalls.mean() - margin >= target:
            break
    return Measured(named, round(float(recalls.mean()), 4), len(names), passages, round(perf_counter() - begin, 2))


def _nearest(corpus: Rows, names: Sequence[str], queries: Floats) -> tuple[list[set[str]], int]:
    """Return the primary keys of the nearest passages of each query, and the number of scanned passages.

    All vectors are scanned. Query i is the vector of the passage `names[i]`. This passage is left out of its own
    nearest passages.
    """
    best: list[list[tuple[float, str]]] = [[] for _ in names]
    passages = 0
    for block in corpus.each(["id", rows.VECTOR]):
        ids = [row["id"] for row in block]
        passages += len(ids)
        cosines = queries @ np.stack([rows.vector(row) for row in block]).T
        for i, scores in enumerate(cosines):
            top = np.argsort(-scores)[: NEIGHBOURS + 1]
            found = ((-float(scores[at]), ids[at]) for at in top if ids[at] != names[i])
            best[i] = nsmallest(NEIGHBOURS, chain(best[i], found))
    return [{id for _, id in found} for found in best], passages


def _others(found: Sequence[str], name: str) -> list[str]:
    return [id for id in found if id != name][:NEIGHBOURS]
