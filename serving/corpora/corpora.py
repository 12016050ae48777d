"""The corpora of a local store, with indexes in memory.

The store is the source of truth. An index can be rebuilt from the store.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import sleep, time
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from models.bundle.bundle import Manifest
from models.runtimes.base import Floats
from serving.corpora.arranging import place_values, read_place, written_place
from serving.corpora.backend import Backend, Description, DocumentCursor, DocumentPage, by_document, check_generation
from serving.corpora.filters import ID, Filter, In, with_id
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.indexes.saved import Read
from serving.corpora.indexes.state import Report
from serving.corpora.maps import Placed, Sample, Unplaced, placed, sampled, unplaced
from serving.corpora.open_corpus import IndexedCorpus, Indexes, OpenCorpus
from serving.corpora.ports import IndexSize, Stop, Store, never
from serving.corpora.search import READ_AT_ONCE, Hit, Query, SearchOptions, SearchResult, find
from serving.corpora.values import (
    Blocks,
    Changes,
    Content,
    Corpus,
    Expiry,
    OwnVectors,
    Passage,
    PassageKey,
    Patch,
    Place,
    Removal,
    Size,
    Sort,
)
from serving.errors import Conflict, Damaged, Invalid, NotFound, ServiceError, Stopped
from serving.operations.bounds import BOUNDS, Bounds
from serving.operations.clock import now
from serving.operations.threads import without_waiting

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
REMOVED_TOGETHER = 500
"""Maximum number of documents that one commit removes or patches. Other reads and writes run between two commits."""
NAP_SECONDS = 0.001
"""Pause between two commits of a long deletion or change. Without the pause, the thread that has released the lock of
the corpus often gets the lock again before a waiting thread wakes up."""
GIVEN_BACK_FROM = 1 << 20
"""Value of `least` in `Store.give_back` after a deletion, in bytes. Returning less space is usually not worth another
commit."""
MAX_DIGITS = 18
"""Maximum digits of a cursor's key."""


def _of_store(method: Callable[Concatenate[Store, P], T]) -> Callable[Concatenate[Corpora, P], T]:
    """Return a method of `Corpora` that calls `method` of the store."""

    def of_store(corpora: Corpora, /, *arguments: P.args, **options: P.kwargs) -> T:
        found: T = getattr(corpora._store, method.__name__)(*arguments, **options)
        return found

    return of_store


