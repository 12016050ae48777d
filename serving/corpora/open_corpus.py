"""An open corpus with its writes and its index.

Writes are committed in groups. The index is updated after each commit.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from models.runtimes.base import Floats
from serving.corpora.filters import ID, Filter, In
from serving.corpora.indexes import KINDS
from serving.corpora.indexes.building import FEWEST, Builder, Plan
from serving.corpora.indexes.live import Generations, LiveIndex
from serving.corpora.indexes.saved import Identity, Read, read
from serving.corpora.ports import Ranking, Store, StoreError
from serving.corpora.search import DEEP
from serving.corpora.values import (
    Blocks,
    Change,
    Content,
    Corpus,
    Document,
    Expiry,
    Keys,
    Passage,
    Patch,
    Span,
    WordOptions,
    Write,
)
from serving.errors import Damaged, NotFound, ServiceError, Stopped
from serving.operations.files import disk_errors
from serving.operations.threads import for_others, uninterrupted, without_waiting

log = logging.getLogger(__name__)


class OpenCorpus:
    """An open corpus. A lock covers both commits and index updates, so the index is updated in the order of commits.

    The thread that has the lock commits all waiting writes. Concurrent uploads therefore share one wait for the disk.
    """

    def __init__(self, store: Store, name: str, indexes: Indexes) -> None:
        self._store = store
        self._name = name
        self._indexes = indexes
        self._lock = threading.RLock()
        self._pending: deque[_Pending] = deque()
        self._gone = False
        self.copying = threading.Lock()
        """Lock for copies of the file, which take long. To replace or drop the file, take this lock before the
        corpus's main lock. Reads and writes then never wait for a copy."""
        self.live: LiveIndex | None = None
        """The open index, or None if it is not open. A corpus has no index until its dimension is known."""
        self.removals = 0
        """Number of writes that removed passages or changed metadata. If this number changes between two reads, the
        results of the reads may not fit together."""
        self.damage: str | None = None
        """If the corpus's file is damaged, the reason why the index can't be opened. Writes are then refused, because
        searches would not find the documents."""

    @contextmanager
    def locked(self) -> Iterator[OpenCorpus]:
        """Yield this corpus, and hold its lock while the `with` block runs.

        Other threads commit no write meanwhile, so an open index contains every committed write.

        Raises:
            NotFound: the corpus was deleted, possibly during the wait for the lock.
        """
        with self._lock, without_waiting():
            if self._gone:
                raise NotFound(f"there is no corpus {self._name!r}")
            yield self

    def write(self, write: Write) -> Change:
        """Commit `write` together with other waiting writes. When this method returns, later searches see the write.

        Raises:
            NotFound: the corpus was deleted.
            Damaged: the index can't be opened, so no search would find the write.
            ServiceError: the store refused the write. See `Store.write`.
        """
        mine = _Pending(write)
        self._pending.append(mine)
        # The write is committed, so a read of the index must not be cancelled any more.
        with self.locked(), uninterrupted():
            if mine.outcome is None:
                self._commit([self._pending.popleft() for _ in range(len(self._pending))])
        if isinstance(mine.outcome, Exception):
            raise mine.outcome
        assert mine.outcome is not None, "see _commit"
        return mine.outcome

    def index(self, beside: Read | None = None) -> LiveIndex | None:
        """Return the index, and open it if necessary. The caller must hold the lock.

        If the dimension of the vectors is not known yet, return None. `beside` has vectors that were already read, so
        that opening takes almost no time.

        Raises:
            Damaged: the file of the corpus is damaged.
            InsufficientStorage, Unhealthy: the disk is full, or fails.
        """
        if self.live is None:
            try:
                corpus = self._store.corpus(self._name)
                if corpus.dim is not None:
                    with for_others():  # a caller with a short deadline must not stop the opening
                        self.live = self._indexes.open(self._store, corpus, beside)
            except Damaged as error:
                self.damage = error.message
                raise
            self.damage = None
        return self.live

    def warm(self, beside: Read | None = None) -> None:
        """Open the index. `beside` has vectors that were already read, so that opening takes almost no time.

        If the index can't be opened, log the error. The next request that needs the index then tries again.

        Raises:
            Stopped: the work was cancelled.
        """
        try:
            with self.locked():
                self.index(beside)
        except Stopped:
            raise
        except ServiceError as error:
            log.error("corpus %r is not served: %s", self._name, error)

    def close(self, *, gone: bool = False, erase: bool = False) -> None:
        """Close the index.

        With `gone`, `locked` raises `NotFound` from now on, because the corpus was deleted or renamed. `erase` also
        deletes the files of the index, if the index is open.
        """
        with self._lock:
            self._gone = self._gone or gone
            self.removals += 1
            live, self.live = self.live, None
            if live is not None:
                with disk_errors(Path("indexes", self._name)):
                    live.close(erase=erase)

    def _commit(self, together: Sequence[_Pending]) -> None:
        """Commit the writes in `together` in one transaction.

        Set the outcome of each write, even on errors, because other threads wait for the outcomes.
        """
        try:
            if self.damage:
                raise Damaged(self.damage)
            written = [pending.write for pending in together]
            outcomes: Sequence[Change | Exception] = self._store.write(self._name, written)
        except Exception as error:
            outcomes = [error] * len(together)
        for pending, outcome in zip(together, outcomes, strict=True):
            pending.outcome = outcome
        for pending in together:
            if isinstance(pending.outcome, Change):
                self._follow(pending.outcome, pending.write)

    def _follow(self, change: Change, write: Write) -> None:
        """Apply a committed write to the index.

        If this fails, close the index. The committed write can't be undone, and the index finds it in the store when it
        is opened again.
        """
        hidden = isinstance(write, Expiry)  # searches did not return expired documents before either
        self.removals += (len(change.removed) > 0 and not hidden) or isinstance(write, Patch)
        if self.live is None or isinstance(write, Patch):
            return
        if isinstance(write, Content) and write.fingerprint != self.live.identity.fingerprint:
            self.close()  # the corpus was empty, and a new encoder needs a new index
            return
        try:
            self.live.change(change.removed, change.added, change.vectors)
        except Exception:
            log.exception("the index of corpus %r could not be updated, so it is opened again", self._name)
            self.close()


