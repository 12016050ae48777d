"""The ports of corpora: protocols of an index and of a store, with the values that they take and return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.corpora.filters import Filter
from serving.corpora.geo import Point
from serving.errors import ServiceError
from serving.operations.bounds import BOUNDS, Bounds

# The protocol of a vector index, and its results.

Keys = NDArray[np.int64]
Blocks = Iterator[tuple[Keys, Floats]]
"""(n,) keys and (n, D) vectors, in order of keys."""


PassageKey = int | str
"""Key of a passage. A local store has numbers. Other backends may have strings."""


class Ranking(NamedTuple):
    """Hits of one query, best first. Equal scores are ordered oldest first."""

    keys: Keys
    scores: NDArray[np.floating[Any]]
    """Scores of vectors are float32. BM25 scores are float64, because float32 would make different BM25 scores
    equal."""

    def without(self, hidden: Keys, k: int) -> Ranking:
        """Return the best `k` hits, except the keys in `hidden`."""
        if not len(hidden):
            return self
        seen = ~np.isin(self.keys, hidden)
        return Ranking(self.keys[seen][:k], self.scores[seen][:k])


class IndexSize(NamedTuple):
    """Size of an index."""

    vectors: int
    bytes: int


class Index(Protocol):
    """Unit vectors of one dimension, each with a key, searched by inner product.

    The corpus ensures that one thread at a time writes. Any number of threads may search concurrently. A search sees
    each write completely or not at all.
    """

    def __len__(self) -> int:
        """Return the number of vectors."""

    @property
    def nbytes(self) -> int:
        """Memory in bytes, including spare capacity."""

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Add (N, D) vectors with N keys. Each key must be greater than every key that the index ever had."""

    def remove(self, keys: Keys) -> None:
        """Remove the vectors of `keys`. Unknown keys are ignored."""

    def search(self, queries: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        """Return the best `k` hits, or fewer, for each row of (Q, D) `queries`.

        If `allowed` is given, only these sorted keys are searched.
        """


# A corpus and its contents: the values that a store takes and returns.

MAX_MARKED = 20_000
"""Maximum characters of a text that `Store.highlights` searches."""
RESERVED_BYTES = 4 << 20
"""Bytes of disk space that a store reserves for removals, so that documents can be removed when the disk is full."""
RECALL_TARGET = 0.95
"""The default recall@10 of a corpus's index."""
Stemming = Literal["none", "porter"]
"""Comparison of words: `none` compares whole words, and `porter` compares English stems (Porter, An algorithm for
suffix stripping, 1980)."""


OWN = "own"
"""Fingerprint of a corpus whose vectors were computed by callers. No bundle has it."""


@dataclass(frozen=True)
class OwnVectors:
    """In place of an encoder: each document brings its own vector, of `dim` numbers or as many as the first one."""

    dim: int | None = None
    fingerprint: str = OWN


@dataclass(frozen=True)
class WordSettings:
    """Settings of word search in a corpus. None means that nothing was set."""

    synonyms: dict[str, list[str]] | None = None
    """Further words to search for, by the word or phrase of a query that they stand for."""
    stop_words: list[str] | None = None
    """Words of a query that are not searched for."""
    fields: dict[str, float] | None = None
    """Metadata fields whose words are searched. A word counts as this many words of the text."""


NO_SETTINGS = WordSettings()


class WordOptions(NamedTuple):
    """Options of one search for the words of a query that are incomplete or misspelt."""

    prefix: bool = False
    """Whether the last word may be the beginning of a word."""
    typos: bool = False
    """Whether words that are similar to a word of the query are searched for, too."""


NO_OPTIONS = WordOptions()


@dataclass(frozen=True)
class Corpus:
    """A named collection of documents, all embedded by one encoder."""

    name: str
    description: str | None = None
    recall_target: float | None = None
    created: float = 0.0
    """Seconds since the epoch."""
    fingerprint: str | None = None
    """Fingerprint of the bundle that embeds the corpus, or `OWN`. None until the first document, unless the corpus was
    created for a bundle."""
    dim: int | None = None
    stemming: Stemming | None = None
    words: WordSettings = NO_SETTINGS
    generation: str = field(default="", compare=False)
    """Identifier from the store. It changes whenever a key may get another passage or another vector."""

    @property
    def own_vectors(self) -> bool:
        """Whether each document brings its own vector, and no encoder embeds the corpus."""
        return self.fingerprint == OWN

    @property
    def wanted_recall(self) -> float:
        """Minimum recall@10 of the corpus's index."""
        return self.recall_target or RECALL_TARGET

    @property
    def wanted_stemming(self) -> Stemming:
        """Stemming for word search in this corpus."""
        return self.stemming or "none"


class Document(NamedTuple):
    """A text with an id and metadata from the caller."""

    id: str
    text: str
    metadata: Mapping[str, Any]
    vector: Floats | None = None
    """Unit vector (D,) that the caller computed. None unless the document is being uploaded to a corpus of own
    vectors."""
    expires_at: int | None = None
    """Moment (see `clock`) from which on the document is not found. None if it never expires."""

    @property
    def length(self) -> int:
        """Characters of the text and bytes of the vector, for limits of memory."""
        return len(self.text) + (0 if self.vector is None else self.vector.nbytes)


Scalar = str | int | float | bool | None
"""A scalar of JSON."""


class Span(NamedTuple):
    """Range of a text in characters (code points), from `start` to `end`, exclusive."""

    start: int
    end: int


class Chunking(NamedTuple):
    """Lengths of the passages that texts are split into."""

    tokens: int
    """Maximum tokens of a passage, without special tokens."""
    overlap: int
    """Maximum tokens that a passage shares with the previous one."""


@dataclass(frozen=True)
class Content:
    """Documents with the (P, D) vectors of their passages, in order, and the encoder that made the vectors."""

    documents: Sequence[Document]
    vectors: Floats
    fingerprint: str
    spans: Sequence[Sequence[Span]] | None = None
    """Passages of each document, at least one. None means that each document is one passage."""
    chunking: Chunking | None = None
    """Parameters that produced `spans`."""
    job: str | None = None
    """Id of the upload job that writes these documents. Later writes and removals by other requests win; see
    `Store.accept`."""


@dataclass(frozen=True)
class Removal:
    """Ids of documents to remove. Unknown ids are skipped."""

    ids: Sequence[str]


@dataclass(frozen=True)
class Expiry:
    """Removal of up to `limit` documents that expired by `moment`. It does not win over uploads, unlike `Removal`."""

    moment: int
    limit: int


class Changes(NamedTuple):
    """Changes of documents that leave texts and vectors as they are."""

    metadata: Mapping[str, Any] = MappingProxyType({})
    """A JSON merge patch (RFC 7396) for the metadata."""
    expires_at: int | Literal["kept"] | None = "kept"
    """The new moment of expiry. None removes it."""


@dataclass(frozen=True)
class Patch:
    """Changes of documents. Unknown ids are skipped."""

    ids: Sequence[str]
    changes: Changes
    bounds: Bounds = BOUNDS
    """Limits of the merged metadata."""


Write = Content | Removal | Expiry | Patch


class Change(NamedTuple):
    """Effect of a committed write: the removed and the added keys of passages.

    A replaced passage has a removed and an added key.
    """

    removed: Keys
    added: Keys
    vectors: Floats
    """Vectors of the added keys, in order."""

    @classmethod
    def nothing(cls) -> Change:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 0), np.float32))


