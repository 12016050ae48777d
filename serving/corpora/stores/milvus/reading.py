"""Reads of one corpus in Milvus: searches, pages, counts, fields, samples, and the whole corpus.

A corpus without documents has no collection yet, so its `Rows` are None.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager

import numpy as np
import orjson

from models.runtimes.base import Floats
from serving.corpora.arranging import first_sorted, place_values, read_place, written_place
from serving.corpora.backend import Backend, DocumentCursor, DocumentPage, by_document, check_generation
from serving.corpora.filters import Filter, values_at
from serving.corpora.maps import Sample, Sampled, excerpt
from serving.corpora.search import Query, SearchOptions, SearchResult, find
from serving.corpora.stores import fields, records
from serving.corpora.stores.facets import counted_in, facets
from serving.corpora.stores.milvus import expressions
from serving.corpora.stores.milvus.indexes import KINDS
from serving.corpora.stores.milvus.lifecycle import Collections
from serving.corpora.stores.milvus.registry import Record, Registry
from serving.corpora.stores.milvus.rows import UNREAD, VECTOR, WHOLE, key, passage, unread, vector
from serving.corpora.stores.milvus.table import Rows, both, check_word_options, first_of
from serving.corpora.stores.unmatched import unmatched
from serving.corpora.values import (
    NO_OPTIONS,
    Chunking,
    Content,
    Counts,
    Document,
    Facets,
    KnownText,
    Passage,
    Place,
    Sort,
    WordOptions,
)
from serving.errors import Invalid, NotFound

READ_TOGETHER = 16
"""Maximum number of documents of a page that are read in one step, because each may be large."""
COUNTED = 10_000
"""Maximum number of documents that are read for the list of fields, and maximum number of passages for counts."""


class Reader(Backend):
    """The methods of `Backend` that read documents."""

    def __init__(self, registry: Registry, collections: Collections) -> None:
        self._registry = registry
        self._collections = collections

    def _live(self, name: str) -> Rows | None:
        return self._collections.live(self._registry.read(name))

    def document(self, name: str, document: str) -> Document:
        table = self._live(name)
        found = table.document(document) if table else None
        if found is None:
            raise NotFound(f"corpus {name!r} has no document {document!r}")
        return found

    def page(
        self,
        name: str,
        after: DocumentCursor | None,
        limit: int,
        where: Filter | None = None,
        sort: Sequence[Sort] = (),
    ) -> DocumentPage:
        """Implement `Backend.page`. Without `sort`, documents are in the order of their ids."""
        record = self._registry.read(name)
        table = self._collections.live(record)
        if after:
            check_generation(after.generation, record.generation)
        if table is None:
            return DocumentPage([], None, 0, ())
        matching = table.matching(where) if where else ""
        total = table.documents_count(matching)
        if sort:
            place = read_place(after.key, sort, str) if after else None
            found = _sorted_documents(table, matching, sort, place, limit)
        else:
            found = _documents(table, matching, key(after.key, 0) if after else "", limit)
        documents, more = _page(found, limit) if limit else ([], False)
        following = None
        if more and documents:
            last = documents[-1]
            end = written_place(Place(place_values(last, sort), last.id), sort) if sort else last.id
            following = DocumentCursor(record.generation, end)
        warnings = _unmatched(table, where) if where and not total else ()
        return DocumentPage(documents, following, total, warnings)

    def unmatched(self, name: str, where: Filter) -> list[str]:
        return _unmatched(self._live(name), where)

    def embedded(
        self, name: str, texts: Sequence[str], _chunking: Chunking | None, _fingerprint: str
    ) -> list[KnownText | None]:
        """Return None for each text, so that uploads embed every text.

        Stored texts can't be looked up, because Milvus has no index of whole texts.
        """
        self._registry.read(name)
        return [None for _ in texts]

    def contents(self, name: str) -> Iterator[Content]:
        record = self._registry.read(name)
        table = self._collections.live(record)
        return by_document(_passages(table), record.fingerprint or "") if table else iter(())

    def facets(self, name: str, values: int) -> Facets:
        """Implement `Backend.facets`, from the first `COUNTED` documents in the order of their ids."""
        with _fields(self._live(name)) as (database, complete):
            counted = facets(database, values)
        return counted._replace(complete=counted.complete and complete)

    def counts(
        self,
        name: str,
        query: str | None,
        where: Filter | None,
        paths: Sequence[str],
        values: int,
        *,
        options: WordOptions = NO_OPTIONS,
    ) -> Counts:
        """Implement `Backend.counts`.

        Only the documents of the first `COUNTED` passages are counted. Passages are in the order of their primary keys.
        """
        table = self._live(name)
        check_word_options(options)
        if table is None:
            return Counts(0, {path: [] for path in paths}, complete=True)
        chosen = both(table.matching(where) if where else "", table.with_words(query) if query is not None else "")
        passages = table.count(chosen)
        if not paths:
            return Counts(passages, {}, complete=True)
        found = [row for block in table.each(["document"], chosen, limit=COUNTED) for row in block]
        firsts = table.get([key(id, 0) for id in dict.fromkeys(row["document"] for row in found)], UNREAD)
        metadata = ((0, row["document"], row["metadata"]) for row in firsts)
        return Counts(passages, counted_in(metadata, paths, values), passages <= COUNTED)

    def sample(self, name: str, size: int, field: str | None) -> Sample:
        """Implement `Backend.sample`. Return the first passages, in the order of their documents' ids."""
        table = self._live(name)
        if table is None:
            return Sample([], np.empty((0, 0), np.float32), 0)
        read = [row for block in table.each([*WHOLE, VECTOR], limit=size) for row in block]
        whole = table.assembled(read)
        found = [row for row in read if row["document"] in whole]
        drawn = []
        for row in found:
            document = whole[row["document"]]
            value = next(values_at(document.metadata, field), None) if field else None
            drawn.append(Sampled(document.id, excerpt(passage(row, document)), value))
        return Sample(drawn, np.array([row[VECTOR] for row in found], np.float32), table.count())

    def search(
        self, name: str, queries: Sequence[Query], options: SearchOptions, fingerprint: str | None = None
    ) -> SearchResult:
        try:
            return self._search(self._registry.read(name), queries, options, fingerprint)
        except NotFound:  # a re-embedding may have removed the collection meanwhile
            return self._search(self._registry.read(name), queries, options, fingerprint)

    def _search(
        self, record: Record, queries: Sequence[Query], options: SearchOptions, fingerprint: str | None
    ) -> SearchResult:
        if options.after:
            check_generation(options.after.generation, record.generation)
        if fingerprint is not None and record.fingerprint != fingerprint:
            if self._collections.size(record).documents:
                self.encoder(record.name, [fingerprint])
            return SearchResult([[] for _ in queries], record.generation, None)
        table = self._collections.live(record)
        if record.table is None or table is None:
            return SearchResult([[] for _ in queries], record.generation, None)
        dim = record.table.dim
        wrong = next((q.vector for q in queries if q.vector is not None and len(q.vector) != dim), None)
        if wrong is not None:
            raise Invalid(f"{len(wrong)} numbers, but corpus {record.name!r} has {dim} dimensions", field="vector")
        found = find(table, queries, options)
        kind = None if options.mode == "lexical" else KINDS[record.table.index].public_name
        warnings = _unmatched(table, options.where) if options.where and not all(found) else ()
        return SearchResult(found, record.generation, kind, warnings=warnings)

    def index_fingerprint(self, name: str) -> str | None:
        return self._registry.fingerprints.get(name)

    def verify(self, name: str) -> list[str]:
        """Return a line for each document with missing or superfluous passages.

        Nothing else is checked, because Milvus checks its own files.
        """
        record = self._registry.read(name)
        wrong: list[str] = []
        expected, last = 0, ""
        columns = ["id", "document", "passage", "passages"]
        for block in self._collections.rows(record).each(columns) if record.table else ():
            for row in block:
                if row["document"] != last:
                    wrong += [f"document {last!r}: {expected} passages are missing"] * (expected > 0)
                    last, expected = row["document"], row["passages"]
                expected -= 1
                wrong += [f"document {last!r}: a passage too many"] * (expected < 0)
        return [*wrong, *[f"document {last!r}: {expected} passages are missing"] * (expected > 0)]


