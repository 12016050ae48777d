"""The protocol of a store of corpora."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Floats
from serving.corpora.filters import Filter
from serving.errors import ServiceError
from serving.operations.bounds import BOUNDS, Bounds

# The protocol of a vector index, and its results.

Keys = NDArray[np.int64]
Blocks = Iterator[tuple[Keys, Floats]]
"""(n,) keys and (n, D) vectors, in order of keys."""


class Ranking(NamedTuple):
    """Hits of one query, best first. Equal scores are ordered oldest first."""

    keys: Keys
    scores: NDArray[np.floating[Any]]
    """float32 for vectors, float64 for words, since float32 would merge distinct scores of words."""


class IndexSize(NamedTuple):
    """Size of an index."""

    vectors: int
    bytes: int


class Index(Protocol):
    """Unit vectors of one dimension by key, searched by inner product.

    One thread at a time may write, which the corpus ensures; any number may search concurrently. A search sees each
    write completely or not at all.
    """

    def __len__(self) -> int:
        """Return the number of vectors."""

    @property
    def nbytes(self) -> int:
        """Memory in bytes, including spare capacity."""

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Add (N, D) vectors with N keys, each greater than all keys it ever had."""

    def remove(self, keys: Keys) -> None:
        """Remove the `keys` that the index has."""

    def search(self, queries: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        """Return up to `k` best hits for each row of (Q, D) `queries`, among the sorted `allowed` keys if given."""


# A corpus and its contents: the values that a store takes and returns.

MAX_MARKED = 20_000
"""Maximum characters of a text that `Store.highlights` searches."""
RESERVED_BYTES = 4 << 20
"""Bytes of disk space that a store reserves for removals, so that documents can be removed when the disk is full."""
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


class KnownText(NamedTuple):
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


Replacing = Callable[[Blocks], AbstractContextManager[None]]
Stop = Callable[[], bool]
"""Function that returns whether the caller of long work has left. The work then raises `Stopped` and changes nothing.
"""


def never() -> bool:
    """Return False, as a `Stop` that never stops."""
    return False


class StoreError(RuntimeError):
    """The folder of the corpora, or a file in it, can't be used. The message names it."""


class Store(Protocol):
    """The durable store of corpora.

    A method that returns has committed; one that raises has changed nothing. Thread-safe.

    A document is stored as one passage or several, each with a key. Keys are positive, increase with time and are never
    reused. Every method with the name of a corpus raises `NotFound` if the corpus does not exist.
    """

    def names(self) -> list[str]:
        """Return the names of all corpora, sorted."""

    def create(self, corpus: Corpus) -> bool:
        """Create an empty corpus. If it exists, only describe it, and return False."""

    def describe(self, corpus: Corpus) -> None:
        """Update an existing corpus with the description, recall target and stemming that are not None.

        Set the fingerprint if it has none. Nothing changes on `Conflict`: the corpus has another fingerprint, or has
        documents with another stemming.
        """

    def corpus(self, name: str) -> Corpus:
        """Return the corpus."""

    def described(self, name: str) -> tuple[Corpus, Size]:
        """Return the corpus and its size, both of one moment."""

    def drop(self, name: str) -> None:
        """Remove a corpus with every document."""

    def write(self, name: str, writes: Sequence[Write]) -> list[Change | ServiceError]:
        """Apply `writes` in order in one commit, with one wait for the disk. Documents replace those of the same id.

        Return for each write its change, or the error why it changed nothing: `Conflict` if the corpus has another
        fingerprint.
        """

    def accept(self, name: str, job: str) -> None:
        """Protect later writes and removals from any `Content` of this job, until `release`."""

    def accepted(self, name: str) -> list[str]:
        """Return the jobs that were accepted and not released, sorted."""

    def release(self, name: str, job: str) -> None:
        """End the protection of a job. A job that was not accepted is ignored."""

    def embedded(
        self, name: str, texts: Sequence[str], chunking: Chunking | None, fingerprint: str
    ) -> list[KnownText | None]:
        """Return the vectors of each text, found by content hash, if a document has the text split in the same way.

        Return None for all texts if the corpus has another fingerprint.
        """

    def document(self, name: str, document: str) -> Document:
        """Return a document by its id, or raise `NotFound`."""

    def passages(self, name: str, keys: Sequence[int]) -> dict[int, Passage]:
        """Return the passages of those `keys` that exist."""

    def page(self, name: str, after: int, limit: int, where: Filter | None = None) -> Page:
        """Return up to `limit` documents after the position `after` whose metadata match.

        A page of large documents may have fewer, but has at least one unless none is left.
        """

    def keys(self, name: str) -> Keys:
        """Return the sorted keys of all passages."""

    def matching(self, name: str, where: Filter) -> Keys:
        """Return the sorted keys of the passages of every document whose metadata match."""

    def unmatched(self, name: str, where: Filter) -> list[str]:
        """Return warnings about conditions that no document can meet: the field is missing or has other types."""

    def ids_matching(self, name: str, where: Filter) -> list[str]:
        """Return the ids of every document whose metadata match."""

    def facets(self, name: str, values: int) -> Facets:
        """Return the fields of the metadata, each with up to `values` of its most frequent values."""

    def words(self, name: str, query: str, k: int, where: Filter | None = None) -> Ranking:
        """Return the best `k` passages by BM25 (greater is better) with any word of `query`; equal scores oldest first.

        `query` has no operators and may contain any characters. Only a phrase in double quotes is special: it must
        occur.
        """

    def highlights(self, name: str, texts: Sequence[str], query: str) -> list[list[Span]]:
        """Return the spans in each of `texts` that match words of `query`, as `words` matches them.

        Only the first `MAX_MARKED` characters of a text are searched.
        """

    def vectors(self, name: str, keys: Sequence[int] | None = None, after: int = 0) -> Blocks:
        """Yield all vectors of keys greater than `after`, or those of `keys`."""

    def tombstones(self, name: str, upto: int) -> Keys:
        """Return the sorted deleted keys up to `upto`; see `bury`."""

    def bury(self, name: str, keys: Keys) -> None:
        """Delete the tombstones of `keys`, which no stored index has any more."""

    def last_key(self, name: str) -> int:
        """Return the greatest key ever given; 0 if there was none."""

    def stale(self, name: str, fingerprint: str, limit: int) -> list[tuple[int, str]]:
        """Return key and text of up to `limit` passages without any vector of `fingerprint`, served or fresh."""

    def refresh(self, name: str, fingerprint: str, keys: Keys, vectors: Floats) -> None:
        """Store fresh (N, D) vectors beside the served ones.

        If they have another fingerprint than the previous ones, start anew.
        """

    def fresh(self, name: str) -> Blocks:
        """Yield all fresh vectors."""

    def swap(self, name: str, fingerprint: str) -> bool:
        """Replace the served vectors by the fresh ones in one commit.

        If some are missing, change nothing and return False.
        """

    def give_back(self, name: str, least: int = 0) -> None:
        """Return unused space of old vectors and removed documents to the disk, while others write.

        Do so if it has at least `least` bytes or is a large part of the file.
        """

    def copy(self, name: str, to: Path, stop: Stop = never) -> tuple[Corpus, Size]:
        """Copy a corpus of one moment to a file of its own, while others write.

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

        `file` is moved. First it is checked, which takes long. `replacing` is entered with all vectors of `file` for
        the step that follows.

        Raises:
            StoreError: the file is not a complete corpus, or exceeds `bounds`; nothing has changed.
        """

    def verify(self, name: str) -> list[str]:
        """Return the errors of a corpus, one line each: structure, checksums of vectors, words.

        This reads everything.
        """

    def size(self, name: str) -> Size:
        """Return the size of a corpus."""

    def close(self) -> None:
        """Close the store. No method may be called afterwards."""
