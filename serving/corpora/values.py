"""Values that describe a corpus and its contents. Stores and indexes use them as arguments and results."""

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
"""Blocks of (n,) keys and (n, D) vectors, in order of keys."""
PassageKey = int | str
"""Key of a passage. Local stores use numbers, and other backends may use strings."""

RECALL_TARGET = 0.95
"""Default minimum recall@10 of a corpus's index."""
Stemming = Literal["none", "porter"]
"""Comparison of words: `none` compares whole words, and `porter` compares English stems (Porter, An algorithm for
suffix stripping, 1980)."""


OWN = "own"
"""Value of `Corpus.fingerprint` for a corpus with own vectors, which callers computed. No bundle has this
fingerprint."""


@dataclass(frozen=True)
class OwnVectors:
    """Marker in place of an encoder's manifest. It says that a corpus has own vectors, which callers computed.

    If `dim` is None, the first vector sets the dimension of the corpus.
    """

    dim: int | None = None
    fingerprint: str = OWN


@dataclass(frozen=True)
class WordSettings:
    """Settings of word search in a corpus. A setting is None if it was never given."""

    synonyms: dict[str, list[str]] | None = None
    """Synonyms. Each key is a word or a phrase. If a query contains the key, the search also looks for the words in
    the key's list."""
    stop_words: list[str] | None = None
    """Words of queries that the search ignores."""
    fields: dict[str, float] | None = None
    """Metadata fields that the search includes, each with a weight. For example, a word in a field with the weight 2
    counts as much as two words in the text."""


NO_SETTINGS = WordSettings()


class WordOptions(NamedTuple):
    """Options of one word search, for incomplete and misspelt words."""

    prefix: bool = False
    """True if the last word may be incomplete."""
    typos: bool = False
    """True if the search also finds words that are similar to a word of the query."""


NO_OPTIONS = WordOptions()


@dataclass(frozen=True)
class Corpus:
    """A named collection of documents.

    One encoder embeds all documents of a corpus, or callers upload the documents with own vectors.
    """

    name: str
    description: str | None = None
    recall_target: float | None = None
    created: float = 0.0
    """Time of creation, in seconds since the epoch."""
    fingerprint: str | None = None
    """Fingerprint of the bundle that embeds the corpus, or `OWN`. It is set when the corpus is created for a bundle, or
    by the first document. Until then, it is None."""
    dim: int | None = None
    stemming: Stemming | None = None
    words: WordSettings = NO_SETTINGS
    generation: str = field(default="", compare=False)
    """Identifier that the store assigns. It changes whenever a key may refer to another passage or another vector."""

    @property
    def own_vectors(self) -> bool:
        """True if the documents are uploaded with their vectors, so that no encoder embeds the corpus."""
        return self.fingerprint == OWN

    @property
    def wanted_recall(self) -> float:
        """Minimum recall@10 of the corpus's index."""
        return self.recall_target or RECALL_TARGET

    @property
    def wanted_stemming(self) -> Stemming:
        return self.stemming or "none"


class Document(NamedTuple):
    """A document of a corpus: a text with an id and metadata."""

    id: str
    text: str
    metadata: Mapping[str, Any]
    vector: Floats | None = None
    """Unit vector (D,) that the caller computed and uploads with the document, if any."""
    expires_at: int | None = None
    """Time at which the document expires, in microseconds since 1970. None if it never expires."""

    @property
    def length(self) -> int:
        """Number of characters of the text, plus number of bytes of the vector. Limits on memory use this sum."""
        return len(self.text) + (0 if self.vector is None else self.vector.nbytes)


Scalar = str | int | float | bool | None


class Span(NamedTuple):
    """Range of characters (code points) of a text, from `start` to `end`. `end` is exclusive."""

    start: int
    end: int


class Chunking(NamedTuple):
    """Lengths of the passages into which texts are split."""

    tokens: int
    """Maximum number of tokens in a passage, without special tokens."""
    overlap: int
    """Maximum number of tokens that a passage shares with the previous passage."""


@dataclass(frozen=True)
class Content:
    """Documents, with the (P, D) vectors of all their passages in order.

    `fingerprint` is the fingerprint of the encoder that computed the vectors.
    """

    documents: Sequence[Document]
    vectors: Floats
    fingerprint: str
    spans: Sequence[Sequence[Span]] | None = None
    """Passages of each document. Each document has at least one. None means that each document is one passage."""
    chunking: Chunking | None = None
    """Parameters that produced `spans`."""
    job: str | None = None
    """Id of the upload job that writes these documents. The write skips documents that other requests have written or
    deleted since the job was accepted. See `Store.accept`."""


