"""A corpus and what it holds: the values that a store takes and gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from serving.ports.index import Floats, Keys

RECALL_TARGET = 0.95
"""recall@10 that a corpus asks of its index where its owner says nothing."""
Stemming = Literal["none", "porter"]
"""What of a word is compared: all of it, or its stem by rules for English (Porter, An algorithm for suffix stripping,
1980)."""


@dataclass(frozen=True)
class Corpus:
    """A named collection of documents, all embedded by one encoder."""

    name: str
    description: str | None = None
    recall_target: float | None = None
    created: float = 0.0
    """Seconds since the epoch."""
    fingerprint: str | None = None
    """Of the bundle that embeds it; None until the first document unless it was created for one."""
    dim: int | None = None
    stemming: Stemming | None = None
    generation: str = field(default="", compare=False)
    """Given by the store: another one wherever a key may mean another passage or have another vector than before."""

    @property
    def wanted_recall(self) -> float:
        """recall@10 that it asks of its index."""
        return self.recall_target or RECALL_TARGET

    @property
    def wanted_stemming(self) -> Stemming:
        """How its words are compared."""
        return self.stemming or "none"


class Document(NamedTuple):
    """A text, the id its owner gave it, and what its owner knows about it."""

    id: str
    text: str
    metadata: Mapping[str, Any]


Scalar = str | int | float | bool | None
"""Of JSON."""


class Span(NamedTuple):
    """Part of a text, in characters (code points): from `start` up to, not including, `end`."""

    start: int
    end: int


class Chunking(NamedTuple):
    """How long texts are cut into passages."""

    tokens: int
    """Of a passage, at most, those not counted that the tokenizer adds."""
    overlap: int
    """Tokens that a passage shares with the one before it, at most."""


@dataclass(frozen=True)
class Content:
    """Documents together with the (P, D) vectors of their passages, in order, and the encoder that made them."""

    documents: Sequence[Document]
    vectors: Floats
    fingerprint: str
    spans: Sequence[Sequence[Span]] | None = None
    """Of each document its passages, at least one; None: each document is one."""
    chunking: Chunking | None = None
    """What `spans` come from."""
    job: str | None = None
    """The accepted upload that it is a part of: what others wrote or removed since stays, see `Store.accept`."""


@dataclass(frozen=True)
class Removal:
    """Documents to remove, by id; those that are not there are passed over."""

    ids: Sequence[str]


Write = Content | Removal


class Change(NamedTuple):
    """What a committed write did to the passages: keys that are gone, keys that are new, also of what is replaced."""

    removed: Keys
    added: Keys
    vectors: Floats
    """Of those added, in order."""


class Page(NamedTuple):
    """Documents of one moment, oldest first, each with its place."""

    rows: list[tuple[int, Document]]
    more: bool
    """Whether others follow."""
    total: int
    """Documents on all pages."""


class Passage(NamedTuple):
    """What a key stands for."""

    document: Document
    span: Span | None
    """None: the whole document, which was not cut."""


class Held(NamedTuple):
    """The passages of a text that was embedded before: spans, or None if it was not cut, and (P, D) vectors."""

    spans: Sequence[Span] | None
    vectors: Floats


class Size(NamedTuple):
    """How much a corpus holds."""

    documents: int
    bytes: int
    passages: int


class FacetValue(NamedTuple):
    """A value of a field, and how many documents have it; None where they are too many to be counted."""

    value: Scalar
    documents: int | None


class Facet(NamedTuple):
    """What stands in a field of the metadata, a dotted path where it is within objects."""

    field: str
    kinds: Sequence[str]
    """Of number, string, boolean, null, list and object, sorted."""
    least: int | float | None
    greatest: int | float | None
    """Of its numbers; None also where too many documents would have to be read for it."""
    values: Sequence[FacetValue]
    """Of what is indexed, the most frequent first; where they are not counted the first in their order."""
    complete: bool
    """Whether there are no others: none beyond the number asked for, and none too large to be indexed."""


class Facets(NamedTuple):
    """The fields of a corpus, and whether there are no others."""

    fields: Sequence[Facet]
    complete: bool
