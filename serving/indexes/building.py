"""Building an index in the background: the kinds that are tried, in order, and the one thread that builds."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import faiss

from serving.indexes.kind import CancelledError, Kind, Pause
from serving.indexes.main import Approximate, Main, Tuning
from serving.indexes.plan import CERTAIN, Plan
from serving.indexes.saved import write_index
from serving.indexes.tuning import tune
from serving.ports import Floats, Keys

log = logging.getLogger(__name__)

THREAD = "index-builder"
NICENESS = 10
"""Niceness of the building thread, so that searches and uploads go first."""
MOMENT = 1.0
"""Seconds that `close` waits for a running build."""


class Material(NamedTuple):
    """(N, D) vectors in the mapped file of `folder`, and their N keys.

    The last `held` are held out to measure recall.
    """

    folder: Path
    keys: Keys
    vectors: Floats
    held: int


def build(material: Material, target: float, plan: Plan, kinds: Mapping[str, Kind], pause: Pause) -> Main:
    """Build the first kind of the plan that reaches the target. If none does, return exact search with the reasons."""
    folder, keys, vectors, held = material
    begin, first = perf_counter(), len(keys) - held
    reasons = []
    if len(keys) < plan.least:
        reasons.append(f"exact search is as quick below {plan.least} vectors")
    elif target >= CERTAIN:
        reasons.append(f"only exact search surely has a recall of {CERTAIN:g}")
    else:
        faiss.omp_set_num_threads(1)
        fitting = plan.fitting(kinds, *vectors.shape)
        reasons += [
            f"{name} does not fit in memory, or takes too long" for name in plan.kinds if kinds[name] not in fitting
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
            except (RuntimeError, MemoryError) as error:  # FAISS's own errors are RuntimeErrors
                pause()  # if it was closed, its folder is gone: cancel
                log.warning("the index %s could not be built: %s", kind.name, error)
                reasons.append(str(error))
    return Main(
        keys,
        vectors,
        None,
        # Target 0 if only the plan asked for exact search: another plan will then build, whatever the target.
        Tuning(target if plan.kinds and len(keys) >= plan.least else 0.0, held),
        perf_counter() - begin,
        reason="; ".join(reasons) or "no other kind is wanted",
    )


Work = Callable[[Pause], None]


class Builder:
    """A thread of low priority that builds for all corpora, one after the other.

    Brief work runs between steps of long work.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._brief: deque[Work] = deque()
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, work: Work, *, brief: bool = False) -> None:
        """Run `work` when its turn comes.

        It must often call the function it is given, which stops it when the builder closes.

        `brief` work does not wait for long builds.
        """
        if brief:
            self._brief.append(work)
            work = self._do_brief
        with self._starting:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
                self._thread.start()
        self._work.put(work)

    def close(self) -> None:
        """Cancel running and waiting work. A longer step inside FAISS ends with the process."""
        self._closed.set()
        self._work.put(None)
        if self._thread is not None:
            self._thread.join(MOMENT)

    def _run(self) -> None:
        with suppress(OSError):  # not supported here: others only wait longer
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (work := self._work.get()) is not None and not self._closed.is_set():
            self._do(work, self._pause)

    def _do(self, work: Work, pause: Pause) -> None:
        try:
            work(pause)
        except CancelledError:
            return
        except Exception:  # the next write retries; the thread must go on for other corpora
            log.exception("an index could not be built")

    def _pause(self) -> None:
        self._check_open()
        self._do_brief(self._check_open)

    def _do_brief(self, _: Pause) -> None:
        """Run all brief work, either in its own turn or when a long build pauses."""
        while self._brief:
            self._do(self._brief.popleft(), self._check_open)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise CancelledError
