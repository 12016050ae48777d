"""The rows of one corpus in Milvus: reads, writes and searches of a collection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from models.runtimes.base import Floats
from serving.corpora.filters import Filter
from serving.corpora.indexes.exact import best, rounded
from serving.corpora.ports import Ranking
from serving.corpora.stores import words
from serving.corpora.stores.fields import blocks
from serving.corpora.stores.milvus import rows
from serving.corpora.stores.milvus.connection import TIMEOUT, Connection
from serving.corpora.stores.milvus.expressions import expression, literal, literals
from serving.corpora.stores.queries import Rules, parse
from serving.corpora.values import Document, Passage, Span, Stemming, WordOptions
from serving.errors import Invalid
from serving.operations.threads import check_cancelled

DEEPEST = 16_384
"""Maximum number of hits of a search in Milvus."""
TIES = 100
"""Number of additional hits that a lexical search requests. Milvus cuts off hits of equal score in any order."""
TOGETHER = 500
"""Maximum number of rows in one request."""
_FIRST = "passage == 0"


@dataclass(frozen=True)
class Rows:
    """The rows of a corpus, in one collection of Milvus."""

    connection: Connection
    collection: str
    stemming: Stemming = "none"
    effort: Callable[[int, bool], dict[str, int]] = lambda _k, _most: {}
    """Function that returns the parameters of a search for `k` hits. If the function's second argument is true, the
    parameters give the best recall."""
    where: str = ""
    live: str = ""
    """Condition of every read, which excludes documents that have expired."""
    keys: dict[int, str] = field(default_factory=dict)
    """Primary keys of the passages in all rankings so far, by the numbers that replace them in rankings (see
    `rows.number`)."""

    # Methods that write.

    def upsert(self, some: Iterable[rows.Row]) -> None:
        for part in blocks(list(some), TOGETHER):
            with self.connection.errors():
                self.connection.client.upsert(self.collection, part, timeout=TIMEOUT)

    def delete(self, ids: Sequence[str], *, split: bool) -> None:
        """Remove documents with all their passages. `split` is true if a document may have several passages."""
        for part in blocks(ids, TOGETHER):
            if split:
                self.delete_rows(f"document in {literals(part)}")
            else:
                self.delete_rows(f"id in {literals(rows.key(id, 0) for id in part)}")

    def delete_rows(self, where: str) -> None:
        with self.connection.errors():
            self.connection.client.delete(self.collection, filter=where, timeout=TIMEOUT)

    # Methods that read.

    def matching(self, where: Filter) -> str:
        """Translate a filter to an expression of Milvus."""
        return expression(where, self.any)

    def any(self, where: str) -> bool:
        """Return whether any row matches the expression."""
        return bool(self._query(where, ["id"], limit=1))

    def count(self, where: str = "") -> int:
        (row,) = self._query(where, ["count(*)"])
        return int(row["count(*)"])

    def documents_count(self, where: str = "") -> int:
        return self.count(first_of(where))

    def each(
        self, fields: Sequence[str], where: str = "", after: str = "", limit: int = -1, together: int = TOGETHER
    ) -> Iterator[list[Row]]:
        """Yield the rows that match the expression `where`, in blocks of up to `together` rows.

        The rows are in the order of their primary keys, and begin after the key `after`. `limit` is the maximum number
        of rows in all blocks together, or -1 for no limit.
        """
        behind = f"id > {literal(after)}" if after else ""
        with self.connection.errors():
            found = self.connection.client.query_iterator(
                self.collection,
                batch_size=together,
                limit=limit,
                filter=both(self.live, behind, where),
                output_fields=list(fields),
                timeout=TIMEOUT,
            )
            try:
                while block := found.next():
                    check_cancelled()
                    yield list(block)
            finally:
                found.close()

    def first_rows(self, fields: Sequence[str], where: str = "", after: str = "", limit: int = -1) -> list[Row]:
        """Return the first row of each document, for up to `limit` documents, in the order of their ids."""
        return [row for block in self.each(fields, first_of(where), after, limit) for row in block]

    def assembled(self, some: Sequence[Row]) -> dict[str, Document]:
        """Return the documents to which the rows `some` belong, by id.

        If a document has several passages, all its rows are read again. If this document was deleted meanwhile, it is
        left out.
        """
        whole = [row for row in some if row["passages"] == 1]
        split = {row["document"] for row in some if row["passages"] > 1}
        for part in blocks(sorted(split), TOGETHER):
            whole += [row for block in self.each(rows.WHOLE, f"document in {literals(part)}") for row in block]
        return rows.documents(whole)

    def document(self, id: str) -> Document | None:
        found = self._query(f"document == {literal(id)}", rows.WHOLE)
        return rows.documents(found).get(id)

    def get(self, ids: Sequence[str], fields: Sequence[str]) -> list[Row]:
        """Return the rows with these primary keys. Missing rows are left out."""
        found: list[Row] = []
        for part in blocks(ids, TOGETHER):
            found += self._query(f"id in {literals(part)}", fields)
        return found

    # Methods that search. See `ports.Searchable`.

    def filtered(self, where: Filter) -> Rows:
        return replace(self, where=self.matching(where))

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[Ranking]:
        found = self._search(rows.VECTOR, queries.tolist(), k, self.where, self.effort(min(k, DEEPEST), exact))
        return [self._ranking(one, k, np.float32) for one in found]

    def nearest(self, queries: Floats, k: int, effort: Mapping[str, int]) -> list[list[str]]:
        """Return the primary keys of the nearest passages of each query. `effort` has the parameters of the search."""
        found = self._search(rows.VECTOR, queries.tolist(), k, "", effort)
        return [[row["id"] for row in one] for one in found]

    def lexical(self, query: str, k: int, options: WordOptions) -> Ranking:
        check_word_options(options)
        text, phrases = rows.asked(query, self.stemming)
        if not text:
            return Ranking(np.empty(0, np.int64), np.empty(0))
        where = both(self.where, *(f"{rows.WORDS} like {literal(phrase)}" for phrase in phrases))
        (found,) = self._search(rows.SPARSE, [text], k + TIES, where, {})
        return self._ranking(found, k, np.float64)

    def passages(self, keys: Sequence[int]) -> dict[int, Passage]:
        found = self.get([self.keys[key] for key in keys], rows.WHOLE)
        whole = self.assembled(found)
        return {
            rows.number(row["id"]): rows.passage(row, whole[row["document"]])
            for row in found
            if row["document"] in whole
        }

    def documents(self, keys: Sequence[int]) -> dict[int, Document]:
        found = self.get([self.keys[key] for key in keys], ["id", "document"])
        firsts = self.get(sorted({rows.key(row["document"], 0) for row in found}), rows.UNREAD)
        owners = {row["document"]: rows.unread(row) for row in firsts}
        return {rows.number(row["id"]): owners[row["document"]] for row in found if row["document"] in owners}

    def keys_of(self, ids: Sequence[str]) -> list[int]:
        found = self._query(f"document in {literals(ids)}", ["id"]) if ids else []
        self.keys.update((rows.number(row["id"]), row["id"]) for row in found)
        return [rows.number(row["id"]) for row in found]

    def with_words(self, query: str) -> str:
        """Return the Milvus filter that matches every passage that a word search for `query` can find."""
        text, phrases = rows.asked(query, self.stemming)
        any_word = " or ".join(f"{rows.WORDS} like {literal(f'% {word} %')}" for word in dict.fromkeys(text.split()))
        return both(any_word or "passage < 0", *(f"{rows.WORDS} like {literal(phrase)}" for phrase in phrases))

    def vectors(self, keys: Sequence[int]) -> dict[int, Floats]:
        found = self.get([self.keys[key] for key in keys], ["id", rows.VECTOR]) if keys else []
        return {rows.number(row["id"]): rows.vector(row) for row in found}

    def searched_fields(self) -> Collection[str]:
        return ()

    def highlights(self, texts: Sequence[str], query: str, options: WordOptions) -> list[list[Span]]:
        check_word_options(options)
        return words.highlights(texts, parse(query, Rules(self.stemming)).terms, self.stemming)

    def _search(
        self, searched: str, queries: list[Any], k: int, where: str, effort: Mapping[str, int]
    ) -> list[list[Row]]:
        check_cancelled()
        with self.connection.errors():
            found: list[list[Row]] = self.connection.client.search(
                self.collection,
                data=queries,
                anns_field=searched,
                limit=min(k, DEEPEST),
                filter=both(self.live, where),
                output_fields=["id"],
                search_params={"params": dict(effort)},
                consistency_level="Strong",
                timeout=TIMEOUT,
            )
        return found

    def _ranking(self, found: Sequence[Row], k: int, kind: type[np.floating[Any]]) -> Ranking:
        keys = np.array([rows.number(row["id"]) for row in found], dtype=np.int64)
        self.keys.update(zip(keys.tolist(), (row["id"] for row in found), strict=True))
        # Milvus Lite returns BM25 scores with the opposite sign.
        scores = np.array([row["distance"] for row in found], dtype=kind)
        scores = rounded(scores) if kind is np.float32 else np.abs(scores)
        return best(keys, scores, k)

    def _query(self, where: str, fields: Sequence[str], **options: Any) -> list[Row]:
        with self.connection.errors():
            found: list[Row] = self.connection.client.query(
                self.collection,
                filter=both(self.live, where),
                output_fields=list(fields),
                consistency_level="Strong",
                timeout=TIMEOUT,
                **options,
            )
        return found


Row = Mapping[str, Any]


def check_word_options(options: WordOptions) -> None:
    """Raise `Invalid` for an option that word search on Milvus does not support."""
    for name, given in options._asdict().items():
        if given:
            raise Invalid(
                "corpora on Milvus support only whole, correctly spelled words: leave out this option", field=name
            )


def first_of(where: str) -> str:
    """Return a condition that selects one row, the first, of each document that meets the condition `where`."""
    return both(_FIRST, where)


def both(*conditions: str) -> str:
    return " and ".join(f"({one})" for one in conditions if one)
