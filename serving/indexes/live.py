"""What a corpus searches: a built index, marks of what was removed from it, and what was added since."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Protocol

import numpy as np

from serving.failpoints import reach
from serving.indexes import KINDS, saved
from serving.indexes.building import Builder, Material, build
from serving.indexes.exact import ExactIndex
from serving.indexes.kind import CancelledError, Kind, Pause
from serving.indexes.main import Main, Marks, Tuning
from serving.indexes.plan import Plan
from serving.indexes.report import Report
from serving.indexes.saved import Identity, UnfitError
from serving.indexes.seen import Seen
from serving.indexes.tuning import held_out
from serving.ports import Floats, Keys, Ranking

__all__ = ["Identity", "LiveIndex", "Plan", "Report", "Source"]
log = logging.getLogger(__name__)

ROOM = 250_000
"""Vectors that are read into memory when an index is opened; more are copied to a file."""
AGAIN = 60.0
"""Seconds after a build that failed, before which there is no other."""


class Source(Protocol):
    """The truth about one corpus. Called from any thread."""

    def vectors(self, after: int) -> Iterator[tuple[Keys, Floats]]:
        """Those of keys beyond `after`, in blocks in order of keys."""

    def tombstones(self, upto: int) -> Keys:
        """Sorted keys up to `upto` that are no more and were not buried."""

    def bury(self, keys: Keys) -> None:
        """No index on disk has them any more."""

    def last_key(self) -> int:
        """The greatest ever given out."""

    def count(self) -> int:
        """Vectors that there are."""


class LiveIndex:
    """Written by one thread at a time, which its corpus sees to; searched by any number beside it, without a lock."""

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
    ) -> None:
        """Open what `folder` keeps, if it fits, and catch up with the source.

        Args:
            folder: of this corpus alone; None: a temporary one.
            threads: that one search may use.
        """
        self._source, self._identity, self._builder = source, identity, builder
        self._temporary = TemporaryDirectory(ignore_cleanup_errors=True) if folder is None else None
        self._folder = Path(self._temporary.name) if self._temporary else folder or Path()
        self._target, self._threads, self._plan, self._kinds = target, threads, plan or Plan(), dict(kinds)
        self._changing = threading.Lock()
        """Around every change of what is seen."""
        self._making = threading.Lock()
        """Around a build."""
        self._removed_since: list[Keys] | None = None
        """Since a build began, which does not know of it; None: none is under way."""
        self._queued = False
        self._not_before = 0.0
        self._closed = False
        self._covered = 0
        self._generation: Path | None = None
        self._tail = ExactIndex(identity.dim)
        self._seen = self._open()
        self._consider()

    @property
    def fingerprint(self) -> str:
        """Of the encoder that made the vectors."""
        return self._identity.fingerprint

    @property
    def dim(self) -> int:
        """Of the vectors."""
        return self._identity.dim

    @property
    def kind(self) -> str:
        """As in `report`."""
        return self._seen.main.kind

    def __len__(self) -> int:
        return self._seen.marks.count + self._seen.fresh

    @property
    def nbytes(self) -> int:
        """Memory, mapped files not counted."""
        return self._tail.nbytes + len(self._seen.main.keys)

    @property
    def report(self) -> Report:
        """What it is now."""
        seen = self._seen
        return Report.of(
            seen.main,
            target=self._target(),
            tail=seen.fresh,
            dead=seen.dead,
            memory=self.nbytes,
            building=self._queued or self._making.locked(),
        )

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Add (N, D) vectors under N keys, each greater than all it ever held."""
        self.change(np.empty(0, np.int64), keys, vectors)

    def remove(self, keys: Keys) -> None:
        """Remove those of `keys` that it holds."""
        self.change(keys, np.empty(0, np.int64), np.empty((0, self._identity.dim), np.float32))

    def change(self, removed: Keys, added: Keys, vectors: Floats) -> None:
        """Both in one step: a search sees all of it or nothing."""
        with self._changing:
            self._tail.remove(removed)
            self._tail.add(added, vectors)
            if self._removed_since is not None:
                self._removed_since.append(removed)
            self._seen = self._seen.changed(removed, self._tail.held)
        self._consider()

    def search(self, queries: Floats, k: int, allowed: Keys | None = None, *, exact: bool = False) -> list[Ranking]:
        """For each row of (Q, D) unit `queries` the best `k`, or all there are, of the sorted `allowed` keys if given.

        Without `exact` some of the best may be missed, as few as the recall target says; never is the answer shorter.
        """
        return self._seen.search(queries, k, allowed, exact=exact, threads=self._threads)

    def reconsider(self) -> None:
        """The target may be another: build again if it is."""
        self._consider()

    def build_now(self) -> Report:
        """Build, measure, save and swap before returning."""
        self._build(lambda: None)
        return self.report

    def close(self, *, erase: bool = False) -> None:
        """Let go; a build under way comes to nothing. `erase`: its files too, but for those of such a build, which
        removes them itself.
        """
        with self._changing:
            self._closed = True
        if erase:
            for generation in self._generations():
                saved.remove(generation)
            with suppress(OSError):  # not there, or not empty
                self._folder.rmdir()
        if self._temporary:
            self._temporary.cleanup()

    def _open(self) -> Seen:
        seen = None
        for generation in self._generations():
            if seen is None and (generation / saved.MANIFEST).exists():
                try:
                    main, covered = saved.load(generation, self._identity, self._kinds, self._threads)
                    seen = self._caught_up(generation, main, covered)
                    continue
                except UnfitError as error:
                    log.warning("index %s is made anew from the store: %s", generation, error)
            saved.remove(generation)  # also a build that did not come to its end, and what one has replaced
        return seen or self._anew()

    def _caught_up(self, generation: Path, main: Main, covered: int) -> Seen:
        if covered > self._source.last_key():
            raise UnfitError(f"{generation / saved.MANIFEST}: it covers more than the store ever held")
        marks = Marks(len(main.keys)).without(main.rows(self._source.tombstones(covered)))
        tail = ExactIndex(self._identity.dim)
        for keys, vectors in self._source.vectors(covered):
            tail.add(keys, vectors)
        if marks.count + len(tail) != (there := self._source.count()):
            raise UnfitError(
                f"{generation / saved.KEYS}: with it {marks.count + len(tail)} vectors, in the store {there}"
            )
        self._generation, self._covered, self._tail = generation, covered, tail
        return Seen(main, marks, tail.held)

    def _anew(self) -> Seen:
        dim, blocks = self._identity.dim, self._source.vectors(0)
        none = Main(np.empty(0, np.int64), np.empty((0, dim), np.float32), None, Tuning(self._target()))
        for keys, vectors in blocks:
            self._tail.add(keys, vectors)
            if len(self._tail) >= ROOM:
                return self._from_file(chain([(self._tail.held.keys, self._tail.held.vectors)], blocks))
        return Seen(none, Marks(0), self._tail.held)

    def _from_file(self, blocks: Iterator[tuple[Keys, Floats]]) -> Seen:
        generation = self._new_generation()
        keys, vectors = saved.write_vectors(generation, self._identity.dim, blocks)
        main = Main(keys, vectors, None, Tuning(0.0), reason="the index is not built yet")
        self._tail, self._covered = ExactIndex(self._identity.dim), int(keys[-1])
        manifest = saved.describe(generation, main, self._identity, self._covered)
        saved.save(generation, manifest)
        self._generation = generation
        return Seen(replace(main, bytes=saved.size(manifest)), Marks(len(keys)), self._tail.held)

    def _consider(self) -> None:
        if not self._queued and monotonic() >= self._not_before and self._wants_build():
            self._queued = True
            self._builder.submit(self._build_behind)

    def _wants_build(self) -> bool:
        seen = self._seen
        if self._closed:
            return False
        if len(seen.main.keys) and seen.main.tuning.target != self._target():
            return True
        return self._plan.wanted(len(seen.main.keys), seen.dead, seen.fresh)

    def _build_behind(self, pause: Pause) -> None:
        try:
            if self._wants_build():  # still
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

    def _build(self, pause: Pause) -> None:
        def step() -> None:
            pause()
            if self._closed:
                raise CancelledError

        with self._making:
            step()
            old, generation = self._generation, self._new_generation()
            try:
                self._make(generation, step)
            finally:
                self._removed_since = None
                if self._generation != generation:
                    saved.remove(generation)
            if old is not None:
                saved.remove(old)
            reach("index.before-bury")
            graves = np.setdiff1d(self._source.tombstones(self._covered), self._seen.main.keys)
            with self._changing:
                step()  # closed, its corpus may have another history by now, with graves of its own
                self._source.bury(graves)

    def _make(self, generation: Path, step: Pause) -> None:
        with self._changing:
            seen, removed = self._seen, [np.empty(0, np.int64)]
            self._removed_since = removed
            covered = max([self._covered, *seen.tail.keys[-1:].tolist()])
        reach("index.compaction")
        count, target = seen.marks.count + seen.fresh, self._target()
        held = held_out(count if count >= self._plan.least else 0)
        keys, vectors = saved.write_vectors(generation, self._identity.dim, seen.copy(held))
        main = build(Material(generation, keys, vectors, len(held)), target, self._plan, self._kinds, step)
        manifest = saved.describe(generation, main, self._identity, covered)
        main = replace(main, bytes=saved.size(manifest))
        with self._changing:
            step()
            saved.save(generation, manifest)
            self._tail = self._seen.after(covered)
            self._seen = Seen(main, Marks(len(keys)), self._tail.held).changed(np.concatenate(removed), self._tail.held)
            self._generation, self._covered = generation, covered

    def _generations(self) -> list[Path]:
        """Newest first."""
        return sorted((path for path in self._folder.glob("*-*") if path.is_dir()), reverse=True)

    def _new_generation(self) -> Path:
        numbers = [int(path.name.split("-")[0]) for path in self._generations()]
        return self._folder / f"{max(numbers, default=0) + 1:08d}-{secrets.token_hex(4)}"