def _documents(table: Rows, matching: str, after: str, limit: int) -> Iterator[Document | None]:
    """Yield up to `limit` + 1 documents that meet the expression `matching`, after the primary key `after`.

    None stands for a document that was found, but deleted before all its passages were read.
    """
    for block in table.each(WHOLE, first_of(matching), after, limit + 1, READ_TOGETHER):
        whole = table.assembled(block)
        yield from (whole.get(row["document"]) for row in block)


def _sorted_documents(
    table: Rows, matching: str, orders: Sequence[Sort], after: Place | None, limit: int
) -> Iterator[Document | None]:
    """Yield up to `limit` + 1 documents that meet the expression `matching`, sorted by `orders`.

    If `after` is given, only documents after this place in the order are yielded. None stands for a document that was
    found, but deleted before all its passages were read.
    """
    found = (row for block in table.each(UNREAD, first_of(matching)) for row in block)
    chosen = first_sorted(((row["document"], unread(row)) for row in found), orders, after, limit + 1)
    for some in fields.blocks(chosen, READ_TOGETHER):
        whole = table.assembled(table.get([key(id, 0) for id in some], WHOLE))
        yield from map(whole.get, some)


def _page(found: Iterable[Document | None], limit: int) -> tuple[list[Document], bool]:
    """Return the documents of a page, and whether more documents follow.

    The page ends after `limit` documents, or with the document that reaches `PAGE_CHARACTERS`. None in `found` stands
    for a document that was deleted meanwhile. It counts as one of the `limit` documents, but is left out.
    """
    documents, left = list[Document](), records.PAGE_CHARACTERS
    for position, document in enumerate(found):
        if position == limit or left <= 0:
            return documents, True
        if document:
            documents.append(document)
            left -= len(document.text) + len(orjson.dumps(document.metadata))
    return documents, False


