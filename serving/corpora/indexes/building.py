"""Building of indexes in the background: the plan of the kinds to try, and the single thread that builds."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import faiss
import numpy as np

from models.cli.ending import NativeThread
from models.runtimes.base import Floats
from serving.corpora.indexes.exact import Rows, nearest
from serving.corpora.indexes.kind import BuildError, CancelledError, Kind, Pause
from serving.corpora.indexes.saved import write_index
from serving.corpora.indexes.state import EXACT_ROWS, MEASURED_K, Approximate, Main, Marks, Tuning
from serving.corpora.ports import Ranking
from serving.corpora.values import Keys
from serving.settings import INDEXED_FROM

log = logging.getLogger(__name__)
GROUP = Path("/sys/fs/cgroup")
FEWEST = 10
"""Minimum number of vectors for an index. With fewer vectors, recall@10 can't be measured."""
CERTAIN = 1.0
"""Recall target that only exact search reaches. Even if an approximate index finds all neighbours of the measured
queries, it may miss neighbours of other queries."""
QUERIES = 400
"""Maximum number of vectors that serve as queries of the measurement. They are added to the index afterwards."""
SHARES = (1.0, 0.5, 0.05, 0.005)
"""Shares of the vectors that match a filter in the measurement. The matching vectors are drawn at random."""
CONFIDENCE = 1.64
"""Number of standard errors by which the measured recall must exceed the target. 1.64 gives a one-sided confidence of
95 %."""
NICENESS = 10
"""Niceness of the building thread. Searches and uploads have priority over it."""
MOMENT = 1.0
"""Maximum seconds that `close` waits for the end of a running build."""
Work = Callable[[Pause], None]


class BuildInput(NamedTuple):
    """Vectors (N, D) in the memory-mapped file of `folder`, and their N keys.

    The last `held` vectors are the queries that measure recall.
    """

    folder: Path
    keys: Keys
    vectors: Floats
    held: int


def build(given: BuildInput, target: float, plan: Plan, kinds: Mapping[str, Kind], pause: Pause) -> Main:
    """Build an approximate index of the vectors, and return the vectors with it as a built part (`Main`).

    The kinds of index are tried in the order of the plan, until one reaches the recall target. If none does, the part
    has no approximate index, so its searches are exact, and its field `reason` says why.
    """
    folder, keys, vectors, held = given
    begin, first = perf_counter(), len(keys) - held
    reasons = []
    if len(keys) < plan.least:
        reasons.append(f"exact search is just as fast below {plan.least} vectors")
    elif target >= CERTAIN:
        reasons.append(f"only exact search guarantees a recall of {CERTAIN:g}")
    else:
        faiss.omp_set_num_threads(1)
        fitting = plan.fitting(kinds, *vectors.shape)
        reasons += [
            f"{name} does not fit in memory, or takes too long to build"
            for name in plan.kinds
            if kinds[name] not in fitting
        ]
        for kind in fitting:
            try:
                parameters = kind.parameters(*vectors.shape)
                built = Approximate(kind, parameters, kind.build(vectors[:first], parameters, pause))
                trial = Main(keys[:first], vectors[:first], built, Tuning(target))
                tuning = tune(trial, vectors[first:], target, pause)
                built = built._replace(built=kind.complete(built.built, vectors))
                built = write_index(folder, built, vectors)
                return Main(keys, vectors, built, tuning, perf_counter() - begin)
            except (RuntimeError, MemoryError) as error:  # FAISS raises its own errors as RuntimeError
                pause()  # the error may come from the closed index, whose folder was removed; raise CancelledError then
                log.warning("the index %s could not be built: %s", kind.name, error)
                reasons.append(str(error))
    return Main(
        keys,
        vectors,
        None,
        # If only the plan demands exact search, the recorded target is 0. A later server with another plan then builds
        # an index, because its target differs.
        Tuning(target if plan.kinds and len(keys) >= plan.least else 0.0, held),
        perf_counter() - begin,
        reason="; ".join(reasons) or "the plan allows no other kind",
    )


