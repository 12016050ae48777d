"""The seams of the server: what an engine, an index and a store must do, and the values they exchange."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from models.bundle import Manifest
from models.runtimes import base
from models.runtimes.choice import Choice
from models.tokenizer import Direction, Piece, Tokens
from serving.errors import ServiceError
from serving.filters import Filter

Floats = base.Floats
Keys = NDArray[np.int64]
Embedded = base.Embedded
RECALL_TARGET = 0.95
"""recall@10 that a corpus asks of its index where its owner says nothing."""


class EngineError(RuntimeError):
    """The engine can't run here, or not as the bundle asks; the message says why and what to change."""


class StoreError(RuntimeError):
    """The folder of the corpora, or a file in it, can't be used; the message names it."""


class Engine(Protocol):
    """A loaded model. `embed` runs on `streams` threads, beside the other methods, `tokenize` beside itself too."""

    name: str
    precision: str
    device: str
    vocab_size: int
    streams: int
    """Batches that it embeds side by side."""
    batch_tokens: int
    """Padded tokens of a batch, beyond which it is no quicker."""
    length_step: int
    """Batches are padded to a multiple of so many tokens."""
    choice: Choice
    """How runtime and precision were found."""

    def tokenize(self, texts: Sequence[str], direction: Direction) -> list[Tokens]:
        """Tokens of each text, cut to the model's length on the side that `direction` names."""

    def pieces(self, texts: Sequence[str], special_tokens: bool) -> list[list[Piece]]:
        """Every token of each text, nothing cut; those that the tokenizer adds only if `special_tokens`."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of ids of the vocabulary."""

    def embed(self, batch: Sequence[Tokens], *, alone: bool = False) -> Embedded:
        """One padded batch through the model, rows in the order given; `alone`: no other runs beside it."""


@dataclass(frozen=True)
class EngineOptions(base.Options):
    """What an engine may use of the machine, and in what numbers it is to compute; None leaves that to it."""

    precision: str | None = None


@dataclass(frozen=True)
class Model:
    """What is known of a model before its weights are read, and how to read them."""

    manifest: Manifest
    load: Callable[[EngineOptions], Engine]
    check: Callable[[EngineOptions], None] = lambda _: None
    """Raises EngineError, quickly, where `load` could not but fail on this machine."""
    report: bytes | None = None
    """How it was judged, as JSON."""
    report_page: bytes | None = None
    """The same as HTML."""
    int8_limit: float | None = None
    """The range of int8 output, if one was calibrated."""
    matryoshka: Collection[int] = ()
    """Widths that it was trained to be cut to."""


class Ranking(NamedTuple):
    """The hits of one query, best first; equal scores are ordered oldest first."""

    keys: Keys
    scores: Floats


class IndexSize(NamedTuple):
    """How much an index holds."""

    vectors: int
    bytes: int