class Sort(NamedTuple):
    """An order by a metadata field, given as a dotted path, or by the distance of its points from `near`."""

    path: str
    descending: bool = False
    near: Point | None = None


class Place(NamedTuple):
    """The place of a document in a sorted list."""

    values: Sequence[Scalar]
    """A value of the document for each order."""
    position: int | str
    """The position of the document in the list that is not sorted, which decides among equal values."""


class Page(NamedTuple):
    """Documents in one snapshot of the corpus, oldest first, each with its position."""

    rows: list[tuple[int, Document]]
    more: bool
    """Whether more documents follow."""
    total: int
    """Number of documents on all pages."""


class Passage(NamedTuple):
    """A passage: its document and its span."""

    document: Document
    span: Span | None
    """Span of the passage in the document's text. None if the document was not split."""


class KnownText(NamedTuple):
    """A text that was embedded before: the spans of its P passages and their (P, D) vectors.

    Without spans, the text was not split.
    """

    spans: Sequence[Span] | None
    vectors: Floats


class Size(NamedTuple):
    """Size of a corpus."""

    documents: int
    bytes: int
    passages: int


class FacetValue(NamedTuple):
    """A value of a field with its number of documents. The number is None if there are too many documents to count."""

    value: Scalar
    documents: int | None


class Facet(NamedTuple):
    """Statistics of a metadata field, which is a dotted path if it is within objects."""

    field: str
    kinds: Sequence[str]
    """Types that occur: number, string, boolean, null, list and object, sorted."""
    least: int | float | None
    greatest: int | float | None
    """Maximum of the field's numbers. Both limits are None if there are no numbers, or if too many documents would
    have to be read."""
    values: Sequence[FacetValue]
    """Indexed values, most frequent first. If the values are not counted, the first values in SQLite's order."""
    complete: bool
    """Whether `values` has all values of the field. False if there are more than requested, or if a value was too
    large to be indexed."""


