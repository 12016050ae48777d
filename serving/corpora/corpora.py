"""Corpora: the store is the truth, an index beside each corpus is a cache of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.bundle import Manifest
from serving.corpora.finding import Found, Query, Wanted, find
from serving.corpora.open_corpora import OpenCorpora
from serving.corpora.open_corpus import OpenCorpus
from serving.corpora.opening import Indexes
from serving.corpora.sampling import Sample, sampled
from serving.errors import Conflict, Invalid, NotFound, ServiceError
from serving.filters import Filter
from serving.indexes.live import LiveIndex
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


def is_stale(corpus: Corpus, size: Size, served: Collection[str]) -> bool:
    """Whether none of the bundles of the fingerprints `served` embedded what the corpus holds."""
    return size.documents > 0 and corpus.fingerprint not in served


@dataclass(frozen=True)
class Description:
    """All that is told of a corpus."""

    corpus: Corpus
    size: Size
    index: Report | None
    """None before the first document."""
    damage: str | None = None
    """Why it can't be served, if it can't."""


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
        content: Content | None = None,
    ) -> bool:
        """Create whole, `content` included, or take over what is given if it exists; whether it was created.

        One that is no encoder's yet, and without content, is for `encoder`, if one is given; else for that of its first
        document.

        Raises:
            Conflict: it is there, and not for `encoder`, or its documents' words are compared otherwise.
        """
        corpus = Corpus(name, description, recall_target, created=time.time(), stemming=stemming)
        created = self._open.create(corpus, encoder, content)
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

    def descriptions(self) -> list[Description]:
        """Every corpus, by name."""
        found = []
        for name in self.names():
            try:
                found.append(self.description(name))
            except NotFound:  # dropped since it was named
                continue
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
        return removed

    def _matches(self, name: str, document: str, where: Filter) -> bool:
        """Still: it may have been replaced since."""
        with suppress(NotFound):
            return where.matches(self._store.document(name, document).metadata)
        return False

    def embedded(
        self, name: str, texts: Sequence[str], chunking: Chunking | None, fingerprint: str
    ) -> list[Held | None]:
        """See `Store.embedded`."""
        return self._store.embedded(name, texts, chunking, fingerprint)

    def document(self, name: str, document: str) -> Document:
        """One document by its id."""
        return self._store.document(name, document)

    def page(self, name: str, after: int, limit: int) -> tuple[list[Document], int | None]:
        """See `Store.page`; and the next cursor if there are more."""
        rows, more = self._store.page(name, after, limit)
        return [document for _, document in rows], rows[-1][0] if more else None

    def facets(self, name: str, values: int) -> Facets:
        """See `Store.facets`."""
        return self._store.facets(name, values)

    def sample(self, name: str, size: int, field: str | None) -> Sample:
        """See `sampling.sampled`."""
        return sampled(self._store, name, size, field)

    def search(self, name: str, queries: Sequence[Query], wanted: Wanted, fingerprint: str | None = None) -> Found:
        """The best passages for each query.

        Raises:
            Conflict: another bundle than that of `fingerprint`, which made the vectors, embedded the corpus.
        """
        with self._open.locked(name) as corpus:
            index, removals = self._searched(name, corpus, queries, fingerprint), corpus.removals
        failure = None
        try:
            found = find(self._store, name, index, queries, wanted)
        except Exception as error:  # maybe of what changed: vectors of another width, an index that went
            failure = error
        with self._open.locked(name) as now:
            if now is not corpus or now.removals != removals:
                # A document replaced meanwhile was there all the time, and may yet have been missed: again, alone.
                index = self._searched(name, now, queries, fingerprint)
                found = find(self._store, name, index, queries, wanted)
            elif failure:
                raise failure
        if wanted.mode == "lexical":
            return Found(found, None)
        return Found(found, "exact" if index is None or wanted.exact else index.kind)

    def encoder(self, name: str, served: Sequence[str]) -> str:
        """The fingerprint, among those `served`, of what embeds the texts and queries of the corpus.

        The one that it was made with; where that is gone and the corpus is empty, the first.

        Raises:
            Conflict: the corpus was embedded by another bundle: vectors of different encoders are not compared.
        """
        corpus, size = self.corpus(name)
        if is_stale(corpus, size, served):
            raise Conflict(
                f"corpus {name!r} was embedded by the bundle {corpus.fingerprint}, not by {', '.join(served)}: "
                f"serve that one, or have a server embed the corpus again (POST /corpora/{name}/reembed)"
            )
        return next((one for one in served if one == corpus.fingerprint), served[0])

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

    def adopt(self, name: str, file: Path, stop: Stop = never) -> None:
        """Serve the copy of a corpus in `file`, in place of what was called so; see `Store.adopt`."""
        self._open.adopt(name, file, stop)

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

    def _searched(
        self, name: str, corpus: OpenCorpus, queries: Sequence[Query], fingerprint: str | None
    ) -> LiveIndex | None:
        index = corpus.index()
        if index is None or (fingerprint is not None and index.fingerprint != fingerprint):
            if fingerprint is not None:
                self.encoder(name, [fingerprint])
            return None  # it holds nothing
        wrong = next((q.vector for q in queries if q.vector is not None and len(q.vector) != index.dim), None)
        if wrong is not None:
            raise Invalid(f"{len(wrong)} numbers, but corpus {name!r} has {index.dim} dimensions", field="vector")
        return index
