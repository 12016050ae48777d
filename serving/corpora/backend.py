"""The port of corpora: a backend that writes, lists, deletes and searches documents.

`Corpora` is the backend of this machine, with SQLite and FAISS. A distributed engine is another backend.
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
from serving.corpora.ports import IndexSize, Stop, never
from serving.corpora.search import Query, SearchOptions, SearchResult
from serving.corpora.values import (
    NO_OPTIONS,
    NO_SETTINGS,
    OWN,
    Changes,
    Chunking,
    Content,
    Corpus,
    Counts,
    Document,
    Facets,
    KnownText,
    Map,
    OwnVectors,
    Passage,
    PassageKey,
    Size,
    Sort,
    Stemming,
    WordOptions,
    WordSettings,
)
from serving.errors import Conflict, Invalid, NotFound, ServiceError, Stopped
from serving.operations.bounds import BOUNDS, Bounds

READ_TOGETHER = 256
"""Maximum documents of a block of `Backend.contents`."""
UNKNOWN_CHUNKING = Chunking(0, 0)
"""Chunking of copied passages. A text of an upload is never split in this way, so it is embedded and split anew."""


class Backend(Protocol):
    """All corpora of a server, with search.

    Methods block and are thread-safe. A method that returns has committed. Every search that starts after a write has
    returned sees the write. A method with the name of a corpus raises `NotFound` if the corpus does not exist.
    """

    def names(self) -> list[str]:
        """Return the names of all corpora, sorted."""

    def warm(self) -> None:
        """Prepare every corpus for its first search. A corpus that can't be read is skipped."""

    def use_gpu(self) -> str | None:
        """Search on the first CUDA device of this machine. Return None, or the reason why that is impossible."""

    def create(
        self,
        name: str,
        *,
        description: str | None = None,
        recall_target: float | None = None,
        stemming: Stemming | None = None,
        words: WordSettings = NO_SETTINGS,
        encoder: Manifest | OwnVectors | None = None,
        passages: int = 0,
    ) -> bool:
        """Create an empty corpus, or update an existing corpus. Return True if the corpus is new.

        A corpus that has no encoder yet is bound to `encoder`, or to own vectors. Without `encoder`, its first document
        binds it. `passages` is the size that a new corpus will have, if it is known.

        Raises:
            Conflict: the corpus exists and has a different encoder, own vectors or vectors of another width, or has
                documents indexed with different stemming.
            Invalid: the backend can't search by `words`.
        """

    def drop(self, name: str) -> None:
        """Remove a corpus with every document."""

    def rename(self, name: str, to: str) -> None:
        """Give a corpus another name, in one step that a crash leaves done or undone.

        Raises:
            Conflict: there is a corpus `to`.
            Invalid: the backend can't rename corpora.
        """

    def corpus(self, name: str) -> tuple[Corpus, Size]:
        """Return a corpus and its size."""

    def description(self, name: str) -> Description:
        """Return a corpus, its size and the report of its index."""

    def build_now(self, name: str) -> Report | None:
        """Build the corpus's index and wait until it serves. Return its report, or None if there are no vectors."""

    def index_sizes(self) -> dict[str, IndexSize]:
        """Return the size of each open index by the name of its corpus. Never block."""

    def put(self, name: str, content: Content) -> None:
        """Add documents, and replace documents with the same ids.

        Raises:
            Conflict: the corpus contains vectors of a different bundle.
        """

    def delete(self, name: str, document: str) -> None:
        """Remove one document by its id.

        Raises:
            NotFound: there is no such document.
        """

    def delete_where(self, name: str, where: Filter, before_commit: Callable[[], None] = lambda: None) -> int:
        """Remove every document whose metadata match, and return their number.

        `before_commit` is called before each commit. It prevents the commit by raising an exception.
        """

    def patch(
        self,
        name: str,
        which: Sequence[str] | Filter,
        changes: Changes,
        bounds: Bounds = BOUNDS,
        before_commit: Callable[[], None] = lambda: None,
    ) -> int:
        """Change the metadata and the expiry of documents, and return the number of these documents.

        `which` has the ids of the documents, or a filter. Unknown ids are skipped. `before_commit` is as in
        `delete_where`.

        Raises:
            Invalid, TooLarge: the merged metadata of a document can't be stored. Earlier commits stay.
        """

    def remove_expired(self) -> None:
        """Remove the documents of all corpora that have expired. No read returns them before either.

        A corpus that can't be written is skipped.
        """

    def unmatched(self, name: str, where: Filter) -> list[str]:
        """Return a warning for each condition that no document can meet."""

    def embedded(
        self, name: str, texts: Sequence[str], chunking: Chunking | None, fingerprint: str
    ) -> list[KnownText | None]:
        """Return the stored vectors of each text, or None for a text that must be embedded."""

    def document(self, name: str, document: str) -> Document:
        """Return a document by its id, or raise `NotFound`."""

    def page(
        self,
        name: str,
        after: DocumentCursor | None,
        limit: int,
        where: Filter | None = None,
        sort: Sequence[Sort] = (),
    ) -> DocumentPage:
        """Return a page of documents. With `limit` 0, the page has no documents, only their total number.

        With `sort`, they are in the order of `arranging.first_sorted`, and each page reads all metadata.

        Raises:
            Invalid: `after` belongs to another generation of the corpus, to another order, or to no corpus.
        """

    def contents(self, name: str) -> Iterator[Content]:
        """Yield the whole corpus in blocks of documents, with spans and vectors."""

    def facets(self, name: str, values: int) -> Facets:
        """Return the fields of the metadata, each with up to `values` of its most frequent values."""

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
        """Count the passages that a search chooses from, and the values of their documents; see `Store.counts`."""

    def sample(self, name: str, size: int, field: str | None) -> Sample:
        """Return up to `size` passages, each with its vector and its value of `field`."""

    def check_maps(self) -> None:
        """Raise `Unsupported` if this backend stores no maps."""

    def unplaced(self, name: str) -> Unplaced:
        """Return the vectors for a new map."""

    def keep_map(self, name: str, found: Map, generation: str) -> None:
        """Store a map, which replaces the previous map of the corpus.

        Raises:
            Conflict: the corpus no longer has this generation.
        """

    def placed(self, name: str, size: int, field: str | None) -> Placed | None:
        """Return up to `size` passages of the stored map, each with its value of `field`, or None without a map."""

    def search(
        self, name: str, queries: Sequence[Query], options: SearchOptions, fingerprint: str | None = None
    ) -> SearchResult:
        """Return the best passages for each query.

        Raises:
            Conflict: the bundle of `fingerprint`, which made the query vectors, did not embed the corpus.
            Invalid: the backend can't search with `options`, the dimension of the query vectors is wrong, or the
                previous page is of an earlier generation.
        """

    def index_fingerprint(self, name: str) -> str | None:
        """Return the fingerprint of the corpus's encoder if it is known without waiting. Never block."""

    def accept(self, name: str, job: str) -> None:
        """Protect later writes and removals by other requests from being overwritten by this job, until `release`."""

    def accepted(self, name: str) -> list[str]:
        """Return the jobs that were accepted and not released, sorted."""

    def release(self, name: str, job: str) -> None:
        """End the protection of a job. A job that was not accepted is ignored."""

    def stale(self, name: str, fingerprint: str, limit: int) -> Sequence[tuple[PassageKey, str]]:
        """Return key and text of up to `limit` passages that the encoder `fingerprint` has not embedded yet."""

    def refresh(self, name: str, fingerprint: str, keys: Sequence[PassageKey], vectors: Floats) -> None:
        """Store (N, D) vectors of a re-embedding beside the served vectors."""

    def read_fresh(self, name: str) -> Read | None:
        """Prepare the index of a re-embedding, which `swap` takes as `beside`, if that saves time."""

    def swap(self, name: str, fingerprint: str, beside: Read | None = None) -> bool:
        """Replace the served vectors by the vectors of the re-embedding in one commit, and return True.

        If some passages have no new vector yet, change nothing and return False.
        """

    def check_snapshots(self) -> None:
        """Raise `Unsupported` if this backend has no snapshots. The message names the way to copy a corpus."""

    def copy(self, name: str, to: Path, stop: Stop = never) -> tuple[Corpus, Size]:
        """Copy a snapshot of the corpus to the file `to`. Return the copied corpus and its size."""

    def adopt(self, name: str, file: Path, stop: Stop = never, bounds: Bounds = BOUNDS) -> None:
        """Serve the corpus in `file`, written by `copy`, under `name`, and replace any corpus of that name."""

    def verify(self, name: str) -> list[str]:
        """Return one line for each error in the corpus."""

    def close(self) -> None:
        """Close all corpora. No method may be called afterwards."""

    def listing(self) -> list[tuple[Corpus, Size]]:
        """Return every corpus and its size, sorted by name. Damaged corpora are skipped."""
        found = []
        for name in self.names():
            with suppress(ServiceError):  # dropped since its name was listed, or damaged
                found.append(self.corpus(name))
        return found

    def descriptions(self, names: Iterable[str]) -> list[Description]:
        """Return the descriptions of the named corpora. Corpora that were dropped meanwhile are left out."""
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

    def encoder(self, name: str, served: Sequence[str]) -> str:
        """Return the fingerprint of the served encoder that embeds the texts and queries of the corpus.

        This is the encoder that embedded the corpus. If that encoder is not served and the corpus is empty, it is the
        first served encoder.

        Raises:
            Stale: the corpus was embedded by a bundle that is not served. Vectors of different encoders can't be
                compared.
            Conflict: no encoder embeds the corpus, because its vectors are its own.
        """
        corpus, size = self.corpus(name)
        if corpus.own_vectors:
            raise Conflict(
                f"the vectors of corpus {corpus.name!r} are its own, so no encoder reads a query: search by vector, by "
                "vector and query in mode hybrid, or by words in mode lexical"
            )
        if is_stale(corpus, size, served):
            raise Stale(
                f"corpus {corpus.name!r} was embedded by an encoder (fingerprint {str(corpus.fingerprint)[:12]}) that "
                "this server does not serve"
            )
        return next((one for one in served if one == corpus.fingerprint), served[0])


@dataclass(frozen=True)
class Description:
    """A corpus, its size, its index, and its damage, if any."""

    corpus: Corpus
    size: Size
    index: Report | None
    """The report of the index. None before the first document."""
    damage: str | None = None
    """The reason why the corpus can't be served, if it can't."""


class DocumentCursor(NamedTuple):
    """The end of a page: the key of its last document, in listing order. Each backend has its own form of keys."""

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
    """Yield the documents of `passages`, which are in order, with their (D,) vectors, in blocks.

    All documents of a block were split, or none.
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
    """Return whether the corpus has documents, but was embedded by a bundle whose fingerprint is not in `served`."""
    return size.documents > 0 and corpus.fingerprint not in (OWN, *served)


def check_generation(seen: str, now: str) -> None:
    """Check that a cursor belongs to the corpus's current generation, because keys change between generations.

    Raises:
        Invalid: since the cursor was made, the corpus was recreated, restored or embedded again.
    """
    if seen != now:
        raise Invalid(
            "of the corpus as it was before it was deleted, restored or embedded again: begin with the first page",
            field="cursor",
        )