class Counts(NamedTuple):
    """Number of passages that a search chooses from, and the values of some fields of their documents."""

    passages: int
    values: Mapping[str, Sequence[FacetValue]]
    """By path, the most frequent values first."""
    complete: bool
    """False if a value was too large to be indexed, or if there are too many postings to count. Counts are then
    minimums."""


MAX_POINTS = 50_000
"""Maximum number of points on a map."""


@dataclass(frozen=True)
class MapOrigin:
    """The state of a corpus when its map was computed."""

    fingerprint: str | None
    passages: int
    """Number of passages of the corpus. The map may have fewer points."""
    last_key: int
    """The greatest key of these passages."""
    created: float


class Map(NamedTuple):
    """A map of a corpus: the places of passages on a plane, and the origin of the map."""

    origin: MapOrigin
    keys: Keys
    """Sorted keys of the N passages."""
    places: NDArray[np.float64]
    """(N, 2) coordinates."""


class Facets(NamedTuple):
    """Fields of a corpus, and whether the list is complete."""

    fields: Sequence[Facet]
    complete: bool


Replacing = Callable[[Blocks], AbstractContextManager[None]]
Stop = Callable[[], bool]
"""Function that returns whether the caller of long work has left. The work then raises `Stopped` and changes nothing.
"""


def never() -> bool:
    """Return False, as a `Stop` that never stops."""
    return False


class StoreError(RuntimeError):
    """The folder of the corpora, or a file in it, can't be used. The message names it."""


class UploadLedger(Protocol):
    """Records of accepted uploads, by corpus; see `Store.accept`."""

    def names(self) -> list[str]:
        """Return the names of all corpora."""

    def accept(self, name: str, job: str) -> None:
        """Start the protection of writes that are later than this job."""

    def accepted(self, name: str) -> list[str]:
        """Return the jobs that were accepted and not released, sorted."""

    def release(self, name: str, job: str) -> None:
        """End the protection."""