@dataclass(eq=False)
class _Pending:
    """A write that waits for its commit, and its outcome after the commit."""

    write: Write
    outcome: Change | Exception | None = None


@dataclass(frozen=True)
class IndexedCorpus:
    """Implementation of `Searchable` with a local store and an index.

    If `where` is given, rankings contain only passages of documents that match it.
    """

    store: Store
    name: str
    index: LiveIndex
    where: Filter | None = None

    def filtered(self, where: Filter) -> IndexedCorpus:
        return replace(self, where=where)

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[Ranking]:
        if self.where is not None:
            return self.index.search(queries, k, self._allowed, exact=exact)
        hidden = self.store.expired(self.name)
        deep = k + len(hidden)
        found = self.index.search(queries, deep, exact=exact or (len(hidden) > 0 and deep > DEEP))
        return [ranking.without(hidden, k) for ranking in found] if len(hidden) else found

    def lexical(self, query: str, k: int, options: WordOptions) -> Ranking:
        return self.store.words(self.name, query, k, self.where, options)

    def searched_fields(self) -> Collection[str]:
        return self.store.corpus(self.name).words.fields or ()

    def passages(self, keys: Sequence[int]) -> dict[int, Passage]:
        return self.store.passages(self.name, keys)

    def documents(self, keys: Sequence[int]) -> dict[int, Document]:
        return self.store.owners(self.name, keys)

    def keys_of(self, ids: Sequence[str]) -> list[int]:
        keys: list[int] = self.store.matching(self.name, In(ID, tuple(ids))).tolist()
        return keys

    def vectors(self, keys: Sequence[int]) -> dict[int, Floats]:
        blocks = self.store.vectors(self.name, keys)
        return {key: row for block, rows in blocks for key, row in zip(block.tolist(), rows, strict=True)}

    def highlights(self, texts: Sequence[str], query: str, options: WordOptions) -> list[list[Span]]:
        return self.store.highlights(self.name, texts, query, options)

    @cached_property
    def _allowed(self) -> Keys | None:
        return None if self.where is None else self.store.matching(self.name, self.where)