@dataclass(frozen=True)
class Removal:
    """Write that deletes documents by their ids. Unknown ids are skipped."""

    ids: Sequence[str]


@dataclass(frozen=True)
class Expiry:
    """Write that deletes up to `limit` documents that had expired at the time `moment`.

    If an upload job was accepted before the write, the job still writes documents with ids that an `Expiry` deletes,
    but skips documents with the ids of a `Removal`.
    """

    moment: int
    limit: int


class Changes(NamedTuple):
    """New metadata and a new expiry for documents. Texts and vectors stay the same."""

    metadata: Mapping[str, Any] = MappingProxyType({})
    """JSON merge patch of the metadata (RFC 7396)."""
    expires_at: int | Literal["kept"] | None = "kept"
    """New time of expiry, in microseconds since 1970. None means that the documents never expire. `kept` means that
    their time of expiry does not change."""


@dataclass(frozen=True)
class Patch:
    """Write that changes the metadata and the expiry of documents. Unknown ids are skipped."""

    ids: Sequence[str]
    changes: Changes
    bounds: Bounds = BOUNDS


Write = Content | Removal | Expiry | Patch


class Change(NamedTuple):
    """Effect of a committed write: the keys of removed and of added passages.

    A replaced passage has a removed key and an added key.
    """

    removed: Keys
    added: Keys
    vectors: Floats
    """Vectors of the added passages, in order."""

    @classmethod
    def nothing(cls) -> Change:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 0), np.float32))


class Sort(NamedTuple):
    """An order by the value at a dotted path.

    With `near`, the order is by the distance in metres from `near` to the point at the path. If the path has several
    points, the nearest one counts.
    """

    path: str
    descending: bool = False
    near: Point | None = None


class Place(NamedTuple):
    """Place of a document in a sorted list."""

    values: Sequence[Scalar]
    """Values of the document, one for each order."""
    position: int | str
    """Position of the document in the unsorted list. Documents with equal values are ordered by their positions."""


class Page(NamedTuple):
    """A page of documents, each with its position. The whole page was read in one transaction.

    The documents are oldest first, except on a page of `Store.sorted_page`.
    """

    rows: list[tuple[int, Document]]
    more: bool
    """True if there are more documents after this page."""
    total: int
    """Number of documents on all pages."""


class Passage(NamedTuple):
    """A passage: a document, and a span of its text."""

    document: Document
    span: Span | None
    """Span of the passage in the document's text. None if the document is a single passage."""


class KnownText(NamedTuple):
    """A text that is already embedded: the spans of its P passages, and their (P, D) vectors.

    Without spans, the text is a single passage.
    """

    spans: Sequence[Span] | None
    vectors: Floats


class Size(NamedTuple):
    """Size of a corpus."""

    documents: int
    bytes: int
    passages: int


class FacetValue(NamedTuple):
    """A value, and the number of documents with this value.

    The number is None if there are too many documents to count.
    """

    value: Scalar
    documents: int | None


class Facet(NamedTuple):
    """Statistics of a metadata field. The name of a field inside objects is a dotted path."""

    field: str
    kinds: Sequence[str]
    """Sorted types of the field's values: number, string, boolean, null, list and object."""
    least: int | float | None
    greatest: int | float | None
    """Greatest number in the field. `least` and `greatest` are both None if the field has no numbers, or if too many
    documents would have to be read to find them."""
    values: Sequence[FacetValue]
    """Indexed values, most frequent first. If there are too many documents to count, the values are in the order in
    which SQLite sorts them."""
    complete: bool
    """True if `values` has all values of the field. False if there are more values than requested, or if a value was
    too large to be indexed."""


class Counts(NamedTuple):
    """Number of matching passages, and counts of the values of some fields in the documents of these passages."""

    passages: int
    values: Mapping[str, Sequence[FacetValue]]
    """For each path, up to the requested number of values, most frequent first."""
    complete: bool
    """False if a value was too large to be indexed, or if there are too many index entries to count. The counts are
    then minimums."""


MAX_POINTS = 50_000


@dataclass(frozen=True)
class MapOrigin:
    """State of a corpus when its map was computed."""

    fingerprint: str | None
    passages: int
    """Number of passages in the corpus. The map may have fewer points."""
    last_key: int
    created: float


class Map(NamedTuple):
    """A map of a corpus: positions of passages on a plane, and the state of the corpus when the map was computed."""

    origin: MapOrigin
    keys: Keys
    """Sorted keys of the N passages."""
    places: NDArray[np.float64]
    """(N, 2) coordinates."""


class Facets(NamedTuple):
    """Metadata fields of a corpus. `complete` is True if `fields` has all metadata fields."""

    fields: Sequence[Facet]
    complete: bool
