"""All corpora of a store, with their indexes. The store is the source of truth; each index is a cache of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.bundle.bundle import Manifest
from models.runtimes.base import Floats
from serving.corpora.filters import Filter, reach, with_id
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.indexes.saved import Read
from serving.corpora.indexes.state import Report
from serving.corpora.open_corpus import Indexes, OpenCorpora, OpenCorpus
from serving.corpora.ports import (
    Chunking,
    Content,
    Corpus,
    Document,
    Facets,
    IndexSize,
    KnownText,
    Passage,
    Removal,
    Size,
    Stemming,
    Stop,
    Store,
    never,
)
from serving.corpora.search import (
    Description,
    DocumentCursor,
    DocumentPage,
    Query,
    SearchOptions,
    SearchResult,
    check_generation,
    encoder,
    find,
)
from serving.errors import Invalid, NotFound, ServiceError, Stopped
from serving.operations.bounds import BOUNDS, Bounds

# Projection of vectors onto a plane by principal component analysis.

AXES = 2
DECIMALS = 5
"""Decimals of a coordinate. More would be invisible on a screen, and would vary with the order of summation."""


class Projection(NamedTuple):
    """Vectors projected onto the plane of their largest variance, through their mean."""

    points: NDArray[np.float64]
    """(N, 2)."""
    explained: NDArray[np.float64]
    """(2,): share of the variance along each axis."""


def project(vectors: NDArray[np.float32]) -> Projection:
    """Project (N, D) `vectors`, minus their mean, onto their first two right singular vectors (Pearson 1901).

    The singular vectors are computed in float64, as eigenvectors of the (D, D) scatter matrix, so the time hardly grows
    with N. The sign of an axis makes its largest loading positive, so equal vectors always get equal coordinates. If
    the vectors do not vary, all coordinates are 0.
    """
    points, explained = np.zeros((len(vectors), AXES)), np.zeros(AXES)
    if not vectors.size:
        return Projection(points, explained)
    centred = vectors.astype(np.float64)
    centred -= centred.mean(axis=0)
    _, variances, axes = np.linalg.svd(centred.T @ centred, hermitian=True)
    if (total := variances.sum()) <= np.finfo(np.float32).eps ** 2 * vectors.size:
        return Projection(points, explained)
    axes, variances = axes[:AXES], variances[:AXES]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1, keepdims=True), axis=1)
    points[:, : len(axes)] = np.round(centred @ (axes * np.sign(largest)).T, DECIMALS)
    explained[: len(axes)] = variances / total
    return Projection(points, explained)


# Random samples of a corpus's passages.

SEED = 0
"""Seed that makes samples of the same corpus identical."""
READ_TOGETHER = 64
"""Passages whose documents are in memory at a time, because each document is read whole."""
EXCERPT = 200
"""Maximum characters of a passage in a sample."""


class Sampled(NamedTuple):
    """A passage of a sample, shortened."""

    document: str
    """The id of its document."""
    excerpt: str
    value: object
    """The value of the requested field; None if there is none."""


class Sample(NamedTuple):
    """Passages in the order in which they were written, their (n, D) vectors, and the number of all passages."""

    passages: list[Sampled]
    vectors: Floats
    of: int


def sampled(store: Store, name: str, size: int, field: str | None = None) -> Sample:
    """Return up to `size` passages of the corpus `name`, uniformly drawn, each with its value of `field`.

    If the corpus is embedded again meanwhile, sampling starts again, so that all vectors are of one encoder.
    """
    while True:
        before, keys = _version(store, name), store.keys(name)
        drawn = np.random.default_rng(SEED).choice(keys, min(size, len(keys)), replace=False)
        rows = {
            int(key): vector
            for some, vectors in store.vectors(name, drawn.tolist())
            for key, vector in zip(some, vectors, strict=True)
        }
        told = dict(_told(store, name, list(rows), field))
        if _version(store, name) == before:
            kept = [rows[key] for key in told]
            return Sample(list(told.values()), np.stack(kept) if kept else np.empty((0, 0), np.float32), len(keys))


def _version(store: Store, name: str) -> tuple[str, str | None]:
    corpus = store.corpus(name)
    return corpus.generation, corpus.fingerprint


def _told(store: Store, name: str, keys: Sequence[int], field: str | None) -> Iterator[tuple[int, Sampled]]:
    """Yield the passages of the sorted `keys` that still exist."""
    for start in range(0, len(keys), READ_TOGETHER):
        for key, passage in sorted(store.passages(name, keys[start : start + READ_TOGETHER]).items()):
            document = passage.document
            value = next(reach(document.metadata, field), None) if field else None
            yield key, Sampled(document.id, _excerpt(passage), value)


def _excerpt(passage: Passage) -> str:
    text, (start, end) = passage.document.text, passage.span or (0, len(passage.document.text))
    return text[start:end] if end - start <= EXCERPT else f"{text[start : start + EXCERPT - 1]}…"


# Search during concurrent writes. If a removal may have disturbed a search, the search is repeated under the lock.


def search(
    store: Store,
    corpora: OpenCorpora,
    name: str,
    queries: Sequence[Query],
    options: SearchOptions,
    *,
    fingerprint: str | None,
) -> SearchResult:
    """Return the best passages for each query.

    Raises:
        Conflict: the bundle of `fingerprint`, which made the query vectors, did not embed the corpus.
        Invalid: the dimension of the query vectors is wrong, or the previous page is of an earlier generation.
    """
    with corpora.locked(name) as corpus:
        index, removals = _index(store, name, corpus, queries, fingerprint), corpus.removals
        generation = _generation(store, name, index, options)
    failure = None
    try:
        found = find(store, name, index, queries, options)
    except Exception as error:  # maybe due to a change: other dimensions, a closed index
        failure = error
    with corpora.locked(name) as now:
        if now is not corpus or now.removals != removals:
            # The search may have missed a document that was replaced meanwhile, so it is repeated under the lock.
            index = _index(store, name, now, queries, fingerprint)
            generation = _generation(store, name, index, options)
            found = find(store, name, index, queries, options)
        elif failure:
            raise failure
    if options.mode == "lexical":
        return SearchResult(found, generation, None)
    return SearchResult(found, generation, "exact" if index is None or options.exact else index.kind)


def _index(
    store: Store, name: str, corpus: OpenCorpus, queries: Sequence[Query], fingerprint: str | None
) -> LiveIndex | None:
    """Return the index to search; None if the corpus has no vectors."""
    index = corpus.index()
    if index is None or (fingerprint is not None and index.fingerprint != fingerprint):
        if fingerprint is not None:
            encoder(*store.described(name), [fingerprint])
        return None
    wrong = next((q.vector for q in queries if q.vector is not None and len(q.vector) != index.dim), None)
    if wrong is not None:
        raise Invalid(f"{len(wrong)} numbers, but corpus {name!r} has {index.dim} dimensions", field="vector")
    return index


def _generation(store: Store, name: str, index: LiveIndex | None, options: SearchOptions) -> str:
    """Return the generation that is searched. Check that the previous page, if any, belongs to it."""
    generation = store.corpus(name).generation if index is None else index.identity.generation
    if options.after:
        check_generation(options.after.generation, generation)
    return generation


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

    def delete_where(self, name: str, where: Filter, before_commit: Callable[[], None] = lambda: None) -> int:
        """Remove every document whose metadata match, and return their number.

        Other reads and writes run between two commits. `before_commit` is called before each commit. It prevents the
        commit by raising an exception.
        """
        before_commit()
        corpus, removed = self._open.named(name), 0
        found = self._store.ids_matching(name, where)
        for start in range(0, len(found), REMOVED_TOGETHER):
            with corpus.locked():
                before_commit()
                ids = [id for id in found[start : start + REMOVED_TOGETHER] if self._matches(name, id, where)]
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
    ) -> list[KnownText | None]:
        return self._store.embedded(name, texts, chunking, fingerprint)

    def document(self, name: str, document: str) -> Document:
        return self._store.document(name, document)

    def page(self, name: str, after: DocumentCursor | None, limit: int, where: Filter | None = None) -> DocumentPage:
        """Return a page of documents, see `Store.page`. With `limit` 0, it only counts them.

        Raises:
            Invalid: `after` belongs to another generation of the corpus.
        """
        generation = self._store.corpus(name).generation
        if after:
            check_generation(after.generation, generation)
        rows, more, total = self._store.page(name, after.key if after else 0, limit, where)
        following = DocumentCursor(generation, rows[-1][0]) if rows and more else None
        warnings = self.unmatched(name, where) if where else ()
        return DocumentPage([document for _, document in rows], following, total, warnings)

    def facets(self, name: str, values: int) -> Facets:
        return self._store.facets(name, values)

    def sample(self, name: str, size: int, field: str | None) -> Sample:
        return sampled(self._store, name, size, field)

    def search(
        self, name: str, queries: Sequence[Query], options: SearchOptions, fingerprint: str | None = None
    ) -> SearchResult:
        found = search(self._store, self._open, name, queries, options, fingerprint=fingerprint)
        return replace(found, warnings=self.unmatched(name, options.where)) if options.where else found

    def index_fingerprint(self, name: str) -> str | None:
        """Return the fingerprint of the encoder of an open index, or None, without blocking.

        Raises:
            NotFound: there is no such corpus.
        """
        live = self._open.named(name).live
        return None if live is None else live.fingerprint

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