class Store(Protocol):
    """The durable store of local corpora.

    A method that returns has committed; one that raises has changed nothing. Thread-safe. No read for callers returns a
    document that has expired. Reads for indexes, re-embedding and copies return it until it is removed.

    A document is stored as one passage or several, each with a key. Keys are positive, increase with time and are never
    reused. Every method with the name of a corpus raises `NotFound` if the corpus does not exist.
    """

    def names(self) -> list[str]:
        """Return the names of all corpora, sorted."""

    def create(self, corpus: Corpus) -> bool:
        """Create an empty corpus and return True. If the corpus exists, call `describe` and return False."""

    def describe(self, corpus: Corpus) -> None:
        """Update an existing corpus with the description, recall target, stemming and word settings that are not None.

        If other fields are searched, index the words of all documents again. Set the fingerprint if it has none.
        Nothing changes on `Conflict`: the corpus has another fingerprint, or has documents with another stemming.
        """

    def corpus(self, name: str) -> Corpus:
        """Return the corpus."""

    def described(self, name: str) -> tuple[Corpus, Size]:
        """Return the corpus and its size, read in one transaction."""

    def drop(self, name: str) -> None:
        """Remove a corpus with every document."""

    def rename(self, name: str, to: str) -> None:
        """Give the corpus another name. Its generation stays, and no other corpus ever had it.

        Raises:
            Conflict: there is a corpus `to`.
        """

    def write(self, name: str, writes: Sequence[Write]) -> list[Change | ServiceError]:
        """Apply `writes` in order in one commit. A document replaces an existing document of the same id.

        Return for each write its change, or the error that refused the write. The error is `Conflict` if the corpus has
        another fingerprint.
        """

    def accept(self, name: str, job: str) -> None:
        """Protect later writes and removals by other requests from being overwritten by this job, until `release`."""

    def accepted(self, name: str) -> list[str]:
        """Return the jobs that were accepted and not released, sorted."""

    def release(self, name: str, job: str) -> None:
        """End the protection of a job. A job that was not accepted is ignored."""

    def embedded(
        self, name: str, texts: Sequence[str], chunking: Chunking | None, fingerprint: str
    ) -> list[KnownText | None]:
        """Return the stored vectors of each text.

        Return None for a text that no document contains, split in the same way.

        Return None for all texts if the corpus has another fingerprint.
        """

    def document(self, name: str, document: str) -> Document:
        """Return a document by its id, or raise `NotFound`."""

    def passages(self, name: str, keys: Sequence[int]) -> dict[int, Passage]:
        """Return the passages of `keys`. Keys without a passage are left out."""

    def owners(self, name: str, keys: Sequence[int]) -> dict[int, Document]:
        """Return the documents of the passages of `keys`, with empty texts. Keys without a passage are left out.

        The texts are not read, so this is much faster than `passages`.
        """

    def page(self, name: str, after: int, limit: int, where: Filter | None = None) -> Page:
        """Return up to `limit` documents after the position `after` whose metadata match.

        A page of large documents may have fewer than `limit`. It has at least one document, unless none is left.
        """

    def sorted_page(
        self, name: str, orders: Sequence[Sort], after: Place | None, limit: int, where: Filter | None = None
    ) -> Page:
        """Return up to `limit` documents in the given orders after a place, as `page` does."""

    def keys(self, name: str) -> Keys:
        """Return the sorted keys of all passages."""

    def expired(self, name: str) -> Keys:
        """Return the sorted keys of the passages whose documents have expired and are not removed yet."""

    def matching(self, name: str, where: Filter) -> Keys:
        """Return the sorted keys of the passages of every document whose metadata match."""

    def unmatched(self, name: str, where: Filter) -> list[str]:
        """Return a warning for each condition that no document can meet: the field is missing or has other types."""

    def ids_matching(self, name: str, where: Filter) -> list[str]:
        """Return the ids of every document whose metadata match."""

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
        """Count the passages that contain any word of `query` and whose documents match, and their documents' values.

        Without `query`, all matching passages are counted. Each of `paths` has up to `values` values.
        """

    def words(
        self, name: str, query: str, k: int, where: Filter | None = None, options: WordOptions = NO_OPTIONS
    ) -> Ranking:
        """Return the best `k` passages by BM25 that contain any word of `query`.

        A greater score is better. Passages of equal score are ordered oldest first. `query` has no operators and may
        contain any characters. Only a phrase in double quotes is special: it must occur.

        A store that can't search with `options` or with the settings of the corpus raises `Invalid`.
        """

    def highlights(
        self, name: str, texts: Sequence[str], query: str, options: WordOptions = NO_OPTIONS
    ) -> list[list[Span]]:
        """Return for each of `texts` the spans that match words of `query`.

        Words match as in `words`. Only the first `MAX_MARKED` characters of a text are searched.
        """

    def vectors(self, name: str, keys: Sequence[int] | None = None, after: int = 0) -> Blocks:
        """Yield the vectors of `keys`. If `keys` is None, yield all vectors with keys greater than `after`."""

    def tombstones(self, name: str, upto: int) -> Keys:
        """Return the sorted deleted keys up to `upto`; see `bury`."""

    def bury(self, name: str, keys: Keys) -> None:
        """Delete the tombstones of `keys`. No index on disk may still contain these keys."""

    def last_key(self, name: str) -> int:
        """Return the greatest key that was ever assigned, or 0 if there was none."""

    def stale(self, name: str, fingerprint: str, limit: int) -> list[tuple[int, str]]:
        """Return key and text of up to `limit` passages that the encoder `fingerprint` has not embedded yet."""

    def refresh(self, name: str, fingerprint: str, keys: Keys, vectors: Floats) -> None:
        """Store (N, D) vectors of a re-embedding beside the served vectors.

        If the previous fresh vectors have another fingerprint, they are deleted first.
        """

    def fresh(self, name: str) -> Blocks:
        """Yield all vectors of the re-embedding."""

    def swap(self, name: str, fingerprint: str) -> bool:
        """Replace the served vectors by the vectors of the re-embedding in one commit, and return True.

        If some passages have no new vector yet, change nothing and return False.
        """

    def keep_map(self, name: str, found: Map, generation: str) -> None:
        """Store a map of the corpus, which replaces the previous map.

        Raises:
            Conflict: the corpus no longer has this generation.
        """

    def kept_map(self, name: str) -> Map | None:
        """Return the stored map, or None if there is none."""

    def give_back(self, name: str, least: int = 0) -> None:
        """Return unused space of old vectors and removed documents to the disk. Concurrent writes are allowed.

        Nothing is returned if the unused space has less than `least` bytes and is a small part of the file.
        """

    def copy(self, name: str, to: Path, stop: Stop = never) -> tuple[Corpus, Size]:
        """Copy a snapshot of the corpus to the file `to`. Concurrent writes are allowed.

        Return the copied corpus and its size.
        """

    def adopt(
        self,
        name: str,
        file: Path,
        replacing: Replacing | None = None,
        stop: Stop = never,
        bounds: Bounds = BOUNDS,
    ) -> None:
        """Serve a file written by `copy` under `name`, replacing an existing corpus.

        `file` is checked, which takes long, and then moved. The move runs in the context manager `replacing`, which
        gets all vectors of `file`.

        Raises:
            StoreError: the file is not a complete corpus, or exceeds `bounds`; nothing has changed.
        """

    def verify(self, name: str) -> list[str]:
        """Return one line for each error in the corpus: in its structure, its rows or its word index.

        The whole file is read.
        """

    def size(self, name: str) -> Size:
        """Return the size of a corpus with all documents that are not removed yet."""

    def close(self) -> None:
        """Close the store. No method may be called afterwards."""
