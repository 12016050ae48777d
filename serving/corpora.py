"""Corpora: the store is the truth, an index in memory beside each corpus is a cache of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from models.bundle import Manifest
from serving.errors import Conflict, Invalid, NotFound, TooLarge
from serving.filters import Predicate
from serving.ports import Content, Corpus, Document, Floats, Index, IndexSize, Keys, Ranking, Size, Store

log = logging.getLogger(__name__)


def is_stale(corpus: Corpus, size: Size, served: Collection[str]) -> bool:
    """Whether none of the bundles of the fingerprints `served` embedded what the corpus holds."""
    return size.documents > 0 and corpus.fingerprint not in served


@dataclass(frozen=True)
class Hit:
    """A document found, with its cosine to the query and, where asked for, its vector."""

    document: Document
    score: float
    vector: Floats | None = None


class Found(NamedTuple):
    """The answer to a search."""

    hits: list[list[Hit]]
    """Of each query, best first."""
    truncated: int
    """Queries that were cut to the model's length."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which hits of a query to return."""

    k: int = 10
    offset: int = 0
    where: Predicate | None = None
    min_score: float | None = None
    with_vector: bool = False
    max_characters: int | None = None
    """In the texts of all hits of one search: each is read whole."""


@dataclass
class _Place:
    """Commits and index updates of one corpus happen together under its lock, so their orders are the same."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    index: Index | None = None
    removals: int = 0
    """Writes that took documents away: what was read before one does not fit what is read after it."""


class Corpora:
    """All corpora of a store, searchable. Blocking: the service calls it from threads.

    A write that returned is committed and seen by every search that starts later.
    """

    def __init__(self, store: Store, index: type[Index]) -> None:
        self._store = store
        self._new_index = index
        self._places = {name: _Place() for name in store.names()}
        self._naming = threading.Lock()
        """Around every change of `_places`."""

    @property
    def recall(self) -> float:
        """recall@10 of the indexes against exact search."""
        return self._new_index.recall

    def names(self) -> list[str]:
        """Sorted."""
        return self._store.names()

    def warm(self) -> None:
        """Build every index now rather than at the first search."""
        for name in self.names():
            with self._place(name) as place:
                self._index(name, place)

    def create(
        self,
        name: str,
        *,
        description: str | None = None,
        recall_target: float | None = None,
        encoder: Manifest | None = None,
        content: Content | None = None,
    ) -> bool:
        """Create whole, `content` included, or take over what is given if it exists; whether it was created.

        A new one without content is for `encoder`, if one is given; else for that of its first document.

        Raises:
            Conflict: it is there, and not for `encoder`.
        """
        corpus = Corpus(name, description, recall_target, created=time.time())
        if encoder:
            corpus = replace(corpus, fingerprint=encoder.fingerprint, dim=encoder.dim)
        with self._naming:
            if encoder and name in self._places and self._store.corpus(name).fingerprint != encoder.fingerprint:
                raise Conflict(f"corpus {name!r} is not for {encoder.name!r}: delete it, and create it again")
            created = self._store.create(corpus, content)
            if created:
                self._places[name] = _Place()
            return created

    def drop(self, name: str) -> None:
        """Remove a corpus and everything in it."""
        with self._place(name) as place, self._naming:
            self._store.drop(name)
            place.removals += 1
            del self._places[name]

    def corpus(self, name: str) -> tuple[Corpus, Size]:
        """What it is and how much it holds."""
        return self._store.corpus(name), self._store.size(name)

    def listing(self) -> list[tuple[Corpus, Size]]:
        """Every corpus, by name."""
        found = []
        for name in self.names():
            with suppress(NotFound):  # dropped since it was named
                found.append(self.corpus(name))
        return found

    def index_sizes(self) -> dict[str, IndexSize]:
        """Of every corpus, how large its index is; nothing is read from the store for it."""
        indexes = {name: place.index for name, place in list(self._places.items())}
        return {
            name: IndexSize(0, 0) if index is None else IndexSize(len(index), index.nbytes)
            for name, index in indexes.items()
        }

    def put(self, name: str, content: Content) -> None:
        """Add documents, replacing those of the same id, all or none.

        Raises:
            Conflict: the corpus holds vectors of another bundle.
        """
        with self._place(name) as place:
            before = self._store.corpus(name)
            change = self._store.put(name, content)
            if before.fingerprint != content.fingerprint:
                place.index = None  # it was empty, and may have had another width
            self._update(name, place, change.removed, change.added, content.vectors)

    def delete(self, name: str, document: str) -> None:
        """Remove one document by its id."""
        with self._place(name) as place:
            key = self._store.key(name, document)
            self._store.delete(name, [key])
            self._update(name, place, np.array([key]))

    def delete_where(self, name: str, where: Predicate) -> int:
        """Remove every document whose metadata matches; how many."""
        with self._place(name) as place:
            keys = self._matching(name, where)
            self._store.delete(name, keys.tolist())
            self._update(name, place, keys)
            return len(keys)

    def document(self, name: str, document: str) -> Document:
        """One document by its id."""
        return self._store.document(name, document)

    def page(self, name: str, after: int, limit: int) -> tuple[list[Document], int | None]:
        """Up to `limit` documents beyond the cursor `after`, oldest first, and the next cursor if there are more."""
        rows = self._store.page(name, after, limit + 1)
        more = len(rows) > limit
        return [document for _, document in rows[:limit]], rows[limit - 1][0] if more else None

    def search(self, name: str, queries: Floats, wanted: Wanted, fingerprint: str | None = None) -> list[list[Hit]]:
        """The best documents for each row of (Q, D) `queries`, which need not be unit length.

        Raises:
            Conflict: another bundle than that of `fingerprint`, which made the queries, embedded the corpus.
        """
        with self._place(name) as place:
            index, removals = self._searched(name, place, queries, fingerprint), place.removals
        found = self._find(name, index, queries, wanted)
        with self._place(name) as now:
            if now is place and now.removals == removals:
                return found
            # A document replaced meanwhile was there all the time, and may yet have been missed: again, alone.
            return self._find(name, self._searched(name, now, queries, fingerprint), queries, wanted)

    def encoder(self, name: str, served: Sequence[str]) -> str:
        """The fingerprint, among those `served`, of what embeds the texts and queries of the corpus.

        The one that it was made with; where that is gone and the corpus is empty, the first.

        Raises:
            Conflict: the corpus was embedded by another bundle: vectors of different encoders are not compared.
        """
        corpus, size = self.corpus(name)
        if is_stale(corpus, size, served):
            raise Conflict(
                f"corpus {name!r} was embedded by the bundle {corpus.fingerprint}, this server runs "
                f"{', '.join(served)}: serve that bundle, or delete the corpus and upload it again"
            )
        return next((one for one in served if one == corpus.fingerprint), served[0])

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _searched(self, name: str, place: _Place, queries: Floats, fingerprint: str | None) -> Index | None:
        if fingerprint is not None:
            self.encoder(name, [fingerprint])
        index, dim = self._index(name, place), self._store.corpus(name).dim
        if index and dim != queries.shape[1]:
            raise Invalid(f"{queries.shape[1]} numbers, but corpus {name!r} has {dim} dimensions", field="vector")
        return index

    def _find(self, name: str, index: Index | None, queries: Floats, wanted: Wanted) -> list[list[Hit]]:
        if index is None:
            return [[] for _ in queries]
        lengths = np.linalg.norm(queries.astype(np.float64), axis=1, keepdims=True)
        units = (queries / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        allowed = None if wanted.where is None else self._matching(name, wanted.where)
        rankings = index.search(units, wanted.k + wanted.offset, allowed)
        found: list[list[Hit]] = []
        characters = 0
        for ranking in rankings:
            found.append(self._hits(name, ranking, wanted))
            characters += sum(len(hit.document.text) for hit in found[-1])
            if wanted.max_characters is not None and characters > wanted.max_characters:
                raise TooLarge(f"the texts found are more than {wanted.max_characters} characters: ask for fewer hits")
        return found

    def _hits(self, name: str, ranking: Ranking, wanted: Wanted) -> list[Hit]:
        keys, scores = (part[wanted.offset :] for part in ranking)
        if wanted.min_score is not None:
            keep = scores >= wanted.min_score
            keys, scores = keys[keep], scores[keep]
        documents = self._store.documents(name, keys.tolist())
        vectors: dict[int, Floats] = {}
        if wanted.with_vector:
            for block, rows in self._store.vectors(name, keys.tolist()):
                vectors.update(zip(block.tolist(), rows, strict=True))
        return [
            Hit(documents[key], score, vectors.get(key))
            for key, score in zip(keys.tolist(), scores.tolist(), strict=True)
            if key in documents
        ]

    def _matching(self, name: str, where: Predicate) -> Keys:
        matching = (key for key, metadata in self._store.metadata(name) if where(metadata))
        return np.fromiter(matching, dtype=np.int64)

    @contextmanager
    def _place(self, name: str) -> Iterator[_Place]:
        place = self._places.get(name, _Place())
        with place.lock:
            if self._places.get(name) is not place:  # there is none, or it was dropped while this waited
                raise NotFound(f"there is no corpus {name!r}")
            yield place

    def _index(self, name: str, place: _Place) -> Index | None:
        """The index, built from the store if it is not there; None for a corpus that never held a document."""
        corpus = self._store.corpus(name)
        if place.index is None and corpus.dim is not None:
            index = self._new_index(corpus.dim)
            for keys, vectors in self._store.vectors(name):
                index.add(keys, vectors)
            place.index = index
        return place.index

    def _update(
        self, name: str, place: _Place, removed: Keys, added: Keys | None = None, vectors: Floats | None = None
    ) -> None:
        """Follow a commit. The write is acknowledged whatever happens here: the store has it."""
        place.removals += len(removed) > 0
        if place.index is None:
            return
        try:
            place.index.remove(removed)
            if added is not None and vectors is not None:
                place.index.add(added, vectors)
        except Exception:
            log.exception("the index of corpus %r could not be updated; it is rebuilt from the store", name)
            place.index = None