class Builder:
    """A thread of low priority that builds the indexes of all corpora, one after another.

    Brief work (see `submit`) does not wait for a long build: the thread runs it between two steps of the build.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._brief: deque[Work] = deque()
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, work: Work, *, brief: bool = False) -> None:
        """Queue `work` for the thread.

        `work` gets a `Pause` function, and must call it often. After `close`, the `Pause` function raises
        `CancelledError`. If `brief` is True, `work` does not wait for long builds.
        """
        if brief:
            self._brief.append(work)
            work = self._do_brief
        with self._starting:
            if self._thread is None and not self._closed.is_set():
                self._thread = NativeThread(self._run, "index-builder")
                self._thread.start()
        self._work.put(work)

    def close(self) -> None:
        """Cancel running and waiting work.

        A long step inside FAISS can't be cancelled. Such a step continues until it is complete, or the process ends.
        """
        self._closed.set()
        self._work.put(None)
        if self._thread is not None:
            self._thread.join(MOMENT)

    def _run(self) -> None:
        with suppress(OSError):  # without niceness, searches and uploads are only slower
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (work := self._work.get()) is not None and not self._closed.is_set():
            self._do(work, self._pause)

    def _do(self, work: Work, pause: Pause) -> None:
        try:
            work(pause)
        except CancelledError:
            return
        except Exception:  # the next write tries again; the thread must continue for other corpora
            log.exception("an index could not be built")

    def _pause(self) -> None:
        self._check_open()
        self._do_brief(self._check_open)

    def _do_brief(self, _: Pause) -> None:
        """Run all brief work that is queued.

        This happens between two builds, and each time a long build calls its `Pause` function.
        """
        while self._brief:
            self._do(self._brief.popleft(), self._check_open)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise CancelledError


# The plan chooses the kinds of index to try for a number of vectors, best first. Measurements are in docs/adr/0019.


@dataclass(frozen=True)
class Plan:
    """Thresholds at which an index is built, the kinds of index to try, and limits of a build."""

    least: int = INDEXED_FROM
    """Minimum number of vectors for an approximate index. With fewer vectors, search is exact."""
    dead: float = 0.2
    """Maximum share of removed vectors in the built parts. Above this share, the index is built again without the
    removed vectors."""
    tail: float = 0.1
    """Maximum number of vectors outside the main part, as a ratio to the number of vectors in all built parts. Above
    this ratio, the index is built again as one part, if at least `least` vectors are outside the main part."""
    kinds: Sequence[str] = ("hnsw", "ivf-flat", "ivf-sq8", "ivf-pq")
    """Kinds of index in the order in which they are tried. The first kind that fits in memory and reaches the recall
    target is used."""
    most: Mapping[str, int] = field(default_factory=lambda: {"hnsw": 5_000_000})
    """Maximum number of vectors of each kind. With more vectors, a single thread needs hours to build the kind."""
    memory: int | None = None
    """Maximum bytes of memory for a build. None means half of the free memory."""

    def wanted(self, main: int, dead: int, tail: int) -> bool:
        """Return whether the index must be built again.

        The built parts of an index are the main part and, after it, graphs that grow.

        Args:
            main: number of vectors in all built parts, including removed vectors.
            dead: number of removed vectors in all built parts.
            tail: number of vectors in the graphs and in no built part, not counting removed vectors.
        """
        return tail > max(self.least - 1, self.tail * main) or dead > self.dead * main

    def without(self, kind: str) -> Plan:
        return replace(self, kinds=[name for name in self.kinds if name != kind])

    def outgrown(self, built: int, tail: int) -> bool:
        """Return whether the tail is so long that its oldest vectors should become a graph before the next build.

        The tail contains the vectors that are in no built part, and is searched exactly. `tail` is the number of these
        vectors, and `built` is the number of vectors in the built parts.

        If `built` is not 0, the tail may have up to `least` / 2 vectors. If `built` is 0, it may have up to 1.5 `least`
        vectors. The first build begins at `least` vectors anyway, and takes no more time than a graph of the tail. A
        graph always needs more than `FEWEST` vectors, because some vectors stay outside the graph as queries that
        measure its recall. If the plan does not have the kind "hnsw", return False.
        """
        return "hnsw" in self.kinds and tail > max(FEWEST, self.least // 2 if built else 3 * self.least // 2)

    def fitting(self, kinds: Mapping[str, Kind], count: int, dim: int) -> list[Kind]:
        """Return the plan's kinds of index that stay within the limits `memory` and `most` for `count` vectors."""
        memory = free_memory() // 2 if self.memory is None else self.memory
        return [
            kinds[name]
            for name in self.kinds
            if kinds[name].memory(count, dim) <= memory and count <= self.most.get(name, count)
        ]


