"""The protocol of a store of corpora."""

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
    ) -> list[Held | None]:
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
