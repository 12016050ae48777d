"""A corpus and its contents: the values that indexes and stores take and return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.corpora.filters import Point
from serving.operations.bounds import BOUNDS, Bounds

Keys = NDArray[np.int64]
Blocks = Iterator[tuple[Keys, Floats]]
"""(n,) keys and (n, D) vectors, in order of keys."""
PassageKey = int | str
"""Key of a passage. A local store has numbers. Other backends may have strings."""

RECALL_TARGET = 0.95
"""The default recall@10 of a corpus's index."""
Stemming = Literal["none", "porter"]
"""Comparison of words: `none` compares whole words, and `porter` compares English stems (Porter, An algorithm for
suffix stripping, 1980)."""


OWN = "own"
"""Fingerprint of a corpus whose vectors were computed by callers. No bundle has it."""


@dataclass(frozen=True)
class OwnVectors:
    """Placeholder for the encoder of a corpus of own vectors. If `dim` is None, the first vector sets the dimension."""

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
        """Whether the documents bring their own vectors, so that no encoder embeds the corpus."""
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
    """Removal of up to `limit` documents that expired by `moment`. Unlike `Removal`, it spares pending uploads."""

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
