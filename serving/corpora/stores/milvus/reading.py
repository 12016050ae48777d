"""Reads of one corpus in Milvus: searches, pages, counts, fields, samples, and the whole corpus.

A corpus without documents has no collection yet, so its `Rows` are None.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import numpy as np
import orjson

from models.runtimes.base import Floats
from serving.corpora.arranging import first_sorted, place_values, read_place, written_place
from serving.corpora.backend import DocumentCursor, DocumentPage, by_document, check_generation
from serving.corpora.filters import Filter, values_at
from serving.corpora.maps import Sample, Sampled, excerpt
from serving.corpora.search import Query, SearchOptions, SearchResult, find
from serving.corpora.stores import fields, records
from serving.corpora.stores.facets import counted_in
from serving.corpora.stores.facets import facets as facets_of
from serving.corpora.stores.milvus import expressions
from serving.corpora.stores.milvus.indexes import KINDS
from serving.corpora.stores.milvus.registry import Record
from serving.corpora.stores.milvus.rows import UNREAD, VECTOR, WHOLE, key, passage, unread, vector
from serving.corpora.stores.milvus.table import Rows, both, check_word_options, first_of
from serving.corpora.stores.unmatched import unmatched as unmatched_in
from serving.corpora.values import Content, Counts, Document, Facets, Passage, Place, Sort, WordOptions
from serving.errors import Invalid

READ_TOGETHER = 16
"""Maximum number of documents of a page that are read in one step, because each may be large."""
COUNTED = 10_000
"""Maximum number of documents that are read for the list of fields, and maximum number of passages for counts."""


def search(record: Record, table: Rows | None, queries: Sequence[Query], options: SearchOptions) -> SearchResult:
    """Implement `Backend.search` for queries of the corpus's encoder."""
    if record.table is None or table is None:
        return SearchResult([[] for _ in queries], record.generation, None)
    dim = record.table.dim
    wrong = next((q.vector for q in queries if q.vector is not None and len(q.vector) != dim), None)
    if wrong is not None:
        raise Invalid(f"{len(wrong)} numbers, but corpus {record.name!r} has {dim} dimensions", field="vector")
    found = find(table, queries, options)
    kind = None if options.mode == "lexical" else KINDS[record.table.index].public_name
    warnings = unmatched(table, options.where) if options.where and not all(found) else ()
    return SearchResult(found, record.generation, kind, warnings=warnings)


def page(
    record: Record,
    table: Rows | None,
    after: DocumentCursor | None,
    limit: int,
    *,
    where: Filter | None,
    sort: Sequence[Sort],
) -> DocumentPage:
    """Implement `Backend.page`. Documents are in the order of their ids, unless they are sorted."""
    if after:
        check_generation(after.generation, record.generation)
    if table is None:
        return DocumentPage([], None, 0, ())
    matching = table.matching(where) if where else ""
    total = table.documents_count(matching)
    if not limit:
        documents, more = list[Document](), False
    elif sort:
        place = read_place(after.key, sort, str) if after else None
        documents, more = _sorted_page(table, matching, sort, place, limit)
    else:
        documents, more = _page(table, matching, key(after.key, 0) if after else "", limit)
    following = None
    if more:
        last = documents[-1]
        end = written_place(Place(place_values(last, sort), last.id), sort) if sort else last.id
        following = DocumentCursor(record.generation, end)
    warnings = unmatched(table, where) if where and not total else ()
    return DocumentPage(documents, following, total, warnings)


def _page(table: Rows, matching: str, after: str, limit: int) -> tuple[list[Document], bool]:
    """Return the documents of a page, and whether more follow. A page ends at `PAGE_CHARACTERS`."""
    documents: list[Document] = []
    left = records.PAGE_CHARACTERS
    for block in table.each(WHOLE, first_of(matching), after, limit + 1, READ_TOGETHER):
        whole = table.assembled(block)
        for row in block:
            if len(documents) == limit or left <= 0:
                return documents, True
            document = whole[row["document"]]
            documents.append(document)
            left -= len(document.text) + len(orjson.dumps(document.metadata))
    return documents, False


def _sorted_page(
    table: Rows, matching: str, orders: Sequence[Sort], after: Place | None, limit: int
) -> tuple[list[Document], bool]:
    """Return the documents of a page in the given orders, and whether more follow."""
    found = (row for block in table.each(UNREAD, first_of(matching)) for row in block)
    chosen = first_sorted(((row["document"], unread(row)) for row in found), orders, after, limit + 1)
    documents, left = list[Document](), records.PAGE_CHARACTERS
    for start in range(0, min(limit, len(chosen)), READ_TOGETHER):
        some = chosen[start : min(limit, start + READ_TOGETHER)]
        whole = table.assembled(table.get([key(id, 0) for id in some], WHOLE))
        for document in (whole[id] for id in some if id in whole):
            if left <= 0:
                return documents, True
            documents.append(document)
            left -= len(document.text) + len(orjson.dumps(document.metadata))
    return documents, len(chosen) > limit


