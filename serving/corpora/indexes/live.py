"""The index of a corpus: a built index, marks of removed vectors, and the vectors added after the build."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, perf_counter

import faiss
import numpy as np

from models.bundle.disk import make_folder
from models.runtimes.base import Floats
from serving.corpora.indexes import KINDS, saved
from serving.corpora.indexes.approximate import Hnsw
from serving.corpora.indexes.building import CERTAIN, Builder, BuildInput, Plan, build, held_out, most_queries, tune
from serving.corpora.indexes.exact import ExactIndex
from serving.corpora.indexes.kind import CancelledError, Kind, Pause
from serving.corpora.indexes.saved import Identity, Read, UnfitError, read
from serving.corpora.indexes.state import Approximate, IndexState, Main, Marks, Part, Report, Tuning
from serving.corpora.ports import Ranking, VectorSource
from serving.corpora.values import Keys
from serving.errors import ServiceError
from serving.operations.failpoints import reach

log = logging.getLogger(__name__)
_HNSW = Hnsw()
AGAIN = 60.0
"""Seconds to wait after a failed build before the next build."""


class LiveIndex:
    """The index of a corpus. Only one thread at a time may write. Any number of threads may search without a lock."""

    _seen: IndexState
    _tail: ExactIndex

    def __init__(
        self,
        source: VectorSource,
        name: str,
        identity: Identity,
        builder: Builder,
        *,
        folder: Path,
        target: Callable[[], float],
        threads: int = 1,
        plan: Plan,
        kinds: Mapping[str, Kind] = KINDS,
        beside: Read | None = None,
    ) -> None:
        """Open the index from `beside` or from the files in `folder`, and add the newer vectors in `source`.

        If neither `beside` nor the files belong to `source`, read all vectors from `source`.

        Args:
            folder: the folder of this corpus's index.
            threads: maximum threads of one search.
            beside: vectors of the corpus that were already read.
        """
        self._source, self._name, self._builder = source, name, builder
        self.identity = identity
        """Identity of the vectors. It never changes."""
        self._folder, self._generations = folder, Generations(folder)
        self._target, self._threads, self._plan, self._kinds = target, threads, plan, kinds
        self._changing = threading.Lock()
        """Lock for every change that is visible to searches."""
        self._making = threading.Lock()
        """Lock for builds."""
        self._removed_since: list[Keys] | None = None
        """Keys removed since the running build began. None if no build is running."""
        self._growable = True
        """True if vectors of the tail may move to a growing graph. If such a graph fails, or misses the recall target,
        this is False until the next build."""
        self._building = 0
        """Greatest key in the running build. 0 if no build is running."""
        self._queued = self._growing = False
        self._not_before = 0.0
        self._closed = False
        self._generation: Path | None = None
        """The folder of the main part."""
        self._covered = 0
        """Greatest key up to which the main part contains all vectors of the source."""
        self._open(beside)
        self.reconsider()

    @property
    def kind(self) -> str:
        return self._seen.foremost.kind

    def __len__(self) -> int:
        return self._seen.size

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the index occupies, without its memory-mapped files."""
        return self._tail.nbytes + self._seen.built + sum(part.main.bytes for part in self._seen.parts[1:])

    @property
    def report(self) -> Report:
        building = self._queued or self._making.locked()  # before `_seen`, so that "ready" is about the built index
        seen = self._seen
        main, tuning = seen.foremost, seen.foremost.tuning
        parameters: dict[str, int] = {}
        if main.approximate:
            knob = main.approximate.kind.knob
            parameters = {**main.approximate.parameters, **({knob: tuning.efforts[1.0]} if knob else {})}
        return Report(
            kind=main.kind,
            parameters=parameters,
            target=self._target(),
            recall=min((part.main.tuning.recalls[1.0] for part in seen.parts if part.main.approximate), default=1.0),
            recall_by_filter={f"{share:g}": recall for share, recall in tuning.recalls.items() if share < 1},
            queries=tuning.queries if main.approximate else 0,
            build_seconds=main.build_seconds,
            bytes=self.nbytes + seen.main.bytes,
            main=seen.built,
            tail=seen.tail_count,
            dead=seen.dead,
            state="building" if building else "ready",
            reason=main.reason,
        )

    def change(self, removed: Keys, added: Keys, vectors: Floats) -> None:
        """Remove and add vectors in one step. A search uses the state either before or after both changes.

        `vectors` (N, D) belong to the N `added` keys. `removed` keys that the index does not contain are ignored. Each
        added key must be greater than every key that the index ever contained.
        """
        with self._changing:
            self._tail.remove(removed)
            if len(added):
                self._tail.add(added, vectors)
            if self._removed_since is not None:
                self._removed_since.append(removed)
            self._seen = self._seen.changed(removed, self._tail.rows)
        self.reconsider()

    def search(self, queries: Floats, k: int, allowed: Keys | None = None, *, exact: bool = False) -> list[Ranking]:
        """Return the best `k` vectors, or fewer if fewer exist, for each row of the unit vectors `queries` (Q, D).

        If `allowed` is given, only these keys are searched. They must be sorted. Without `exact`, some of the best
        vectors may be missing, as far as the recall target allows. Other vectors replace them, so each ranking has full
        length.
        """
        seen = self._seen
        found = seen.search(queries, k, allowed, exact=exact, threads=self._threads)
        if seen.main.fell_back:
            self.reconsider()
        return found

    def build_now(self) -> Report:
        """Build, measure and save a new index, and use it for searches. Return the report about the new index."""
        with self._making:
            self._build(lambda: None)
        return self.report

    def close(self, *, erase: bool = False) -> None:
        """Close the index and cancel a running build.

        `erase` also removes the files of the index. A running build removes its own files.
        """
        with self._changing:
            self._closed = True
        if erase:
            self._generations.erase()

    def reconsider(self) -> None:
        """Queue a build if one is due, for example after the recall target has changed.

        Also queue the growth of a graph if the tail has become too long.
        """
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
        if seen.main.fell_back:
            return True
        if self._plan.kinds and len(seen.main.keys) >= self._plan.least:
            target = self._target()
            if seen.main.tuning.target != target or (seen.main.approximate and target >= CERTAIN):
                return True
        return self._plan.wanted(seen.built, seen.dead, seen.fresh)

    def _wants_growth(self) -> bool:
        """Return whether vectors should move from the tail, which is searched exactly, to a growing graph.

        If the main part is also searched exactly, return False.
        """
        seen = self._seen
        if self._closed or not self._growable or (len(seen.main.keys) and seen.main.approximate is None):
            return False
        return self._plan.outgrown(seen.built, seen.tail_count) and self._target() < CERTAIN

    def _build_behind(self, pause: Pause) -> None:
        try:
            with self._making:
                if self._wants_build():  # check again, because an earlier build may have made this one unnecessary
                    self._build(pause)
        except CancelledError:
            return
        except Exception:
            self._not_before = monotonic() + AGAIN
            if not self._closed:
                log.exception("could not build a new index in %s; the current index stays in use", self._folder)
        finally:
            self._queued = False
        self.reconsider()

    def _grow_behind(self, pause: Pause) -> None:
        try:
            if self._wants_growth():  # check again, because an earlier build may have made the graph unnecessary
                self._grow(self._step(pause))
        except CancelledError:
            return
        except (RuntimeError, MemoryError) as error:  # FAISS raises its own errors as RuntimeError
            self._growable = False
            log.warning("the tail of the index in %s is searched exactly until the next build: %s", self._folder, error)
        finally:
            self._growing = False
        self.reconsider()

    def _grow(self, step: Pause) -> None:
        """Move the oldest vectors of the tail to the growing graph, an approximate index in memory.

        If a new index is being built and will contain all vectors of the growing graph, move the oldest vectors of the
        tail to a new growing graph instead.
        """
        with self._changing:
            seen, building = self._seen, self._building
        live = np.flatnonzero(seen.tail.live)
        held = most_queries(len(live))
        oldest, newest = live[: len(live) - held][: self._plan.least], live[len(live) - held :]
        before = seen.parts[-1].main if len(seen.parts) > 1 and seen.last_grown > building else None
        keys, queries = seen.tail.keys[oldest], seen.tail.vectors[newest]
        main = grown(before, keys, seen.tail.vectors[oldest], queries=queries, target=self._target(), pause=step)
        with self._changing:
            self._check_open()
            self._tail = self._seen.after(int(keys[-1]))
            self._seen = self._seen.grown(before, main, self._tail.rows)

    def _step(self, pause: Pause) -> Pause:
        def step() -> None:
            pause()
            self._check_open()

        return step

    def _check_open(self) -> None:
        if self._closed:
            raise CancelledError

    def _build(self, pause: Pause) -> None:
        """Build, save and use a new index. The caller must have locked `_making`."""
        step = self._step(pause)
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
        graves = np.setdiff1d(self._source.tombstones(self._name, self._covered), self._seen.main.keys)
        with self._changing:
            self._check_open()  # after `close`, the folder may belong to another corpus with other tombstones
            self._source.bury(self._name, graves)

    def _make(self, generation: Path, step: Pause) -> None:
        with self._changing:
            seen, removed = self._seen, [np.empty(0, np.int64)]
            self._removed_since = removed
            covered = self._building = max(self._covered, seen.last)
        reach("index.compaction")
        if seen.main.fell_back:  # the new index would otherwise use the failed device again
            self._plan = self._plan.without(seen.main.kind)
        count, target = seen.size, self._target()
        held = held_out(count if count >= self._plan.least else 0)
        keys, vectors = saved.write_vectors(generation, self.identity.dim, seen.copy(held))
        main = build(BuildInput(generation, keys, vectors, len(held)), target, self._plan, self._kinds, step)
        described = saved.describe(generation, main)
        main = replace(main, bytes=saved.size(described))
        with self._changing:
            self._check_open()
            saved.save(generation, described, self.identity, covered)
            self._tail = self._seen.after(covered)
            rebuilt = self._seen.rebuilt(main, covered, self._tail.rows)
            self._seen = rebuilt.changed(np.concatenate(removed), self._tail.rows)
            self._generation, self._covered, self._growable = generation, covered, True

    # The following methods open the index: from vectors that were already read, from its folder, or from its source.

    def _open(self, beside: Read | None) -> None:
        """Open the index from vectors that were already read, from its folder, or from its source.

        `beside` has the vectors that were already read. If it is None or does not belong to the source, open the newest
        valid build in the folder, and delete all other builds. If no build is valid, read all vectors of the source. A
        build is not valid if it is damaged, was written by another version of FAISS, or does not fit the corpus, its
        encoder or the server's options.
        """
        if not ((beside and self._taken(beside)) or self._kept()):
            self._read_anew()

    def _taken(self, beside: Read) -> bool:
        """Open the index from `beside`. Return False if `beside` does not belong to the current source.

        Vectors of `beside` whose keys are no longer in the source are removed. The source's records of deleted keys,
        the tombstones, are not sufficient to find these vectors, because the previous index may have deleted some.
        """
        held = np.concatenate([beside.main.keys, beside.tail.rows.keys])
        try:
            gone = np.setdiff1d(held, self._source.keys(self._name), assume_unique=True)
            self._catch_up(beside.main, beside.tail, beside.last, gone)
        except UnfitError as error:
            log.warning("%s: the vectors that were already read are read again: %s", self._generations.folder, error)
            return False
        if beside.folder is not None:
            make_folder(self._generations.folder)
            generation = beside.folder.rename(self._generations.following())
            saved.save(generation, beside.described, self.identity, beside.last)
            self._generation, self._covered = generation, beside.last
        return True

    def _kept(self) -> bool:
        """Open the newest valid build, and delete all other builds. Return False if there is no valid build."""
        for generation in self._generations.newest_first():
            if self._generation is None and (generation / saved.MANIFEST).exists():
                try:
                    main, covered = saved.load(generation, self.identity, self._kinds, self._threads)
                    kind, count = main.approximate and main.approximate.kind.name, len(main.keys)
                    if kind and (kind not in self._plan.kinds or count < self._plan.least):
                        raise UnfitError(
                            f"the index is {kind}, but the server's options demand exact search for {count} vectors"
                        )
                    gone = self._source.tombstones(self._name, covered)
                    self._catch_up(main, ExactIndex(self.identity.dim), covered, gone)
                    self._generation, self._covered = generation, covered
                    continue
                except UnfitError as error:
                    log.warning("index %s is built again from the store: %s", generation, error)
            saved.remove(generation)  # delete unfinished and replaced builds, too
        return self._generation is not None

    def _catch_up(self, main: Main, tail: ExactIndex, last: int, gone: Keys) -> None:
        """Make `main` and `tail` the state of the index, without the removed keys `gone`.

        The tail also gets the source's vectors after the key `last`.

        Raises:
            UnfitError: `main` and `tail` do not belong to the source.
        """
        if last > self._source.last_key(self._name):
            raise UnfitError("the index contains keys that the store has never assigned")
        part = Part(main, Marks(len(main.keys))).without(gone)
        tail.remove(gone)
        for keys, vectors in self._source.vectors(self._name, after=last):
            tail.add(keys, vectors)
        seen = IndexState((part,), tail.rows)
        if seen.size != (there := self._source.size(self._name).passages):
            raise UnfitError(f"the index has {seen.size} vectors, but the store has {there}")
        self._seen, self._tail = seen, tail

    def _read_anew(self) -> None:
        with suppress(ServiceError):  # if the disk fails or is full, the tombstones stay until the next opening
            # No index on disk contains these keys any more.
            self._source.bury(self._name, self._source.tombstones(self._name, self._source.last_key(self._name)))
        found = read(self._generations.following(), self.identity.dim, self._source.vectors(self._name))
        self._seen = IndexState((Part(found.main, Marks(len(found.main.keys))),), found.tail.rows)
        self._tail = found.tail
        if found.folder is not None:
            saved.save(found.folder, found.described, self.identity, found.last)
            self._generation, self._covered = found.folder, found.last


