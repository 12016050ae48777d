"""All corpora of a store, with their indexes. The store is the source of truth; each index is a cache of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from models.bundle import Manifest
from serving.bounds import BOUNDS, Bounds
from serving.corpora.description import Description, encoder
from serving.corpora.finding import Found, Query, Wanted
from serving.corpora.open_corpora import OpenCorpora
from serving.corpora.opening import Indexes
from serving.corpora.pages import Listed, Seen, check_generation
from serving.corpora.sampling import Sample, sampled
from serving.corpora.searching import search
from serving.errors import NotFound, ServiceError, Stopped
from serving.filters import Filter, with_id
from serving.indexes.reading import Read
from serving.indexes.report import Report
from serving.ports import (
    Chunking,
    Content,
    Corpus,
    Document,
    Facets,
    Held,
    IndexSize,
    Removal,
    Size,
    Stemming,
    Stop,
    Store,
    never,
)
from serving.stores.blocks import blocks

log = logging.getLogger(__name__)
REMOVED_TOGETHER = 500
"""Documents removed per commit. Other reads and writes run between two commits."""
GIVEN_BACK_FROM = 1 << 20
"""Minimum bytes freed by deletions that are returned to the disk, which takes another commit."""


class Corpora:
    """The corpora of a store, searchable. Methods block, so the service calls them from threads.

    A write that returned is committed, and every search that starts later sees it.
    """

    def __init__(self, store: Store, indexes: Indexes) -> None:
        self._store = store
        self._indexes = indexes
        self._open = OpenCorpora(store, indexes)

    def names(self) -> list[str]:
        return self._store.names()

    def warm(self) -> None:
        """Open every index before the first search.

        A corpus that can't be read is skipped.
        """
        for name in self.names():
            try:
                with self._open.locked(name) as corpus:
                    corpus.index()
            except Stopped:
                raise
            except ServiceError as error:
                log.error("corpus %r is not served: %s", name, error)

    def create(
        self,
        name: str,
        *,
        description: str | None = None,
        recall_target: float | None = None,
        stemming: Stemming | None = None,
        encoder: Manifest | None = None,
    ) -> bool:
        """Create an empty corpus, or update an existing one; return whether it was created.

        A corpus that has no encoder yet is bound to `encoder`. Without `encoder`, its first document binds it.

        Raises:
            Conflict: the corpus exists and has a different encoder, or has documents indexed with different stemming.
        """
        corpus = Corpus(name, description, recall_target, created=time.time(), stemming=stemming)
        created = self._open.create(corpus, encoder)
        if recall_target is not None:
            self._reconsider(name)
        return created

    def drop(self, name: str) -> None:
        self._open.drop(name)

    def corpus(self, name: str) -> tuple[Corpus, Size]:
        return self._store.described(name)

    def listing(self) -> list[tuple[Corpus, Size]]:
        """Return every corpus and its size, by name. Dropped and damaged corpora are skipped."""
        found = []
        for name in self.names():
            with suppress(ServiceError):  # dropped since its name was listed, or damaged
                found.append(self.corpus(name))
        return found

    def description(self, name: str) -> Description:
        live = self._open.named(name).live
        if live is None:
            with self._open.locked(name) as corpus:
                live = corpus.index()
        return Description(*self.corpus(name), None if live is None else live.report)

    def descriptions(self, names: Iterable[str]) -> list[Description]:
        """Return the descriptions of these corpora, except those dropped meanwhile."""
        found = []
        for name in names:
            try:
                found.append(self.description(name))
            except NotFound:  # dropped since its name was listed
                continue
            except Stopped:
                raise
            except ServiceError as error:
                found.append(Description(Corpus(name), Size(0, 0, 0), None, error.message))
        return found

    def build_now(self, name: str) -> Report | None:
        """Build the index that suits the corpus's size, and wait for it."""
        with self._open.locked(name) as corpus:
            live = corpus.index()
        return None if live is None else live.build_now()

    def index_sizes(self) -> dict[str, IndexSize]:
        """Return the size of every corpus's index, without reading from the store."""
        return self._open.index_sizes()

    def put(self, name: str, content: Content) -> None:
        """Add documents, replacing those with the same id. Either all are stored or none.

        Raises:
            Conflict: the corpus contains vectors of a different bundle.
        """
        self._open.named(name).write(content)

    def delete(self, name: str, document: str) -> None:
        """Remove one document by its id.

        Raises:
            NotFound: there is no such document.
        """
        self._store.document(name, document)
        if not len(self._open.named(name).write(Removal([document])).removed):
            raise NotFound(f"corpus {name!r} has no document {document!r}")
        self._store.give_back(name, least=GIVEN_BACK_FROM)

    def delete_where(self, name: str, where: Filter, still: Callable[[], None] = lambda: None) -> int:
        """Remove every document whose metadata match, and return their number.

        Other reads and writes run between two commits. `still` is called before each commit, and prevents the commit by
        raising an exception.
        """
        still()
        corpus, removed = self._open.named(name), 0
        for block in blocks(self._store.ids_matching(name, where), REMOVED_TOGETHER):
            with corpus.locked():
                still()
                ids = [id for id in block if self._matches(name, id, where)]
                corpus.write(Removal(ids))
            removed += len(ids)
        if removed:
            self._store.give_back(name, least=GIVEN_BACK_FROM)
        return removed

    def _matches(self, name: str, document: str, where: Filter) -> bool:
        """Return whether the document matches now. It may have been replaced since it was found."""
        with suppress(NotFound):
            return where.matches(with_id(self._store.document(name, document).metadata, document))
        return False

    def unmatched(self, name: str, where: Filter) -> list[str]:
        return self._store.unmatched(name, where)

    def embedded(
        self, name: str, texts: Sequence[str], chunking: Chunking | None, fingerprint: str
    ) -> list[Held | None]:
        return self._store.embedded(name, texts, chunking, fingerprint)

    def document(self, name: str, document: str) -> Document:
        return self._store.document(name, document)

    def page(self, name: str, after: Seen | None, limit: int, where: Filter | None = None) -> Listed:
        """Return a page of documents, see `Store.page`. With `limit` 0, it only counts them.

        Raises:
            Invalid: `after` belongs to another generation of the corpus.
        """
        generation = self._store.corpus(name).generation
        if after:
            check_generation(after.generation, generation)
        rows, more, total = self._store.page(name, after.key if after else 0, limit, where)
        following = Seen(generation, rows[-1][0]) if rows and more else None
        warnings = self.unmatched(name, where) if where else ()
        return Listed([document for _, document in rows], following, total, warnings)

    def facets(self, name: str, values: int) -> Facets:
        return self._store.facets(name, values)

    def sample(self, name: str, size: int, field: str | None) -> Sample:
        return sampled(self._store, name, size, field)

    def search(self, name: str, queries: Sequence[Query], wanted: Wanted, fingerprint: str | None = None) -> Found:
        found = search(self._store, self._open, name, queries, wanted, fingerprint=fingerprint)
        return replace(found, warnings=self.unmatched(name, wanted.where)) if wanted.where else found

    def encoder(self, name: str, served: Sequence[str]) -> str:
        return encoder(*self.corpus(name), served)

    def stale(self, name: str, fingerprint: str, limit: int) -> list[tuple[int, str]]:
        return self._store.stale(name, fingerprint, limit)

    def refresh(self, name: str, fingerprint: str, keys: Sequence[int], vectors: np.ndarray) -> None:
        self._store.refresh(name, fingerprint, np.array(keys, dtype=np.int64), vectors)

    def read_fresh(self, name: str) -> Read | None:
        """Read the vectors of a re-embedding into a partial index, for `swap`.

        The caller must discard the result at the end, whether or not it was used.
        """
        return self._indexes.read(self._store.fresh(name))

    def swap(self, name: str, fingerprint: str, beside: Read | None = None) -> bool:
        """Serve the vectors of the re-embedding, see `Store.swap`.

        The new index starts from `beside`, the result of `read_fresh`, and catches up with later writes.
        """
        with self._open.locked(name) as corpus:
            if self._store.corpus(name).fingerprint == fingerprint:
                return True
            if not self._store.swap(name, fingerprint):
                return False
            corpus.close(erase=True)
            corpus.index(beside)
        self._store.give_back(name)
        return True

    def copy(self, name: str, to: Path, stop: Stop = never) -> tuple[Corpus, Size]:
        with self._open.named(name).copying:
            return self._store.copy(name, to, stop)

    def adopt(self, name: str, file: Path, stop: Stop = never, bounds: Bounds = BOUNDS) -> None:
        """Serve the corpus in `file` under `name`, and replace any corpus of that name; see `Store.adopt`."""
        self._open.adopt(name, file, stop, bounds)

    def verify(self, name: str) -> list[str]:
        return self._store.verify(name)

    def close(self) -> None:
        self._open.close()
        self._indexes.close()
        self._store.close()

    def _reconsider(self, name: str) -> None:
        with self._open.locked(name) as corpus:
            if (live := corpus.index()) is not None:
                live.reconsider()
