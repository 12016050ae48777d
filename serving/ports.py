"""The seams of the server: what an engine, an index and a store must do, and the values they exchange."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from models.bundle import Manifest
from models.runtimes import base
from models.runtimes.choice import Choice
from models.tokenizer import Direction, Piece, Tokens

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

    recall: ClassVar[float]
    """recall@10 against exact search."""

    def __init__(self, dim: int) -> None: ...

    def __len__(self) -> int:
        """Vectors held."""

    @property
    def nbytes(self) -> int:
        """Memory it takes, room for more included."""

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Add (N, D) vectors under N keys that the index does not hold yet."""

    def remove(self, keys: Keys) -> None:
        """Remove those of `keys` that the index holds."""

    def search(self, queries: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        """For each row of (Q, D) `queries` the best `k`, or all there are, among `allowed` keys if given."""


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

    @property
    def wanted_recall(self) -> float:
        """recall@10 that it asks of its index."""
        return self.recall_target or RECALL_TARGET


@dataclass(frozen=True)
class Document:
    """A text, the id its owner gave it, and what its owner knows about it."""

    id: str
    text: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Content:
    """Documents together with their (N, D) vectors and the encoder that made them."""

    documents: Sequence[Document]
    vectors: Floats
    fingerprint: str


class Change(NamedTuple):
    """What a committed write did: keys that are gone, keys that are new. A replaced document gets a new key."""

    removed: Keys
    added: Keys


class Size(NamedTuple):
    """How much a corpus holds."""

    documents: int
    bytes: int


class Store(Protocol):
    """The truth. A method that returns has committed; one that raises has changed nothing. Thread-safe.

    Keys are positive, grow with time and are never used twice. Every method that takes the name of a corpus
    raises `NotFound` where there is none.
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

    def put(self, name: str, content: Content) -> Change:
        """Add documents, replacing those of the same id; `Conflict` if the corpus has another fingerprint."""

    def delete(self, name: str, keys: Sequence[int]) -> None:
        """Remove those of `keys` that exist."""

    def key(self, name: str, document: str) -> int:
        """The key of a document by its id, or `NotFound`."""

    def document(self, name: str, document: str) -> Document:
        """A document by its id, or `NotFound`."""

    def documents(self, name: str, keys: Sequence[int]) -> dict[int, Document]:
        """Those of `keys` that exist."""

    def page(self, name: str, after: int, limit: int) -> list[tuple[int, Document]]:
        """Up to `limit` documents with keys beyond `after`, in order of keys."""

    def metadata(self, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Every key and its metadata, in order of keys."""

    def vectors(self, name: str, keys: Sequence[int] | None = None) -> Iterator[tuple[Keys, Floats]]:
        """All vectors, or those of `keys`, in blocks of (n,) keys and (n, D) vectors in order of keys."""

    def size(self, name: str) -> Size:
        """How much it holds."""

    def close(self) -> None:
        """Let go of everything; nothing may be called afterwards."""
