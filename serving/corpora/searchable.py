"""A corpus that can be searched: the port between search and an engine, and the local engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from models.runtimes.base import Floats
from serving.corpora.filters import ID, Filter, In
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.ports import Document, Keys, Passage, Ranking, Span, Store, WordOptions


class Searchable(Protocol):
    """A corpus that can be searched: rankings by meaning and by words, and the passages of a ranking's keys."""

    def filtered(self, where: Filter) -> Searchable:
        """Return the same corpus, restricted to the documents whose metadata match."""

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[Ranking]:
        """Return the best `k` passages by cosine for each row of (Q, D) `queries`, which are unit vectors."""

    def lexical(self, query: str, k: int, options: WordOptions) -> Ranking:
        """Return the best `k` passages by BM25; see `Store.words`.

        Raises:
            Invalid: the corpus can't be searched with `options`.
        """

    def searched_fields(self) -> Collection[str]:
        """Return the metadata fields whose words are searched."""

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


@dataclass(frozen=True)
class IndexedCorpus:
    """A corpus of a local store, and its index."""

    store: Store
    name: str
    index: LiveIndex
    where: Filter | None = None

    def filtered(self, where: Filter) -> IndexedCorpus:
        return replace(self, where=where)

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[Ranking]:
        return self.index.search(queries, k, self._allowed, exact=exact)

    def lexical(self, query: str, k: int, options: WordOptions) -> Ranking:
        return self.store.words(self.name, query, k, self.where, options)

    def searched_fields(self) -> Collection[str]:
        return self.store.corpus(self.name).words.fields or ()

    def passages(self, keys: Sequence[int]) -> dict[int, Passage]:
        return self.store.passages(self.name, keys)

    def documents(self, keys: Sequence[int]) -> dict[int, Document]:
        return self.store.owners(self.name, keys)

    def keys_of(self, ids: Sequence[str]) -> list[int]:
        keys: list[int] = self.store.matching(self.name, In(ID, tuple(ids))).tolist()
        return keys

    def vectors(self, keys: Sequence[int]) -> dict[int, Floats]:
        found: dict[int, Floats] = {}
        for block, rows in self.store.vectors(self.name, keys) if keys else ():
            found.update(zip(block.tolist(), rows, strict=True))
        return found

    def highlights(self, texts: Sequence[str], query: str, options: WordOptions) -> list[list[Span]]:
        return self.store.highlights(self.name, texts, query, options)

    @cached_property
    def _allowed(self) -> Keys | None:
        return None if self.where is None else self.store.matching(self.name, self.where)
