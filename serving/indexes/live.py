"""The index that a corpus searches: a built index, marks of removed vectors, and the vectors added since."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import numpy as np

from serving.failpoints import reach
from serving.indexes import KINDS, saved
from serving.indexes.building import Builder, Material, build
from serving.indexes.growing import Oldest, grown
from serving.indexes.kind import CancelledError, Kind, Pause
from serving.indexes.opened import Generations, Opening
from serving.indexes.plan import CERTAIN, Plan
from serving.indexes.reading import Read, Source
from serving.indexes.report import Report
from serving.indexes.saved import Identity
from serving.indexes.tuning import held_out, most_queries
from serving.ports import Floats, Keys, Ranking

__all__ = ["Identity", "LiveIndex", "Plan", "Report", "Source"]
log = logging.getLogger(__name__)

AGAIN = 60.0
"""Seconds to wait after a failed build before the next one."""


class LiveIndex:
    """The index of a corpus.

    Its corpus writes from one thread at a time; any number of threads search without a lock.
    """

    def __init__(
        self,
        source: Source,
        identity: Identity,
        builder: Builder,
        *,
        folder: Path | None,
        target: Callable[[], float],
        threads: int = 1,
        plan: Plan | None = None,
        kinds: Mapping[str, Kind] = KINDS,
        beside: Read | None = None,
    ) -> None:
        """Start from `beside`, or from what `folder` contains, if it fits, and catch up with the source.

        Args:
            folder: the folder of this corpus alone. None means a temporary one.
            threads: maximum threads of one search.
            beside: what was read of these vectors before they served.
        """
        self._source, self._builder = source, builder
        self.identity = identity
        """Identity of its vectors, which never changes."""
        self._temporary = TemporaryDirectory(ignore_cleanup_errors=True) if folder is None else None
        self._folder = Path(self._temporary.name) if self._temporary else folder or Path()
        self._generations = Generations(self._folder)
        self._target, self._threads, self._plan, self._kinds = target, threads, plan or Plan(), dict(kinds)
        self._changing = threading.Lock()
        """Lock for every change that searches see."""
        self._making = threading.Lock()
        """Lock for builds."""
        self._removed_since: list[Keys] | None = None
        """Keys removed since the running build began, which the build does not know. None: no build is running."""
        self._growable = True
        """False after a graph beside the main part did not reach the target, until the next build."""
        self._building = 0
        """Key up to which the running build includes everything."""
        self._queued = self._growing = False
        self._not_before = 0.0
        self._closed = False
        opening = Opening(source, identity, self._generations, self._kinds, threads, self._plan)
        self._seen, self._tail, self._generation, self._covered = opening.opened(beside)
        self._consider()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the encoder that made the vectors."""
        return self.identity.fingerprint

    @property
    def dim(self) -> int:
        return self.identity.dim

    @property
    def kind(self) -> str:
        return self._seen.foremost.kind

    def __len__(self) -> int:
        return self._seen.held

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without mapped files."""
        return self._tail.nbytes + self._seen.built + sum(part.main.bytes for part in self._seen.parts[1:])

    @property
    def report(self) -> Report:
        """Current state of the index."""
        building = self._queued or self._making.locked()
        return Report.of(self._seen, target=self._target(), memory=self.nbytes, building=building)

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Add (N, D) vectors under N keys. Each key must be greater than all that the index ever contained."""
        self.change(np.empty(0, np.int64), keys, vectors)

    def remove(self, keys: Keys) -> None:
        """Remove those of `keys` that the index contains."""
        self.change(keys, np.empty(0, np.int64), np.empty((0, self.identity.dim), np.float32))

    def change(self, removed: Keys, added: Keys, vectors: Floats) -> None:
        """Remove and add in one step. A search sees both changes or neither."""
        with self._changing:
            self._tail.remove(removed)
            self._tail.add(added, vectors)
            if self._removed_since is not None:
                self._removed_since.append(removed)
            self._seen = self._seen.changed(removed, self._tail.held)
        self._consider()

    def search(self, queries: Floats, k: int, allowed: Keys | None = None, *, exact: bool = False) -> list[Ranking]:
        """Return the best `k`, or as many as exist, for each row of (Q, D) unit `queries`.

        Only the sorted `allowed` keys are searched, if given. Without `exact` some of the best may be missing, as few
        as the recall target allows. The answer is never shorter for that.
        """
        seen = self._seen
        found = seen.search(queries, k, allowed, exact=exact, threads=self._threads)
        if seen.main.fallen:
            self._consider()
        return found

    def reconsider(self) -> None:
        """Build again if the recall target has changed."""
        self._consider()

    def build_now(self) -> Report:
        """Build, measure, save and swap before returning."""
        self._build(lambda: None)
        return self.report

    def close(self, *, erase: bool = False) -> None:
        """Close the index and cancel a running build.

        `erase` also removes its files; a running build removes its own.
        """
        with self._changing:
            self._closed = True
        if erase:
            self._generations.erase()
        if self._temporary:
            self._temporary.cleanup()

    def _consider(self) -> None:
        if not self._queued and monotonic() >= self._not_before and self._wants_build():
            self._queued = True
            self._builder.submit(self._build_behind)
        if not self._growing and self._wants_growth():
            self._growing = True
            self._builder.submit(self._grow_behind, brief=True)

    def _wants_build(self) -> bool:
        seen = self._seen
        if self._closed:
            return False
        if seen.main.fallen:
            return True
        if self._plan.kinds and len(seen.main.keys) >= self._plan.least:
            target = self._target()
            if seen.main.tuning.target != target or (seen.main.approximate and target >= CERTAIN):
                return True
        return self._plan.wanted(seen.built, seen.dead, seen.fresh)

    def _wants_growth(self) -> bool:
        """Return whether the tail should grow a graph. If the main part is searched exactly, so is the tail."""
        seen = self._seen
        if self._closed or not self._growable or (len(seen.main.keys) and seen.main.approximate is None):
            return False
        return self._plan.outgrown(seen.built, seen.tail_count) and self._target() < CERTAIN

    def _build_behind(self, pause: Pause) -> None:
        try:
            if self._wants_build():  # it still does
                self._build(pause)
        except CancelledError:
            return
        except Exception:
            self._not_before = monotonic() + AGAIN
            if not self._closed:
                log.exception("no new index in %s: what is there goes on serving", self._folder)
        finally:
            self._queued = False
        self._consider()

    def _grow_behind(self, pause: Pause) -> None:
        try:
            if self._wants_growth():  # it still does
                self._grow(self._step(pause))
        except CancelledError:
            return
        except (RuntimeError, MemoryError) as error:  # FAISS's own errors are RuntimeErrors
            self._growable = False
            log.warning("the tail of the index in %s is searched exactly until the next build: %s", self._folder, error)
        finally:
            self._growing = False
        self._consider()

    def _grow(self, step: Pause) -> None:
        """Move the oldest part of the tail into the growing graph.

        If a running build includes that graph, make a new one.
        """
        with self._changing:
            seen, building = self._seen, self._building
        live = np.flatnonzero(seen.tail.live)
        held = most_queries(len(live))
        oldest, newest = live[: len(live) - held][: self._plan.least], live[len(live) - held :]
        before = seen.parts[-1].main if len(seen.parts) > 1 and seen.last_grown > building else None
        taken = Oldest(seen.tail.keys[oldest], seen.tail.vectors[oldest], seen.tail.vectors[newest])
        main = grown(before, taken, self._target(), step)
        with self._changing:
            self._check_open()
            self._tail = self._seen.after(int(taken.keys[-1]))
            self._seen = self._seen.grown(before, main, self._tail.held)

    def _step(self, pause: Pause) -> Pause:
        def step() -> None:
            pause()
            self._check_open()

        return step

    def _check_open(self) -> None:
        if self._closed:
            raise CancelledError

    def _build(self, pause: Pause) -> None:
        step = self._step(pause)
        with self._making:
            step()
            old, generation = self._generation, self._generations.following()
            try:
                self._make(generation, step)
            finally:
                self._removed_since, self._building = None, 0
                if self._generation != generation:
                    saved.remove(generation)
            if old is not None:
                saved.remove(old)
            reach("index.before-bury")
            graves = np.setdiff1d(self._source.tombstones(self._covered), self._seen.main.keys)
            with self._changing:
                self._check_open()  # if closed, the corpus may have been replaced, with other tombstones
                self._source.bury(graves)

    def _make(self, generation: Path, step: Pause) -> None:
        with self._changing:
            seen, removed = self._seen, [np.empty(0, np.int64)]
            self._removed_since = removed
            covered = self._building = max(self._covered, seen.last)
        reach("index.compaction")
        if seen.main.fallen:  # otherwise it would be built on the failed device again
            self._plan = self._plan.without(seen.main.kind)
        count, target = seen.held, self._target()
        held = held_out(count if count >= self._plan.least else 0)
        keys, vectors = saved.write_vectors(generation, self.identity.dim, seen.copy(held))
        main = build(Material(generation, keys, vectors, len(held)), target, self._plan, self._kinds, step)
        described = saved.describe(generation, main)
        main = replace(main, bytes=saved.size(described))
        with self._changing:
            self._check_open()
            saved.save(generation, saved.vouched(described, self.identity, covered))
            self._tail = self._seen.after(covered)
            rebuilt = self._seen.rebuilt(main, covered, self._tail.held)
            self._seen = rebuilt.changed(np.concatenate(removed), self._tail.held)
            self._generation, self._covered, self._growable = generation, covered, True