@dataclass(frozen=True)
class Generations:
    """The numbered builds of a corpus's index, each in a subfolder of `folder`."""

    folder: Path

    def newest_first(self) -> list[Path]:
        """Return the folders of all builds, newest first. Incomplete builds are included."""
        return sorted((path for path in self.folder.glob("*-*") if path.is_dir()), reverse=True)

    def following(self) -> Path:
        numbers = [int(path.name.split("-")[0]) for path in self.newest_first()]
        return self.folder / f"{max(numbers, default=0) + 1:08d}-{secrets.token_hex(4)}"

    def erase(self) -> None:
        """Remove all builds, and also the folder if it is then empty."""
        for generation in self.newest_first():
            saved.remove(generation)
        with suppress(OSError):  # not there, or not empty
            self.folder.rmdir()


# A growing graph contains the oldest vectors of a long tail, until a build includes the graph and the tail.


def grown(before: Main | None, keys: Keys, vectors: Floats, *, queries: Floats, target: float, pause: Pause) -> Main:
    """Return a graph with the vectors of `before` and the N new `vectors` (N, D), which have the N `keys`.

    `before` does not change. The search effort is chosen so that the recall reaches `target`. The recall is measured
    with `queries` (Q, D), which are recent vectors that are not in the graph.

    Raises:
        BuildError: the recall does not certainly reach `target` at any search effort (see `building.CONFIDENCE`).
    """
    begin = perf_counter()
    faiss.omp_set_num_threads(1)
    if before is None or before.approximate is None:
        parameters = _HNSW.parameters(*vectors.shape)
        index = _HNSW.build(vectors, parameters, pause)
    else:
        parameters = before.approximate.parameters
        index = _HNSW.extended(before.approximate.built, vectors, pause)
        keys = np.concatenate([before.keys, keys])
    built = Approximate(_HNSW, parameters, index)
    size = _HNSW.memory(len(keys), vectors.shape[1])
    main = Main(keys, _stored(index), built, Tuning(target), bytes=size, holds_queries=False)
    tuning = tune(main, queries, target, pause)
    seconds = perf_counter() - begin + (before.build_seconds if before else 0.0)
    return replace(main, tuning=tuning, build_seconds=seconds)


def _stored(index: faiss.Index) -> Floats:
    """Return the (N, D) vectors in the graph, without a copy.

    The graph owns the memory of the vectors, so `Main` keeps a reference to the graph.
    """
    storage = faiss.downcast_index(index.storage)
    vectors: Floats = faiss.rev_swig_ptr(storage.get_xb(), index.ntotal * index.d).reshape(index.ntotal, index.d)
    return vectors
