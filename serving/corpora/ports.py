"""Interfaces of corpora: the protocols of a store, and of a corpus that can be searched."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.corpora.filters import Filter
from serving.corpora.values import (
    NO_OPTIONS,
    Blocks,
    Change,
    Chunking,
    Corpus,
    Counts,
    Document,
    Facets,
    Keys,
    KnownText,
    Map,
    Page,
    Passage,
    Place,
    Size,
    Sort,
    Span,
    WordOptions,
    Write,
)
from serving.errors import ServiceError
from serving.operations.bounds import BOUNDS, Bounds


class Ranking(NamedTuple):
    """Hits of one query, best first. Hits with equal scores are ordered oldest first."""

    keys: Keys
    scores: NDArray[np.floating[Any]]
    """Cosines are float32. BM25 scores are float64, because float32 would make some different scores equal."""

    def without(self, hidden: Keys, k: int) -> Ranking:
        if not len(hidden):
            return self
        seen = ~np.isin(self.keys, hidden)
        return Ranking(self.keys[seen][:k], self.scores[seen][:k])


class IndexSize(NamedTuple):
    """Size of an index."""

    vectors: int
    bytes: int


MAX_MARKED = 20_000
"""Maximum characters of a text that `Store.highlights` searches."""
RESERVED_BYTES = 4 << 20
"""Bytes of disk space that a store reserves for deletions, so that documents can be deleted when the disk is full."""

Replacing = Callable[[Blocks], AbstractContextManager[None]]
Stop = Callable[[], bool]
"""Function that returns True if the caller of long work was cancelled. The work then raises `Stopped`, and changes
nothing."""


def never() -> bool:
    return False


class StoreError(RuntimeError):
    """Error for a folder of corpora, or a file in it, that can't be used. The message names the folder or file."""


class NamedCorpora(Protocol):
    """Methods that a `Store` and a `Backend` have in common.

    Methods are thread-safe. When a method returns, its changes are committed. A method that takes the name of a corpus
    raises `NotFound` if this corpus does not exist.
    """

    def names(self) -> list[str]:
        """Return the names of all corpora, sorted."""

    def drop(self, name: str) -> None:
        """Remove a corpus with every document."""

    def rename(self, name: str, to: str) -> None:
        """Give the corpus another name. Its generation stays the same, because its keys do not change.

        After a crash, the change is either complete or not done.

        Raises:
            Conflict: a corpus already has the name `to`.
            Invalid: the backend can't rename corpora.
        """

    def accept(self, name: str, job: str) -> None:
        """Record that an upload job was accepted.

        Until `release`, the job skips documents that other requests write or delete after this call.
        """

    def accepted(self, name: str) -> list[str]:
        """Return the sorted ids of the upload jobs that were recorded by `accept` and not deleted by `release`."""

    def release(self, name: str, job: str) -> None:
        """Delete the record of an accepted job. If there is no record, do nothing."""

    def embedded(
        self, name: str, texts: Sequence[str], chunking: Chunking | None, fingerprint: str
    ) -> list[KnownText | None]:
        """Return for each of `texts` its stored spans and vectors, or None if the text must be embedded.

        A text must be embedded if it is not stored, or was split with another chunking. All texts must be embedded if
        the corpus's encoder has another fingerprint than `fingerprint`.
        """

    def document(self, name: str, document: str) -> Document:
        """Return a document by its id, or raise `NotFound`."""

    def unmatched(self, name: str, where: Filter) -> list[str]:
        """Return a warning for each condition in `where` that no document can meet.

        There is a warning if no document has the field of the condition, or if all values of the field have types that
        can't match.
        """

    def facets(self, name: str, values: int) -> Facets:
        """Return statistics of the metadata fields, each with up to `values` of its most frequent values."""

    def counts(
        self,
        name: str,
        query: str | None,
        where: Filter | None,
        paths: Sequence[str],
        values: int,
        *,
        options: WordOptions = NO_OPTIONS,
    ) -> Counts:
        """Count the passages that match, and the values at `paths` in the documents of these passages.

        A passage matches if it contains any word of `query`, and if its document matches `where`. A `query` or `where`
        that is None matches all passages. Return up to `values` values for each path, most frequent first.
        """

    def keep_map(self, name: str, found: Map, generation: str) -> None:
        """Store `found` as the map of a corpus, in place of the previous map.

        Raises:
            Conflict: the corpus no longer has the generation `generation`.
        """

    def copy(self, name: str, to: Path, stop: Stop = never) -> tuple[Corpus, Size]:
        """Copy a snapshot of the corpus to the file `to`.

        Other threads may write meanwhile. Return the copied corpus and its size.
        """

    def verify(self, name: str) -> list[str]:
        """Read the whole corpus, and return one line for each error in it."""

    def close(self) -> None:
        """Close all corpora. No method may be called afterwards."""


