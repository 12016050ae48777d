"""The interface between search and an engine: a corpus that can be searched."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from models.runtimes.base import Floats
from serving.corpora.filters import Filter
from serving.corpora.ports import Ranking
from serving.corpora.values import Document, Passage, Span, WordOptions


class Searchable(Protocol):
    """A corpus that can be searched.

    It returns rankings by meaning and by words, and the passages of the keys in rankings.
    """

    def filtered(self, where: Filter) -> Searchable:
        """Return the same corpus, restricted to the documents that match a filter."""

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[Ranking]:
        """Return the best `k` passages by cosine for each row of (Q, D) `queries`, which are unit vectors."""

    def lexical(self, query: str, k: int, options: WordOptions) -> Ranking:
        """Return the best `k` passages by BM25; see `Store.words`.

        Raises:
            Invalid: the corpus can't be searched with `options`.
        """

    def searched_fields(self) -> Collection[str]:
        """Return the metadata fields that keyword search includes."""

    def passages(self, keys: Sequence[int]) -> dict[int, Passage]:
        """Return the passages of the keys of rankings. Keys without a passage are left out."""

    def documents(self, keys: Sequence[int]) -> dict[int, Document]:
        """Return the documents of the keys of rankings, with empty texts. Keys without a passage are left out."""

    def keys_of(self, ids: Sequence[str]) -> list[int]:
        """Return the keys of all passages of these documents. Unknown ids are left out."""

    def vectors(self, keys: Sequence[int]) -> dict[int, Floats]:
        """Return the (D,) vectors of the keys of rankings."""

    def highlights(self, texts: Sequence[str], query: str, options: WordOptions) -> list[list[Span]]:
        """Return for each of `texts` the spans that match words of `query`; see `Store.highlights`."""