class Index(Protocol):
    """Unit vectors of one width by key, searched by inner product.

    Written by one thread at a time, which its corpus sees to; searched by any number beside it. A search sees all or
    nothing of each write.
    """

    def __len__(self) -> int:
        """Vectors held."""

    @property
    def nbytes(self) -> int:
        """Memory it takes, room for more included."""

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Add (N, D) vectors under N keys, each greater than all it ever held."""

    def remove(self, keys: Keys) -> None:
        """Remove those of `keys` that the index holds."""

    def search(self, queries: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        """For each row of (Q, D) `queries` the best `k`, or all there are, among the sorted `allowed` keys if given."""


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
    generation: str = field(default="", compare=False)
    """Given by the store: another one wherever a key may mean another passage or have another vector than before."""

    @property
    def wanted_recall(self) -> float:
        """recall@10 that it asks of its index."""
        return self.recall_target or RECALL_TARGET


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


@dataclass(frozen=True)
class Removal:
    """Documents to remove, by id; those that are not there are passed over."""

    ids: Sequence[str]


Write = Content | Removal


class Change(NamedTuple):
    """What a committed write did to the passages: keys that are gone, keys that are new, also of what is replaced."""

    removed: Keys
    added: Keys


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
    """Of its numbers."""
    values: Sequence[FacetValue]
    """The most frequent first; where they are not counted the first in their order."""
    complete: bool
    """Whether there are no others."""


class Facets(NamedTuple):
    """The fields of a corpus, and whether there are no others."""

    fields: Sequence[Facet]
    complete: bool


class Store(Protocol):
    """The truth. A method that returns has committed; one that raises has changed nothing. Thread-safe.

    A document is held as one passage or several; each has a key. Keys are positive, grow with time and are never used
    twice. Every method that takes the name of a corpus raises `NotFound` where there is none.
    """

    def names(self) -> list[str]:
        """Every corpus, sorted."""

    def create(self, corpus: Corpus, content: Content | None = None) -> bool:
        """Create with all of `content` or not at all. An existing corpus only takes over the description and
        recall target that are not None, and False is returned.
        """

    def corpus(self, name: str) -> Corpus:
        """What it is."""

    def drop(self, name: str) -> None:
        """Remove it with every document."""

    def write(self, name: str, writes: Sequence[Write]) -> list[Change | ServiceError]:
        """All of `writes` in their order and in one commit, for one wait for the disk; what a write did, or why it did
        nothing: `Conflict` if the corpus has another fingerprint. Documents replace those of the same id.
        """

    def embedded(
        self, name: str, texts: Sequence[str], chunking: Chunking | None, fingerprint: str
    ) -> list[Held | None]:
        """Of each text that some document of the corpus has, cut in the same way, its vectors: found by content hash.
        None of any if the corpus has another fingerprint.
        """

    def document(self, name: str, document: str) -> Document:
        """A document by its id, or `NotFound`."""

    def passages(self, name: str, keys: Sequence[int]) -> dict[int, Passage]:
        """Those of `keys` that exist."""

    def page(self, name: str, after: int, limit: int) -> list[tuple[int, Document]]:
        """Up to `limit` documents beyond the place `after`, oldest first, each with its own place."""

    def keys(self, name: str) -> Keys:
        """Sorted keys of all passages."""

    def matching(self, name: str, where: Filter) -> Keys:
        """Sorted keys of the passages of every document whose metadata match."""

    def ids_matching(self, name: str, where: Filter) -> list[str]:
        """Ids of every document whose metadata match."""

    def facets(self, name: str, values: int) -> Facets:
        """The fields of the metadata, each with up to `values` of its most frequent values."""

    def words(self, name: str, query: str, k: int, where: Filter | None = None) -> Ranking:
        """The best `k` passages by BM25 (greater is better) that hold any word of `query`, in whatever form it comes:
        nothing in it is an operator but a phrase in double quotes, which must occur. Equal scores oldest first.
        """

    def vectors(self, name: str, keys: Sequence[int] | None = None, after: int = 0) -> Iterator[tuple[Keys, Floats]]:
        """All vectors of keys beyond `after`, or those of `keys`, in blocks of (n,) and (n, D) in order of keys."""

    def tombstones(self, name: str, upto: int) -> Keys:
        """Sorted keys up to `upto` that are no more; see `bury`."""

    def bury(self, name: str, keys: Keys) -> None:
        """Forget the tombstones of `keys`: no index that is kept anywhere holds them any more."""

    def last_key(self, name: str) -> int:
        """The greatest key ever given out; 0 if none was."""

    def stale(self, name: str, fingerprint: str, limit: int) -> list[tuple[int, str]]:
        """Up to `limit` passages, key and text, that have neither a vector nor a fresh vector of `fingerprint`."""

    def refresh(self, name: str, fingerprint: str, keys: Keys, vectors: Floats) -> None:
        """Keep fresh (N, D) vectors beside those that serve; of another fingerprint than before they start anew."""

    def swap(self, name: str, fingerprint: str) -> bool:
        """Let the fresh vectors serve in place of the old in one commit; False, and nothing, while some are missing."""

    def give_back(self, name: str) -> None:
        """Give the room that nothing takes any more, of old vectors mostly, back to the disk; others write between."""

    def copy(self, name: str, to: Path) -> tuple[Corpus, Size]:
        """A consistent copy in a file of its own, of one moment, while others write; what the copy is and holds."""

    def adopt(self, name: str, file: Path, replacing: AbstractContextManager[None] | None = None) -> None:
        """Serve what `copy` once wrote to `file`, under `name`, in place of what was there, if anything.

        `file` is moved. It is checked first, which takes long; `replacing` is entered for the step that follows.

        Raises:
            StoreError: it is no whole corpus; nothing has changed.
        """

    def verify(self, name: str) -> list[str]:
        """What is wrong with it, a line each: structure, checksums of vectors, words. Reads everything."""

    def size(self, name: str) -> Size:
        """How much it holds."""

    def close(self) -> None:
        """Let go of everything; nothing may be called afterwards."""
