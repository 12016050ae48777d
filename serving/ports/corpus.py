"""A corpus and its contents: the values that a store takes and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from serving.ports.index import Floats, Keys

RECALL_TARGET = 0.95
"""The default recall@10 of a corpus's index."""
Stemming = Literal["none", "porter"]
"""Part of a word that is compared: the whole word, or its stem by rules for English (Porter, An algorithm for suffix
stripping, 1980)."""


@dataclass(frozen=True)
class Corpus:
    """A named collection of documents, all embedded by one encoder."""

    name: str
    description: str | None = None
    recall_target: float | None = None
    created: float = 0.0
    """Seconds since the epoch."""
    fingerprint: str | None = None
    """Fingerprint of the bundle that embeds it. None until the first document, unless the corpus was created for a
    bundle."""
    dim: int | None = None
    stemming: Stemming | None = None
    generation: str = field(default="", compare=False)
    """Given by the store. It changes whenever a key may mean another passage or have another vector than before."""

    @property
    def wanted_recall(self) -> float:
        """recall@10 that its index must reach."""
        return self.recall_target or RECALL_TARGET

    @property
    def wanted_stemming(self) -> Stemming:
        """Stemming by which its words are compared."""
        return self.stemming or "none"


class Document(NamedTuple):
    """A text with an id and metadata, both from its owner."""

    id: str
    text: str
    metadata: Mapping[str, Any]


Scalar = str | int | float | bool | None
"""A scalar of JSON."""


class Span(NamedTuple):
    """Range of a text in characters (code points), from `start` to `end`, exclusive."""

    start: int
    end: int


class Chunking(NamedTuple):
    """Lengths of the passages that texts are split into."""

    tokens: int
    """Maximum tokens of a passage, without those that the tokenizer adds."""
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
    """The accepted upload that it belongs to. Later writes and removals by others are kept; see `Store.accept`."""


@dataclass(frozen=True)
class Removal:
    """Ids of documents to remove. Unknown ids are skipped."""

    ids: Sequence[str]


Write = Content | Removal


class Change(NamedTuple):
    """Effect of a committed write: removed and added keys of passages. A replaced passage has both."""

    removed: Keys
    added: Keys
    vectors: Floats
    """Vectors of the added keys, in order."""


class Page(NamedTuple):
    """Documents of one moment, oldest first, each with its position."""

    rows: list[tuple[int, Document]]
    more: bool
    """Whether more documents follow."""
    total: int
    """Number of documents on all pages."""


class Passage(NamedTuple):
    """The passage of a key."""

    document: Document
    span: Span | None
    """None means the whole document, which was not split."""


class Held(NamedTuple):
    """Passages of a text that was embedded before: spans, or None if it was not split, and (P, D) vectors."""

    spans: Sequence[Span] | None
    vectors: Floats


class Size(NamedTuple):
    """Size of a corpus."""

    documents: int
    bytes: int
    passages: int


class FacetValue(NamedTuple):
    """A value of a field with the number of its documents, or None if they are too many to count."""

    value: Scalar
    documents: int | None


class Facet(NamedTuple):
    """Statistics of a metadata field, which is a dotted path if it is within objects."""

    field: str
    kinds: Sequence[str]
    """Types that occur: number, string, boolean, null, list and object, sorted."""
    least: int | float | None
    greatest: int | float | None
    """Maximum of its numbers. Both limits are None also if too many documents would have to be read."""
    values: Sequence[FacetValue]
    """Indexed values, most frequent first. If they are not counted, the first in their order."""
    complete: bool
    """Whether these are all values: none was beyond the requested number, or too large to be indexed."""


class Facets(NamedTuple):
    """Fields of a corpus, and whether they are all."""

    fields: Sequence[Facet]
    complete: bool