# The following class opens indexes. All indexes share one builder.


class Indexes:
    """Opener of indexes. Each index has its own folder in `folder`.

    With `approximate`, the minimum number of vectors for an approximate index is `least` or `FEWEST`, whichever is
    greater.

    Raises:
        StoreError: `gpu` is set, but FAISS can't search on a GPU; the message says why.
    """

    def __init__(
        self, folder: Path, *, approximate: bool = True, gpu: bool = False, threads: int = 1, least: int = Plan.least
    ) -> None:
        self._folder, self._beside = folder, folder / ".beside"
        shutil.rmtree(self._beside, ignore_errors=True)  # files that a killed server has left
        self._plan = Plan(max(least, FEWEST)) if approximate else Plan(kinds=())
        self._kinds = KINDS
        self._threads = threads
        self._builder = Builder()
        if gpu and (reason := self.use_gpu()):
            raise StoreError(f"--index gpu: {reason}")

    def use_gpu(self) -> str | None:
        """Use the first CUDA device for indexes that are opened later. See `Backend.use_gpu`."""
        from serving.corpora.indexes.gpu import GPU_KINDS, trouble

        if reason := trouble():
            return reason
        self._plan = replace(self._plan, kinds=(*GPU_KINDS, *self._plan.kinds))
        self._kinds = {**KINDS, **GPU_KINDS}
        return None

    def read(self, vectors: Blocks) -> Read | None:
        """Read `vectors` in advance, so that `open` is faster when it gets the result as `beside`.

        Return None if there are no vectors.

        Raises:
            Damaged: the file with the vectors is damaged.
            InsufficientStorage, Unhealthy: the disk is full, or fails.
        """
        first = next(vectors, None)
        if first is None:
            return None
        folder = self._beside / secrets.token_hex(8)
        with disk_errors(folder):
            return read(folder, first[1].shape[1], chain([first], vectors))

    def open(self, store: Store, corpus: Corpus, beside: Read | None = None) -> LiveIndex:
        """Open the index of `corpus`, whose dimension must be known.

        `beside` is a result of `read` for this corpus. If it still fits the corpus, the vectors are not read again.

        Raises:
            Damaged: the file of the corpus is damaged.
            InsufficientStorage, Unhealthy: the disk is full, or fails.
        """
        assert corpus.fingerprint is not None and corpus.dim is not None
        identity = Identity(corpus.generation, corpus.fingerprint, corpus.dim)
        folder = self._folder / corpus.name
        with disk_errors(folder):
            return LiveIndex(
                store,
                corpus.name,
                identity,
                self._builder,
                folder=folder,
                target=lambda: store.corpus(corpus.name).wanted_recall,
                threads=self._threads,
                plan=self._plan,
                kinds=self._kinds,
                beside=beside,
            )

    def erase(self, name: str) -> None:
        """Delete the files of an index that is not open. The files need not exist."""
        folder = self._folder / name
        with disk_errors(folder):
            Generations(folder).erase()

    def move(self, name: str, to: str) -> None:
        """Move the files of an index that is not open.

        If the disk fails, log a warning. The index is then built again when it is opened.
        """
        try:
            self.erase(to)
            if (folder := self._folder / name).exists():
                folder.rename(self._folder / to)
        except (OSError, ServiceError) as error:
            log.warning("the index of corpus %r is built again: %s", to, error)

    def close(self) -> None:
        self._builder.close()