def counts(
    table: Rows | None,
    query: str | None,
    where: Filter | None,
    paths: Sequence[str],
    values: int,
    *,
    options: WordOptions,
) -> Counts:
    """Implement `Backend.counts`.

    Only the documents of the first `COUNTED` passages are counted. Passages are in the order of their primary keys.
    """
    check_word_options(options)
    if table is None:
        return Counts(0, {path: [] for path in paths}, complete=True)
    chosen = both(table.matching(where) if where else "", table.with_words(query) if query is not None else "")
    passages = table.count(chosen)
    if not paths:
        return Counts(passages, {}, complete=True)
    found = [row for block in table.each(["document"], chosen, limit=COUNTED) for row in block]
    firsts = table.get([key(id, 0) for id in dict.fromkeys(row["document"] for row in found)], WHOLE)
    metadata = ((0, row["document"], row["metadata"]) for row in firsts)
    return Counts(passages, counted_in(metadata, paths, values), passages <= COUNTED)


def facets(table: Rows | None, values: int) -> Facets:
    """Count the values of the first `COUNTED` documents, in the order of their ids."""
    with _fields(table) as (database, complete):
        counted = facets_of(database, values)
    return counted._replace(complete=counted.complete and complete)


def unmatched(table: Rows | None, where: Filter) -> list[str]:
    """Implement `Backend.unmatched`. In a large corpus only missing fields are reported."""
    with _fields(table) as (database, complete):
        if complete or table is None:
            return unmatched_in(database, where)
    wanted = dict.fromkeys(expressions.paths(where))
    return [f"no document has the field {path!r}." for path in wanted if not table.any(expressions.has_field(path))]


@contextmanager
def _fields(table: Rows | None) -> Iterator[tuple[sqlite3.Connection, bool]]:
    """Yield a local index of the metadata of the first `COUNTED` documents, and whether these are all."""
    found = table.first_rows(limit=COUNTED + 1) if table else []
    read = [(number, row["id"], row["metadata"]) for number, row in enumerate(found[:COUNTED], start=1)]
    documents = "CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT, metadata TEXT)"
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in (*fields.TABLES, documents):
            database.execute(statement)
        stored = ((number, id, orjson.dumps(metadata)) for number, id, metadata in read)
        database.executemany("INSERT INTO documents VALUES (?, ?, ?)", stored)
        fields.index(database, ((number, metadata) for number, _, metadata in read))
        yield database, len(found) <= COUNTED


def sample(table: Rows | None, size: int, field: str | None) -> Sample:
    """Implement `Backend.sample`. The passages are the first in the order of their documents' ids."""
    if table is None:
        return Sample([], np.empty((0, 0), np.float32), 0)
    found = [row for block in table.each([*WHOLE, VECTOR], limit=size) for row in block]
    whole = table.assembled(found)
    drawn = []
    for row in found:
        document = whole[row["document"]]
        value = next(values_at(document.metadata, field), None) if field else None
        drawn.append(Sampled(document.id, excerpt(passage(row, document)), value))
    return Sample(drawn, np.array([row[VECTOR] for row in found], np.float32), table.count())


def contents(table: Rows, fingerprint: str) -> Iterator[Content]:
    """Implement `Backend.contents`."""
    return by_document(_passages(table), fingerprint)


def _passages(table: Rows) -> Iterator[tuple[Passage, Floats]]:
    for block in table.each([*WHOLE, VECTOR]):
        whole = table.assembled(block)
        yield from ((passage(row, whole[row["document"]]), vector(row)) for row in block)


def verify(table: Rows) -> list[str]:
    """Return a line for each document with missing or superfluous passages."""
    wrong: list[str] = []
    expected, last = 0, ""
    for block in table.each(["id", "document", "passage", "passages"]):
        for row in block:
            if row["document"] != last:
                wrong += [f"document {last!r}: {expected} passages are missing"] * (expected > 0)
                last, expected = row["document"], row["passages"]
            expected -= 1
            wrong += [f"document {last!r}: a passage too many"] * (expected < 0)
    return [*wrong, *[f"document {last!r}: {expected} passages are missing"] * (expected > 0)]
