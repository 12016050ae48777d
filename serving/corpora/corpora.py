"""Corpora: the store is the truth, an index beside each corpus is a cache of it."""

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
"""Documents of one commit, between which others read and write."""
GIVEN_BACK_FROM = 1 << 20
"""Bytes that deletions have left, when it is worth a commit more to give them back."""


class Corpora:
    """All corpora of a store, searchable. Blocking: the service calls it from threads.

    A write that returned is committed and seen by every search that starts later.
    """

    def __init__(self, store: Store, indexes: Indexes) -> None:
        self._store = store
        self._indexes = indexes
        self._open = OpenCorpora(store, indexes)

    def names(self) -> list[str]:
        """Sorted."""
        return self._store.names()

    def warm(self) -> None:
        """Open every index now rather than at the first search; a corpus that can't be read keeps no other waiting."""
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
        """Create it without documents, or take over what is given if it exists; whether it was created.

        One that is no encoder's yet is for `encoder`, if one is given; else for that of its first document.

        Raises:
            Conflict: it is there, and not for `encoder`, or its documents' words are compared otherwise.
        """
        corpus = Corpus(name, description, recall_target, created=time.time(), stemming=stemming)
        created = self._open.create(corpus, encoder)
        if recall_target is not None:
            self._reconsider(name)
        return created

    def drop(self, name: str) -> None:
        """Remove a corpus and everything in it."""
        self._open.drop(name)

    def corpus(self, name: str) -> tuple[Corpus, Size]:
        """See `Store.described`."""
        return self._store.described(name)

    def listing(self) -> list[tuple[Corpus, Size]]:
        """Every corpus, by name."""
        found = []
        for name in self.names():
            with suppress(ServiceError):  # dropped since it was named, or damaged
                found.append(self.corpus(name))
        return found

    def description(self, name: str) -> Description:
        """What it is, how much it holds and how it is searched."""
        live = self._open.named(name).live
        if live is None:
            with self._open.locked(name) as corpus:
                live = corpus.index()
        return Description(*self.corpus(name), None if live is None else live.report)

    def descriptions(self, names: Iterable[str]) -> list[Description]:
        """Of these, but of those that were dropped since they were named."""
        found = []
        for name in names:
            try:
                found.append(self.description(name))
            except NotFound:  # dropped since it was named
                continue
            except Stopped:
                raise
            except ServiceError as error:
                found.append(Description(Corpus(name), Size(0, 0, 0), None, error.message))
        return found

    def build_now(self, name: str) -> Report | None:
        """Build the index that the corpus is large enough for, and wait for it."""
        with self._open.locked(name) as corpus:
            live = corpus.index()
        return None if live is None else live.build_now()

    def index_sizes(self) -> dict[str, IndexSize]:
        """Of every corpus, how large its index is; nothing is read from the store for it."""
        return self._open.index_sizes()

    def put(self, name: str, content: Content) -> None:
        """Add documents, replacing those of the same id, all or none.

        Raises:
            Conflict: the corpus holds vectors of another bundle.
        """
        self._open.named(name).write(content)

    def delete(self, name: str, document: str) -> None:
        """Remove one document by its id.

        Raises:
            NotFound: there is none.
        """
        self._store.document(name, document)
        if not len(self._open.named(name).write(Removal([document])).removed):
            raise NotFound(f"corpus {name!r} has no document {document!r}")
        self._store.give_back(name, least=GIVEN_BACK_FROM)

    def delete_where(self, name: str, where: Filter, still: Callable[[], None] = lambda: None) -> int:
        """Remove every document whose metadata matches; how many. Others read and write between its commits, before
        each of which `still` is called, and may refuse it."""
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
        """Still: it may have been replaced since."""
        with suppress(NotFound):
            return where.matches(with_id(self._store.document(name, document).metadata, document))
        return False

    def unmatched(self, name: str, where: Filter) -> list[str]:
        """See `Store.unmatched`."""
        return self._store.unmatched(name, where)

    def embedded(
        self, name: str, texts: Sequence[str], chunking: Chunking | None, fingerprint: str
    ) -> list[Held | None]:
        """See `Store.embedded`."""
        return self._store.embedded(name, texts, chunking, fingerprint)

    def document(self, name: str, document: str) -> Document:
        """One document by its id."""
        return self._store.document(name, document)

    def page(self, name: str, after: Seen | None, limit: int, where: Filter | None = None) -> Listed:
        """See `Store.page`; a page of no documents counts them.

        Raises:
            Invalid: what was seen is of another generation.
        """
        generation = self._store.corpus(name).generation
        if after:
            check_generation(after.generation, generation)
        rows, more, total = self._store.page(name, after.key if after else 0, limit, where)
        following = Seen(generation, rows[-1][0]) if rows and more else None
        warnings = self.unmatched(name, where) if where else ()
        return Listed([document for _, document in rows], following, total, warnings)

    def facets(self, name: str, values: int) -> Facets:
        """See `Store.facets`."""
        return self._store.facets(name, values)

    def sample(self, name: str, size: int, field: str | None) -> Sample:
        """See `sampling.sampled`."""
        return sampled(self._store, name, size, field)

    def search(self, name: str, queries: Sequence[Query], wanted: Wanted, fingerprint: str | None = None) -> Found:
        """See `searching.search`."""
        found = search(self._store, self._open, name, queries, wanted, fingerprint=fingerprint)
        return replace(found, warnings=self.unmatched(name, wanted.where)) if wanted.where else found

    def encoder(self, name: str, served: Sequence[str]) -> str:
        """See `description.encoder`."""
        return encoder(*self.corpus(name), served)

    def stale(self, name: str, fingerprint: str, limit: int) -> list[tuple[int, str]]:
        """See `Store.stale`."""
        return self._store.stale(name, fingerprint, limit)

    def refresh(self, name: str, fingerprint: str, keys: Sequence[int], vectors: np.ndarray) -> None:
        """See `Store.refresh`."""
        self._store.refresh(name, fingerprint, np.array(keys, dtype=np.int64), vectors)

    def read_fresh(self, name: str) -> Read | None:
        """The fresh vectors, on their way into an index for `swap`; whoever asks for it discards it in the end."""
        return self._indexes.read(self._store.fresh(name))

    def swap(self, name: str, fingerprint: str, beside: Read | None = None) -> bool:
        """Let the fresh vectors serve, and an index of what was read `beside` and came since; see `Store.swap`."""
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
        """See `Store.copy`."""
        with self._open.named(name).copying:
            return self._store.copy(name, to, stop)

    def adopt(self, name: str, file: Path, stop: Stop = never, bounds: Bounds = BOUNDS) -> None:
        """Serve the copy of a corpus in `file`, in place of what was called so; see `Store.adopt`."""
        self._open.adopt(name, file, stop, bounds)

    def verify(self, name: str) -> list[str]:
        """See `Store.verify`."""
        return self._store.verify(name)

    def close(self) -> None:
        """Let the indexes go and close the store."""
        self._open.close()
        self._indexes.close()
        self._store.close()

    def _reconsider(self, name: str) -> None:
        """Whether the index reaches the recall that is asked for now."""
        with self._open.locked(name) as corpus:
            if (live := corpus.index()) is not None:
                live.reconsider()