def _unmatched(table: Rows | None, where: Filter) -> list[str]:
    """Implement `Backend.unmatched`.

    If the corpus has more than `COUNTED` documents, warn only of fields that no document has. The types of values are
    then not checked.
    """
    with _fields(table) as (database, complete):
        if complete or table is None:
            return unmatched(database, where)
    wanted = dict.fromkeys(expressions.paths(where))
    return [f"no document has the field {path!r}." for path in wanted if not table.any(expressions.has_field(path))]


@contextmanager
def _fields(table: Rows | None) -> Iterator[tuple[sqlite3.Connection, bool]]:
    """Index the metadata of the first `COUNTED` documents in a SQLite database in memory.

    Yield the database, and whether the corpus has no further documents.
    """
    found = table.first_rows(UNREAD, limit=COUNTED + 1) if table else []
    read = [(number, row["document"], row["metadata"]) for number, row in enumerate(found[:COUNTED], start=1)]
    documents = "CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT, metadata TEXT)"
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in (*fields.TABLES, documents):
            database.execute(statement)
        stored = ((number, id, orjson.dumps(metadata)) for number, id, metadata in read)
        database.executemany("INSERT INTO documents VALUES (?, ?, ?)", stored)
        fields.index(database, ((number, metadata) for number, _, metadata in read))
        yield database, len(found) <= COUNTED


def _passages(table: Rows) -> Iterator[tuple[Passage, Floats]]:
    for block in table.each([*WHOLE, VECTOR]):
        whole = table.assembled(block)
        yield from ((passage(row, whole[row["document"]]), vector(row)) for row in block if row["document"] in whole)