class VectorSource(Protocol):
    """Vectors of corpora, for indexes. If an index differs from its source, the source is right."""

    def vectors(self, name: str, keys: Sequence[int] | None = None, after: int = 0) -> Blocks:
        """Yield vectors in blocks, in order of keys.

        With `keys`, yield the vectors of these keys. Without `keys`, yield all vectors whose keys are greater than
        `after`.
        """

    def keys(self, name: str) -> Keys:
        """Return the sorted keys of all passages."""

    def tombstones(self, name: str, upto: int) -> Keys:
        """Return the sorted keys, up to `upto`, that have a tombstone (a record of their deletion). See `bury`."""

    def bury(self, name: str, keys: Keys) -> None:
        """Delete the tombstones of `keys`. The caller ensures that no index on disk contains these keys any more."""

    def last_key(self, name: str) -> int:
        """Return the greatest key that was ever assigned, or 0 if there was none."""

    def size(self, name: str) -> Size:
        """Return the size of a corpus, including documents that have expired and are not deleted yet."""


class Store(NamedCorpora, VectorSource, Protocol):
    """The durable store of local corpora.

    When a method raises an error, nothing has changed. Methods that answer a request never return an expired document.
    Methods that build an index, re-embed or copy a corpus return such a document until it is deleted.

    A document is stored as one passage or several, each with a key. Keys are positive, increase with time and are never
    reused.
    """

    def create(self, corpus: Corpus) -> bool:
        """Create an empty corpus and return True. If the corpus exists, call `describe` and return False."""

    def describe(self, corpus: Corpus) -> None:
        """Update an existing corpus with the settings of `corpus` that are not None.

        These are the description, the recall target, the stemming and the word settings.

        If the metadata fields of word search change, index the words of all documents again. If the existing corpus has
        no fingerprint, it gets the fingerprint and the dimension of `corpus`.

        Raises:
            Conflict: the existing corpus has another fingerprint or dimension, or documents with another stemming.
                Nothing has changed.
        """

    def corpus(self, name: str) -> Corpus:
        """Return the corpus."""

    def described(self, name: str) -> tuple[Corpus, Size]:
        """Return the corpus and its size, read in one transaction."""

    def write(self, name: str, writes: Sequence[Write]) -> list[Change | ServiceError]:
        """Apply `writes` in order in one commit. A document replaces an existing document with the same id.

        Return for each write its change, or the error that refused the write. The error is `Conflict` if the vectors of
        the write have another encoder or dimension than the corpus. A corpus without documents takes the encoder and
        the dimension of the write instead. However, it never changes from an encoder to vectors that come with the
        documents (`OWN`) or back. With `OWN`, it never changes its dimension either.

        Raises:
            Damaged: an earlier read or write has found the corpus damaged.
        """

    def damage(self, name: str) -> str:
        """Return the error of an earlier read or write that found the corpus damaged, or "" if there is none."""

    def passages(self, name: str, keys: Sequence[int]) -> dict[int, Passage]:
        """Return the passages of `keys`. Keys without a passage are left out."""

    def owners(self, name: str, keys: Sequence[int]) -> dict[int, Document]:
        """Return, by key, the document to which each passage belongs. Keys without a passage are left out.

        The returned documents have empty texts. This method is much faster than `passages`, because it does not read
        the texts.
        """

    def page(self, name: str, after: int, limit: int, where: Filter | None = None) -> Page:
        """Return a page of up to `limit` documents that match `where`, beginning after the position `after`.

        A page of large documents may have fewer than `limit` documents. If documents are left, the page has at least
        one.
        """

    def sorted_page(
        self, name: str, orders: Sequence[Sort], after: Place | None, limit: int, where: Filter | None = None
    ) -> Page:
        """Return up to `limit` documents, sorted by `orders`, beginning after the place `after`. See `page`."""

    def expired(self, name: str) -> Keys:
        """Return the sorted keys of the passages whose documents have expired and are not deleted yet."""

    def matching(self, name: str, where: Filter) -> Keys:
        """Return the sorted keys of the passages whose documents match a filter."""

    def ids_matching(self, name: str, where: Filter) -> list[str]:
        """Return the ids of all documents that match a filter."""

    def words(
        self, name: str, query: str, k: int, where: Filter | None = None, options: WordOptions = NO_OPTIONS
    ) -> Ranking:
        """Return the best `k` passages by BM25 that contain any word of `query`.

        A greater score is better. Passages with equal scores are ordered oldest first. `query` may contain any
        characters. The only operator is a pair of double quotes: the phrase between the quotes must occur.

        Raises:
            Invalid: the store can't search with `options`, or with the word settings of the corpus.
        """

    def highlights(
        self, name: str, texts: Sequence[str], query: str, options: WordOptions = NO_OPTIONS
    ) -> list[list[Span]]:
        """Return for each of `texts` the spans that match words of `query`.

        Words match by the same rules as in the method `words`. Only the first `MAX_MARKED` characters of a text are
        searched.
        """

    def stale(self, name: str, fingerprint: str, limit: int) -> list[tuple[int, str]]:
        """Return the keys and texts of up to `limit` passages that the encoder `fingerprint` has not embedded yet."""

    def refresh(self, name: str, fingerprint: str, keys: Keys, vectors: Floats) -> None:
        """Store new vectors (N, D) of the passages `keys`, computed by the encoder `fingerprint` in a re-embedding.

        Searches use the old vectors until `swap` is called. If an earlier call stored vectors of another encoder than
        `fingerprint`, delete those vectors first.
        """

    def fresh(self, name: str) -> Blocks:
        """Yield all new vectors of a running re-embedding, which `swap` has not put in place of the old vectors yet."""

    def swap(self, name: str, fingerprint: str) -> bool:
        """Replace the old vectors by the new vectors of a re-embedding in one commit, and return True.

        If some passages have no new vector yet, change nothing and return False.
        """

    def kept_map(self, name: str) -> Map | None:
        """Return the stored map, or None if there is none."""

    def give_back(self, name: str, least: int = 0) -> None:
        """Return unused disk space of old vectors and deleted documents to the operating system.

        Other threads may write meanwhile. If the unused space has less than `least` bytes and is a small part of the
        file, nothing is returned.
        """

    def adopt(
        self, name: str, file: Path, replacing: Replacing | None = None, stop: Stop = never, bounds: Bounds = BOUNDS
    ) -> None:
        """Serve the corpus in `file` under `name`. Replace an existing corpus of this name.

        `copy` has written `file`. The store first checks `file`, which takes long, and then moves it. The move happens
        within the context manager `replacing`, which gets all vectors of `file`.

        Raises:
            StoreError: `file` is not a complete corpus, or exceeds `bounds`. Nothing has changed.
            InsufficientStorage, Unhealthy: the disk is full, or fails.
            Stopped: `stop` returned True. Nothing has changed.
        """


