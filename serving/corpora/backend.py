"""The interface of a backend of corpora, which writes, lists, deletes and searches documents.

`Corpora` is the backend for this machine, with SQLite and FAISS. A distributed engine can be another backend.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from models.bundle.bundle import Manifest
from models.runtimes.base import Floats
from serving.corpora.filters import Filter
from serving.corpora.indexes.saved import Read
from serving.corpora.indexes.state import Report
from serving.corpora.maps import Placed, Sample, Unplaced
from serving.corpora.ports import IndexSize, NamedCorpora, Stop, never
from serving.corpora.search import Query, SearchOptions, SearchResult
from serving.corpora.values import (
    OWN,
    Changes,
    Chunking,
    Content,
    Corpus,
    Document,
    OwnVectors,
    Passage,
    PassageKey,
    Size,
    Sort,
)
from serving.errors import Conflict, Invalid, NotFound, ServiceError, Stopped
from serving.operations.bounds import BOUNDS, Bounds

READ_TOGETHER = 256
"""Maximum number of documents in a block of `Backend.contents`."""
UNKNOWN_CHUNKING = Chunking(0, 0)
"""Chunking of documents that are copied with their passages. No upload has this chunking. An uploaded text therefore
never gets the stored passages of a copied document."""


class Backend(NamedCorpora, Protocol):
    """All corpora of a server, with search.

    Methods block. Every search that starts after a write has returned sees the write.
    """

    def warm(self) -> None:
        """Prepare every corpus for its first search. Skip corpora that can't be read."""

    def use_gpu(self) -> str | None:
        """Move searches to the first CUDA device. If this is impossible, return the reason, otherwise None."""

    def create(self, corpus: Corpus, encoder: Manifest | OwnVectors | None = None, passages: int = 0) -> bool:
        """Create an empty corpus, or update an existing corpus. Return True if the corpus is new.

        An update changes only the settings of `corpus` that are not None.

        `encoder` sets the encoder of a corpus that has none yet. With `OwnVectors`, the corpus has no encoder, and
        callers upload the vectors of all documents. If `encoder` is None, the first document sets the encoder.
        `passages` is the expected number of passages of a new corpus, or 0 if it is unknown.

        Raises:
            Conflict: `encoder` or the stemming does not fit an existing corpus. The corpus has a different encoder or
                dimension, own vectors instead of an encoder, an encoder instead of own vectors, or documents that were
                indexed with different stemming.
            Invalid: the backend does not support a setting in `corpus.words`.
        """

    def corpus(self, name: str) -> tuple[Corpus, Size]:
        """Return a corpus and its size."""

    def description(self, name: str) -> Description:
        """Return a corpus, its size, and the report of its index."""

    def build_now(self, name: str) -> Report | None:
        """Build the index of a corpus, and wait until searches use the index.

        Return the report of the index, or None if the corpus has no vectors.
        """

    def index_sizes(self) -> dict[str, IndexSize]:
        """Return the sizes of the indexes, by the names of their corpora. This method never blocks.

        An index that is not open has the size 0. A backend that measures sizes only when they are needed leaves out
        each index that was not measured yet, and returns the last measured size of the others.
        """

    def put(self, name: str, content: Content) -> None:
        """Add documents, and replace documents with the same ids.

        Raises:
            Conflict: the corpus contains vectors of a different bundle.
        """

    def delete(self, name: str, document: str) -> None:
        """Delete a document by its id.

        Raises:
            NotFound: the document does not exist.
        """

    def delete_where(self, name: str, where: Filter, before_commit: Callable[[], None] = lambda: None) -> int:
        """Delete all documents that match a filter, and return their number.

        `before_commit` is called before each commit. If it raises an exception, the deletion ends with this exception.
        Earlier commits are not undone.
        """

    def patch(
        self,
        name: str,
        which: Sequence[str] | Filter,
        changes: Changes,
        bounds: Bounds = BOUNDS,
        before_commit: Callable[[], None] = lambda: None,
    ) -> int:
        """Change the metadata and the expiry of documents, and return the number of changed documents.

        `which` has the ids of the documents, or a filter. Unknown ids are skipped. The documents are changed in several
        commits. `before_commit` is called before each commit. If it raises an exception, the patch ends with this
        exception. After an error, the commits before it are not undone.

        Raises:
            Invalid, TooLarge: the merged metadata of a document are invalid or too large.
        """

    def remove_expired(self) -> None:
        """Delete the expired documents of all corpora.

        Reads do not return an expired document, even before it is deleted. Corpora that can't be written are skipped.
        """

    def page(
        self,
        name: str,
        after: DocumentCursor | None,
        limit: int,
        where: Filter | None = None,
        sort: Sequence[Sort] = (),
    ) -> DocumentPage:
        """Return a page of documents. With `limit` 0, the page has no documents, but the total number of documents.

        With `sort`, documents are sorted by the metadata fields that it names (see `arranging.first_sorted`). To sort
        them, the method reads the metadata of all documents that match `where`.

        Raises:
            Invalid: `after` is not a cursor, or it belongs to a list in another order or to an earlier generation of
                the corpus (see `Corpus.generation`).
        """

    def contents(self, name: str) -> Iterator[Content]:
        """Yield all documents of a corpus in blocks, with the spans and vectors of their passages."""

    def sample(self, name: str, size: int, field: str | None) -> Sample:
        """Return up to `size` passages, each with its vector and its document's value of the metadata field `field`."""

    def check_maps(self) -> None:
        """Raise `Unsupported` if this backend can't store maps (positions of passages on a plane)."""
        return

    def unplaced(self, name: str) -> Unplaced:
        """Return the vectors from which a new map of a corpus is computed, as `maps.unplaced` does."""

    def placed(self, name: str, size: int, field: str | None) -> Placed | None:
        """Return up to `size` passages of the stored map of a corpus, with their positions on the map.

        Each passage has its document's value of the metadata field `field`. If no map is stored, return None.
        """

    def search(
        self, name: str, queries: Sequence[Query], options: SearchOptions, fingerprint: str | None = None
    ) -> SearchResult:
        """Return the best passages for each query.

        Raises:
            Conflict: the bundle with this `fingerprint` computed the query vectors, but did not embed the corpus.
            Invalid: the backend can't search with `options`, the query vectors have a wrong dimension, the cursor in
                `options` belongs to an earlier generation of the corpus, or the examples of a query are not in the
                corpus or cancel each other out.
            TooLarge: the hits have too much text to return, or too much text to highlight; see `search.find`.
        """

    def index_fingerprint(self, name: str) -> str | None:
        """Return the fingerprint of the corpus's encoder.

        Return None if the fingerprint is not known without waiting. This method never blocks.
        """

    def stale(self, name: str, fingerprint: str, limit: int) -> Sequence[tuple[PassageKey, str]]:
        """Return the keys and texts of up to `limit` passages that the encoder `fingerprint` has not embedded yet."""

    def refresh(self, name: str, fingerprint: str, keys: Sequence[PassageKey], vectors: Floats) -> None:
        """Store new vectors (N, D) of the passages `keys`, computed by the encoder `fingerprint` in a re-embedding.

        Searches use the old vectors until `swap` is called.
        """

    def read_fresh(self, name: str) -> Read | None:
        """Read the new vectors of a re-embedding before `swap`, so that `swap` opens the new index faster.

        If this would save no time, return None. Pass the result to `swap` as `beside`. When the result is no longer
        needed, call its `discard`, even if `swap` was not called.
        """

    def swap(self, name: str, fingerprint: str, beside: Read | None = None) -> bool:
        """Replace the old vectors by the new vectors of a re-embedding in one commit, and return True.

        If some passages have no new vector yet, change nothing and return False. `beside` contains new vectors that
        `read_fresh` has already read, so that the new index opens faster. It may be None.
        """

    def check_snapshots(self) -> None:
        """Raise `Unsupported` if this backend has no snapshots. The message names another way to copy a corpus."""
        return

    def adopt(self, name: str, file: Path, stop: Stop = never, bounds: Bounds = BOUNDS) -> None:
        """Serve the corpus in `file` under `name`. Replace an existing corpus of this name.

        `file` is a file that `copy` has written.

        Raises:
            StoreError: `file` is not a complete corpus, or exceeds `bounds`.
            Conflict, NotFound: the corpus `name` was created or deleted during the call.
            InsufficientStorage, Unhealthy: the disk is full, or fails.
            Stopped: `stop` returned True before the replacement.
        """

    def listing(self) -> list[tuple[Corpus, Size]]:
        """Return every corpus and its size, sorted by name. Damaged corpora are skipped."""
        found = []
        for name in self.names():
            with suppress(ServiceError):  # deleted after its name was listed, or damaged
                found.append(self.corpus(name))
        return found

    def descriptions(self, names: Iterable[str]) -> list[Description]:
        """Return the descriptions of the named corpora. Leave out corpora that were deleted meanwhile."""
        found = []
        for name in names:
            try:
                found.append(self.description(name))
            except NotFound:  # deleted after its name was listed
                continue
            except Stopped:
                raise
            except ServiceError as error:
                found.append(Description(Corpus(name), Size(0, 0, 0), None, error.message))
        return found

    def encoder(self, name: str, served: Sequence[str]) -> str:
        """Return the fingerprint of the served encoder that embeds the texts and queries of the corpus.

        `served` has the fingerprints of all served encoders. If the corpus's fingerprint is in `served`, return it.
        Otherwise, if the corpus is empty, return the first fingerprint in `served`.

        Raises:
            Stale: the corpus was embedded by a bundle that is not served.
            Conflict: the corpus has own vectors, so it has no encoder.
        """
        corpus, size = self.corpus(name)
        if corpus.own_vectors:
            raise Conflict(
                f"the vectors of corpus {corpus.name!r} came with its documents, so no encoder can embed a "
                "query: search by vector, by vector and query in mode hybrid, or by words in mode lexical"
            )
        if is_stale(corpus, size, served):
            raise Stale(
                f"corpus {corpus.name!r} was embedded by an encoder (fingerprint {str(corpus.fingerprint)[:12]}) that "
                "this server does not serve"
            )
        return next((one for one in served if one == corpus.fingerprint), served[0])


