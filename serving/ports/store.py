"""What a store must do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from serving.bounds import BOUNDS, Bounds
from serving.errors import ServiceError
from serving.filters import Filter
from serving.ports.corpus import (
    Change,
    Chunking,
    Corpus,
    Document,
    Facets,
    Held,
    Page,
    Passage,
    Size,
    Write,
)
from serving.ports.index import Blocks, Floats, Keys, Ranking

Replacing = Callable[[Blocks], AbstractContextManager[None]]
Stop = Callable[[], bool]
"""Whether whoever asked for long work has gone; it ends by `Stopped` then, and nothing has changed."""


def never() -> bool:
    """A `Stop` of work that is wanted whole."""
    return False


class StoreError(RuntimeError):
    """The folder of the corpora, or a file in it, can't be used; the message names it."""


class Store(Protocol):
    """The truth. A method that returns has committed; one that raises has changed nothing. Thread-safe.

    A document is held as one passage or several; each has a key. Keys are positive, grow with time and are never used
    twice. Every method that takes the name of a corpus raises `NotFound` where there is none.
    """

    def names(self) -> list[str]:
        """Every corpus, sorted."""

    def create(self, corpus: Corpus) -> bool:
        """Create it without documents. An existing corpus is only described, and False is returned."""

    def describe(self, corpus: Corpus) -> None:
        """An existing corpus takes over the description, recall target and stemming that are not None, and the
        fingerprint if it has none, all or none: `Conflict` if it has another one, or holds documents whose words are
        compared otherwise.
        """

    def corpus(self, name: str) -> Corpus:
        """What it is."""

    def described(self, name: str) -> tuple[Corpus, Size]:
        """The same and how much it holds, both of one moment."""

    def drop(self, name: str) -> None:
        """Remove it with every document."""

    def write(self, name: str, writes: Sequence[Write]) -> list[Change | ServiceError]:
        """All of `writes` in their order and in one commit, for one wait for the disk; what a write did, or why it did
        nothing: `Conflict` if the corpus has another fingerprint. Documents replace those of the same id.
        """

    def accept(self, name: str, job: str) -> None:
        """From now on what is written and removed stays, whatever `Content` of this job comes later: see `release`."""

    def accepted(self, name: str) -> list[str]:
        """The jobs that were accepted and not released, sorted."""

    def release(self, name: str, job: str) -> None:
        """The job has ended; nothing if it was not accepted."""

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

    def page(self, name: str, after: int, limit: int, where: Filter | None = None) -> Page:
        """Up to `limit` documents beyond the place `after`, of those whose metadata match.

        A page of large documents ends before `limit`, but has one document at least, unless none is left.
        """

    def keys(self, name: str) -> Keys:
        """Sorted keys of all passages."""

    def matching(self, name: str, where: Filter) -> Keys:
        """Sorted keys of the passages of every document whose metadata match."""

    def unmatched(self, name: str, where: Filter) -> list[str]:
        """Warnings: conditions that no document can meet, because its field is missing or holds other types."""

    def ids_matching(self, name: str, where: Filter) -> list[str]:
        """Ids of every document whose metadata match."""

    def facets(self, name: str, values: int) -> Facets:
        """The fields of the metadata, each with up to `values` of its most frequent values."""

    def words(self, name: str, query: str, k: int, where: Filter | None = None) -> Ranking:
        """The best `k` passages by BM25 (greater is better) that hold any word of `query`, in whatever form it comes:
        nothing in it is an operator but a phrase in double quotes, which must occur. Equal scores oldest first.
        """

    def vectors(self, name: str, keys: Sequence[int] | None = None, after: int = 0) -> Blocks:
        """All vectors of keys beyond `after`, or those of `keys`."""

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

    def fresh(self, name: str) -> Blocks:
        """All fresh vectors."""

    def swap(self, name: str, fingerprint: str) -> bool:
        """Let the fresh vectors serve in place of the old in one commit; False, and nothing, while some are missing."""

    def give_back(self, name: str, least: int = 0) -> None:
        """Give the room that nothing takes any more, of old vectors and what was removed, back to the disk, if it is so
        many bytes or a good part of the file; others write between."""

    def copy(self, name: str, to: Path, stop: Stop = never) -> tuple[Corpus, Size]:
        """A consistent copy in a file of its own, of one moment, while others write; what the copy is and holds."""

    def adopt(
        self,
        name: str,
        file: Path,
        replacing: Replacing | None = None,
        stop: Stop = never,
        bounds: Bounds = BOUNDS,
    ) -> None:
        """Serve what `copy` once wrote to `file`, under `name`, in place of what was there, if anything.

        `file` is moved. It is checked first, which takes long; `replacing` is entered for the step that follows, with
        all vectors of `file`.

        Raises:
            StoreError: it is no whole corpus, or holds more than `bounds` allow; nothing has changed.
        """

    def verify(self, name: str) -> list[str]:
        """What is wrong with it, a line each: structure, checksums of vectors, words. Reads everything."""

    def size(self, name: str) -> Size:
        """How much it holds."""

    def close(self) -> None:
        """Let go of everything; nothing may be called afterwards."""