def free_memory(machine: Path = Path("/proc/meminfo"), group: Path = GROUP) -> int:
    """Return the bytes of memory that this process may still allocate on the machine and in its control group."""
    lines = dict(line.split(":", 1) for line in machine.read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except FileNotFoundError:  # the process has no control group of its own, or the kernel is old
        return available
    if limit == "max":
        return available
    return min(available, int(limit) - int(used) + int(cached["inactive_file"]))


# Tuning searches for the cheapest effort that reaches the recall target, which is measured against exact search.


def most_queries(count: int) -> int:
    """Return how many of `count` vectors are held out as queries: a tenth, but at most `QUERIES`."""
    return min(QUERIES, count // 10)


def held_out(count: int) -> Rows:
    """Choose which of `count` vectors are held out as queries. Return their sorted row numbers."""
    return np.sort(np.random.default_rng(0).choice(count, most_queries(count), replace=False))


def tune(main: Main, queries: Floats, target: float, pause: Pause, shares: Sequence[float] = SHARES) -> Tuning:
    """Find, for each share in `shares`, the lowest effort at which `main` reaches the recall `target`.

    A share is the fraction of the vectors that match a filter. An effort is a value of a search parameter, such as
    `efSearch` (see `Tuning`). Recall is measured with `queries` (Q, D), which are not in `main`. See docs/adr/0019.

    A share below 1 gets no effort if at most `EXACT_ROWS` vectors match, or if no effort reaches the target. For a
    share without an effort, `Tuning.effort` decides whether a search is exact or uses an interpolated effort.

    Raises:
        BuildError: no effort reaches the target without a filter; the message gives the recall that was reached.
    """
    assert main.approximate is not None, "exact search needs no tuning"
    rng = np.random.default_rng(1)
    count = len(main.keys)
    efforts: dict[float, int] = {}
    recalls: dict[float, float] = {}
    for share in shares:
        marks = Marks(count, live=rng.random(count) < share)
        recalls[share] = 1.0
        if marks.count <= EXACT_ROWS and share < 1:
            continue
        effort, recall = _cheapest(main, queries, marks, target, pause)
        if effort is not None:
            efforts[share], recalls[share] = effort, recall
        elif share == 1.0:
            raise BuildError(
                f"{main.approximate.kind.name} reaches a recall of {recall:.3f}, which is not certainly {target:g}"
            )
    return Tuning(target, len(queries), efforts, recalls)


def recall(found: Sequence[Ranking], truth: Sequence[Ranking]) -> Floats:
    """Return the recall of each query (Q,).

    Vectors with the same score as the last true hit also count as true hits.
    """
    parts = [
        np.count_nonzero(one.scores >= true.scores[-1]) / len(true.scores) if len(true.scores) else 1.0
        for one, true in zip(found, truth, strict=True)
    ]
    return np.minimum(parts, 1.0)


def _cheapest(main: Main, queries: Floats, marks: Marks, target: float, pause: Pause) -> tuple[int | None, float]:
    """Find the lowest search effort that reaches the recall `target` when a search may find only the rows in `marks`.

    Return the effort and its recall. If no effort reaches the target, return None and the recall of the highest effort.
    Efforts are tried by bisection, because recall grows with effort.
    """
    truth = nearest(main.keys, main.vectors, queries, MEASURED_K, marks.rows)
    efforts = main.efforts()
    low, high, reached = 0, len(efforts) - 1, None
    recall_of_best = 0.0
    while low <= high:
        pause()
        middle = (low + high) // 2
        found = recall(main.candidates(queries, MEASURED_K, efforts[middle], marks.bitmap), truth)
        mean, error = float(found.mean()), float(found.std() / sqrt(len(found)))
        if mean - CONFIDENCE * error >= target:
            reached, high, recall_of_best = efforts[middle], middle - 1, mean
        else:
            low = middle + 1
            if reached is None:
                recall_of_best = mean
    return reached, recall_of_best