class Corpora(Backend):
    """The corpora of a store, with search. `Backend` describes the methods.

    Methods block, so the service calls them from threads.
    """

    def __init__(self, store: Store, indexes: Indexes) -> None:
        self._store = store
        self._indexes = indexes
        self._open = {name: OpenCorpus(store, name, indexes) for name in store.names()}
        self._naming = threading.Lock()
        """Lock for all changes of `_open`."""

    def named(self, name: str) -> OpenCorpus:
        """Return the open corpus of this name, or raise `NotFound`."""
        if corpus := self._open.get(name):
            return corpus
        raise NotFound(f"there is no corpus {name!r}")

    names = _of_store(Store.names)
    corpus = _of_store(Store.described)
    document = _of_store(Store.document)
    embedded = _of_store(Store.embedded)
    unmatched = _of_store(Store.unmatched)
    facets = _of_store(Store.facets)
    counts = _of_store(Store.counts)
    keep_map = _of_store(Store.keep_map)
    accept = _of_store(Store.accept)
    accepted = _of_store(Store.accepted)
    release = _of_store(Store.release)
    stale = _of_store(Store.stale)
    verify = _of_store(Store.verify)

    def use_gpu(self) -> str | None:
        return self._indexes.use_gpu()

    def warm(self) -> None:
        for corpus in list(self._open.values()):
            corpus.warm()

    def create(self, corpus: Corpus, encoder: Manifest | OwnVectors | None = None, passages: int = 0) -> bool:  # noqa: ARG002
        corpus = replace(corpus, created=time())
        if encoder:
            corpus = replace(corpus, fingerprint=encoder.fingerprint, dim=encoder.dim)
        created = self._create(corpus)
        if corpus.recall_target is not None:
            with self.named(corpus.name).locked() as opened:
                if (live := opened.index()) is not None:
                    live.reconsider()
        return created

    def _create(self, corpus: Corpus) -> bool:
        name = corpus.name
        if name in self._open:
            with suppress(NotFound):  # the corpus was deleted meanwhile
                self._store.describe(corpus)
                return False
        with self._naming:
            created = self._store.create(corpus)
            if created:
                self._open[name] = OpenCorpus(self._store, name, self._indexes)
        return created

    def drop(self, name: str) -> None:
        corpus = self.named(name)
        with corpus.copying, corpus.locked(), self._naming:
            corpus.close(erase=True)  # close the index first, because a later corpus of the same name must not find it
            self._indexes.erase(name)
            try:
                self._store.drop(name)
            finally:
                if name not in self._store.names():
                    corpus.close(gone=True)
                    del self._open[name]

    def rename(self, name: str, to: str) -> None:
        """Rename a corpus, and move the files of its index. Writes and searches wait meanwhile."""
        corpus = self.named(name)
        with corpus.copying, corpus.locked(), self._naming:
            if to in self._open:
                raise Conflict(f"there is already a corpus {to!r}: delete it first, or use an alias")
            corpus.close()
            self._store.rename(name, to)
            self._indexes.move(name, to)
            corpus.close(gone=True)
            self._open[to] = OpenCorpus(self._store, to, self._indexes)
            del self._open[name]

    def description(self, name: str) -> Description:
        live = self.named(name).live
        if live is None:
            with self.named(name).locked() as corpus:
                live = corpus.index()
        if damage := self._store.damage(name):
            raise Damaged(damage)
        return Description(*self.corpus(name), None if live is None else live.report)

    def build_now(self, name: str) -> Report | None:
        with self.named(name).locked() as corpus:
            live = corpus.index()
        return None if live is None else live.build_now()

    def index_sizes(self) -> dict[str, IndexSize]:
        return {
            name: IndexSize(0, 0) if (live := corpus.live) is None else IndexSize(len(live), live.nbytes)
            for name, corpus in list(self._open.items())
        }

    def put(self, name: str, content: Content) -> None:
        """Implement `Backend.put`. Either all documents are stored, or none."""
        self.named(name).write(content)

    def delete(self, name: str, document: str) -> None:
        self._store.document(name, document)
        if not len(self.named(name).write(Removal([document])).removed):
            raise NotFound(f"corpus {name!r} has no document {document!r}")
        self._store.give_back(name, least=GIVEN_BACK_FROM)

    def delete_where(self, name: str, where: Filter, before_commit: Callable[[], None] = lambda: None) -> int:
        removed = self._in_commits(name, where, before_commit, Removal)
        if removed:
            self._store.give_back(name, least=GIVEN_BACK_FROM)
        return removed

    def patch(
        self,
        name: str,
        which: Sequence[str] | Filter,
        changes: Changes,
        bounds: Bounds = BOUNDS,
        before_commit: Callable[[], None] = lambda: None,
    ) -> int:
        where: Filter = In(ID, tuple(which)) if isinstance(which, Sequence) else which
        return self._in_commits(name, where, before_commit, lambda ids: Patch(ids, changes, bounds))

    def _in_commits(
        self, name: str, where: Filter, before_commit: Callable[[], None], write: Callable[[list[str]], Removal | Patch]
    ) -> int:
        """Delete or change the documents that match `where`, in several commits. Return the number of these documents.

        `write` takes the ids for one commit, and returns the deletion or change of these documents. See
        `Backend.delete_where` for `before_commit`.
        """
        before_commit()
        corpus, written = self.named(name), 0
        found = self._store.ids_matching(name, where)
        for start in range(0, len(found), REMOVED_TOGETHER):
            if start:
                sleep(NAP_SECONDS)
            with corpus.locked():
                before_commit()
                ids = [id for id in found[start : start + REMOVED_TOGETHER] if self._matches(name, id, where)]
                corpus.write(write(ids))
            written += len(ids)
        return written

    def remove_expired(self) -> None:
        for name in self.names():
            try:
                if len(self._store.expired(name)):
                    self._remove_expired(name)
            except Stopped:
                raise
            except NotFound:  # dropped or renamed since its name was listed
                continue
            except ServiceError as error:
                log.warning("corpus %r keeps expired documents: %s", name, error)

    def _remove_expired(self, name: str) -> None:
        corpus = self.named(name)
        while len(self._store.expired(name)):
            corpus.write(Expiry(now(), REMOVED_TOGETHER))
            sleep(NAP_SECONDS)
        self._store.give_back(name, least=GIVEN_BACK_FROM)

    def _matches(self, name: str, document: str, where: Filter) -> bool:
        """Return whether the document with the id `document` exists and its current metadata match `where`."""
        with suppress(NotFound):
            return where.matches(with_id(self._store.document(name, document).metadata, document))
        return False

    def page(
        self,
        name: str,
        after: DocumentCursor | None,
        limit: int,
        where: Filter | None = None,
        sort: Sequence[Sort] = (),
    ) -> DocumentPage:
        place = read_place(after.key, sort, int) if after and sort else None
        position = _key(after) if after and not sort else 0
        generation = self._store.corpus(name).generation
        if after:
            check_generation(after.generation, generation)
        if sort and limit:
            rows, more, total = self._store.sorted_page(name, sort, place, limit, where)
        else:
            rows, more, total = self._store.page(name, position, limit, where)
        following = None
        if rows and more:
            number, last = rows[-1]
            key = written_place(Place(place_values(last, sort), number), sort) if sort else str(number)
            following = DocumentCursor(generation, key)
        warnings = self.unmatched(name, where) if where else ()
        return DocumentPage([document for _, document in rows], following, total, warnings)

    def contents(self, name: str) -> Iterator[Content]:
        return by_document(self._passages(name), self._store.corpus(name).fingerprint or "")

    def _passages(self, name: str) -> Iterator[tuple[Passage, Floats]]:
        for keys, vectors in self._store.vectors(name):
            for start in range(0, len(keys), READ_AT_ONCE):
                some = slice(start, start + READ_AT_ONCE)
                found = self._store.passages(name, keys[some].tolist())
                pairs = zip(keys[some].tolist(), vectors[some], strict=True)
                yield from ((found[key], row) for key, row in pairs if key in found)  # other passages have expired

    def sample(self, name: str, size: int, field: str | None) -> Sample:
        return sampled(self._store, name, size, field)

    def unplaced(self, name: str) -> Unplaced:
        return unplaced(self._store, name)

    def placed(self, name: str, size: int, field: str | None) -> Placed | None:
        return placed(self._store, name, size, field)

    def search(
        self, name: str, queries: Sequence[Query], options: SearchOptions, fingerprint: str | None = None
    ) -> SearchResult:
        with self.named(name).locked() as corpus:
            index, removals = self._searched_index(name, corpus, queries, fingerprint), corpus.removals
            generation = self._generation(name, index, options)
        failure = None
        try:
            found = self._find(name, index, queries, options)
        except Exception as error:  # a concurrent change may be the cause: other dimensions, or a closed index
            failure = error
        with self.named(name).locked() as now:
            if now is not corpus or now.removals != removals:
                # Repeat the search under the lock, because it may have missed a document that was replaced meanwhile.
                index = self._searched_index(name, now, queries, fingerprint)
                generation = self._generation(name, index, options)
                found = self._find(name, index, queries, options)
            elif failure:
                raise failure
        kind = "exact" if index is None or options.exact else index.kind
        warnings = self.unmatched(name, options.where) if options.where else ()
        return SearchResult(found, generation, None if options.mode == "lexical" else kind, warnings=warnings)

    def index_fingerprint(self, name: str) -> str | None:
        live = self.named(name).live
        return None if live is None else live.identity.fingerprint

    def refresh(self, name: str, fingerprint: str, keys: Sequence[PassageKey], vectors: Floats) -> None:
        self._store.refresh(name, fingerprint, np.array(keys, dtype=np.int64), vectors)

    def read_fresh(self, name: str) -> Read | None:
        return self._indexes.read(self._store.fresh(name))

    def swap(self, name: str, fingerprint: str, beside: Read | None = None) -> bool:
        """Implement `Backend.swap`.

        `beside` has the new vectors as `read_fresh` has read them. The new index starts with these vectors, and catches
        up with writes since then.
        """
        with self.named(name).locked() as corpus:
            if self._store.corpus(name).fingerprint == fingerprint:
                return True
            if not self._store.swap(name, fingerprint):
                return False
            corpus.close(erase=True)
            corpus.warm(beside)
        self._store.give_back(name)
        return True

    def copy(self, name: str, to: Path, stop: Stop = never) -> tuple[Corpus, Size]:
        with self.named(name).copying:
            return self._store.copy(name, to, stop)

    def adopt(self, name: str, file: Path, stop: Stop = never, bounds: Bounds = BOUNDS) -> None:
        self._store.adopt(name, file, partial(self._replaced, name, stop), stop, bounds)

    def close(self) -> None:
        for corpus in self._open.values():
            corpus.close()
        self._indexes.close()
        self._store.close()

    @contextmanager
    def _replaced(self, name: str, stop: Stop, vectors: Blocks) -> Iterator[None]:
        """Lock a corpus while the `with` block replaces its file, and then open the index of the new file.

        `vectors` are the vectors of the new file. They are read before the corpus is locked. Writes and searches wait
        while the corpus is locked, and then continue with the new corpus.

        Raises:
            Conflict, NotFound: the corpus was created or deleted while the vectors were read.
            InsufficientStorage, Unhealthy: the disk is full, or fails.
            Stopped: `stop` returned True before the file was replaced.
        """
        with ExitStack() as held:
            if beside := self._indexes.read(vectors):
                held.callback(beside.discard)
            before = self._open.get(name)
            if before:
                held.enter_context(before.copying)
                held.enter_context(before.locked())
            held.enter_context(self._naming)
            held.enter_context(without_waiting())
            if stop():
                raise Stopped(f"the restore was cancelled, so corpus {name!r} is not replaced")
            if self._open.get(name) is not before:
                raise Conflict(f"corpus {name!r} was created while it was being restored: restore it again")
            if before:
                before.close(erase=True)  # close the index first, because the restored corpus must not find it
                self._indexes.erase(name)
            yield
            opened = before or OpenCorpus(self._store, name, self._indexes)
            held.enter_context(opened.locked())  # before other threads find the corpus, and write or open its index
            opened.damage = None
            self._open[name] = opened
            opened.warm(beside)

    def _find(
        self, name: str, index: LiveIndex | None, queries: Sequence[Query], options: SearchOptions
    ) -> list[list[Hit]]:
        """Return the hits of each query. If `index` is None, the corpus has no vectors, and no query has hits."""
        return (
            [[] for _ in queries] if index is None else find(IndexedCorpus(self._store, name, index), queries, options)
        )

    def _searched_index(
        self, name: str, corpus: OpenCorpus, queries: Sequence[Query], fingerprint: str | None
    ) -> LiveIndex | None:
        """Return the index to search, or None if the corpus has no vectors.

        Raises:
            Conflict: the corpus was not embedded by the encoder `fingerprint`, which computed the query vectors.
            Invalid: the query vectors have a wrong dimension.
        """
        index = corpus.index()
        if index is None or (fingerprint is not None and index.identity.fingerprint != fingerprint):
            if fingerprint is not None and self.corpus(name)[1].documents:
                self.encoder(name, [fingerprint])
            return None
        dim = index.identity.dim
        wrong = next((q.vector for q in queries if q.vector is not None and len(q.vector) != dim), None)
        if wrong is not None:
            raise Invalid(f"{len(wrong)} numbers, but corpus {name!r} has {dim} dimensions", field="vector")
        return index

    def _generation(self, name: str, index: LiveIndex | None, options: SearchOptions) -> str:
        """Return the generation of `index` or, if it is None, of the corpus (see `Corpus.generation`).

        Raises:
            Invalid: the cursor in `options` is from another generation.
        """
        generation = self._store.corpus(name).generation if index is None else index.identity.generation
        if options.after:
            check_generation(options.after.generation, generation)
        return generation


def _key(after: DocumentCursor) -> int:
    if not (after.key.isascii() and after.key.isdecimal() and len(after.key) <= MAX_DIGITS):
        raise Invalid("not a cursor of this server", field="cursor")
    return int(after.key)