@dataclass(frozen=True)
class Description:
    """A corpus with its size and the report of its index, or with the reason why it can't be served."""

    corpus: Corpus
    size: Size
    index: Report | None
    """The report of the index. None if the corpus has no index yet, or can't be served."""
    damage: str | None = None
    """Reason why the corpus can't be served. None if the corpus can be served."""


class DocumentCursor(NamedTuple):
    """The end of a page of documents: the key of the last document. Each backend has its own format of keys."""

    generation: str
    key: str


class DocumentPage(NamedTuple):
    """A page of documents."""

    documents: list[Document]
    following: DocumentCursor | None
    """Cursor of the next page. None on the last page."""
    total: int
    """Number of documents on all pages."""
    warnings: Sequence[str]
    """Warnings of `Store.unmatched`."""


class Stale(Conflict):
    """Error for a corpus whose encoder is not served."""


def by_document(passages: Iterable[tuple[Passage, Floats]], fingerprint: str) -> Iterator[Content]:
    """Yield the documents of `passages` in blocks, with the vectors of their passages.

    The passages of a document must be adjacent and in the order of the text. Each passage has a vector (D,) of the
    encoder `fingerprint`. A block has only documents that are split into passages, or only documents that are not.
    """
    together = groupby(passages, key=lambda one: one[0].document.id)
    documents = (list(own) for _, own in together)
    for split, alike in groupby(documents, key=lambda own: own[0][0].span is not None):
        while block := list(islice(alike, READ_TOGETHER)):
            yield Content(
                [own[0][0].document for own in block],
                np.stack([vector for own in block for _, vector in own]),
                fingerprint,
                [[passage.span for passage, _ in own if passage.span] for own in block] if split else None,
                UNKNOWN_CHUNKING if split else None,
            )


def is_stale(corpus: Corpus, size: Size, served: Collection[str]) -> bool:
    """Return whether the corpus has documents that were embedded by an encoder whose fingerprint is not in `served`."""
    return size.documents > 0 and corpus.fingerprint not in (OWN, *served)


def check_generation(seen: str, now: str) -> None:
    """Raise an error if the generation `seen` of a cursor differs from the corpus's current generation `now`.

    A cursor contains a key, and keys have another meaning in another generation.

    Raises:
        Invalid: after the cursor was created, the corpus was recreated, restored or embedded again.
    """
    if seen != now:
        raise Invalid(
            "is from a time before the corpus was recreated, restored or embedded again: begin with the first page",
            field="cursor",
        )