class Searchable(Protocol):
    """A corpus that can be searched.

    Some methods return rankings by meaning and by words. Other methods return passages, documents and vectors by key.
    The keys passed to these methods must come from rankings of this corpus, or from `keys_of`.
    """

    def filtered(self, where: Filter) -> Searchable:
        """Return the same corpus, restricted to the documents that match a filter."""

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[Ranking]:
        """Return the best `k` passages by cosine for each row of (Q, D) `queries`, which are unit vectors."""

    def lexical(self, query: str, k: int, options: WordOptions) -> Ranking:
        """Return the best `k` passages by BM25; see `Store.words`.

        Raises:
            Invalid: the corpus can't be searched with `options`.
        """

    def searched_fields(self) -> Collection[str]:
        """Return the metadata fields that keyword search includes."""

    def passages(self, keys: Sequence[int]) -> dict[int, Passage]:
        """Return the passages of `keys`. Keys without a passage are left out."""

    def documents(self, keys: Sequence[int]) -> dict[int, Document]:
        """Return, by key, the document to which each passage belongs. Keys without a passage are left out.

        The returned documents have empty texts.
        """

    def keys_of(self, ids: Sequence[str]) -> list[int]:
        """Return the keys of all passages of the documents with these ids. Unknown ids are left out."""

    def vectors(self, keys: Sequence[int]) -> dict[int, Floats]:
        """Return the (D,) vectors of the passages `keys`. Keys without a passage are left out."""

    def highlights(self, texts: Sequence[str], query: str, options: WordOptions) -> list[list[Span]]:
        """Return for each of `texts` the spans that match words of `query`; see `Store.highlights`."""
