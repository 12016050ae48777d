"""Facets of a corpus: its metadata fields, with their types and their most frequent values."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

import orjson

from serving.corpora.filters import is_number, values_at
from serving.corpora.stores.fields import (
    FALSE,
    LIST,
    NULL,
    OBJECT,
    OPAQUE,
    TRUE,
    WHOLE,
    Numbers,
    Value,
    documents,
    numbers,
)
from serving.corpora.values import Facet, Facets, FacetValue, Scalar
from serving.operations.threads import check_cancelled

MAX_FIELDS = 64
"""Maximum number of fields in an answer. If there are more, the fields that the corpus got first are returned."""
COUNTED = 4_000_000
"""Maximum number of postings that are counted for an answer. Counting them takes about a second. The remaining fields
have no counts."""
OPEN = 100
"""Maximum number of documents that are read for a field. A document is read if a value of the field has no posting of
its own (`OPAQUE`). If there are more documents to read, the range of the field is not returned."""
READ = 2000
"""Maximum number of documents whose metadata are read for counts. For more documents, the postings are counted."""
_AMONG = "AND document IN (SELECT value FROM json_each(?))"
_SCALARS = {FALSE: False, TRUE: True, NULL: None}
_KINDS = {NULL: "null", FALSE: "boolean", TRUE: "boolean", LIST: "list", OBJECT: "object"}
KIND_OF: dict[type, str] = {
    NoneType: "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "list",
    dict: "object",
}
_NUMBER, _TEXT = "value < ''", "value >= '' AND value < x''"
"""SQL conditions for numbers and for strings. They use the order of types in SQLite."""


def facets(reader: sqlite3.Connection, values: int) -> Facets:
    """Return the fields of the corpus, each with up to `values` values.

    Call this function in a transaction, because its reads must see one snapshot.
    """
    held = """SELECT number, path FROM fields WHERE EXISTS (SELECT 1 FROM postings WHERE field = number)
        ORDER BY number LIMIT ?"""
    paths = reader.execute(held, (MAX_FIELDS + 1,)).fetchall()
    first = {field: list(_first(reader, field, values + 1)) for field, _ in paths[:MAX_FIELDS]}
    counted: dict[int, list[FacetValue]] = {}
    left = COUNTED
    # Fields with few values first, because their counts matter most.
    for field in sorted(first, key=lambda field: len(first[field]) > values):
        postings = _postings(reader, field, left + 1)
        if postings <= left:
            counted[field] = list(_most_frequent(reader, field, values + 1))
        left = max(0, left - postings)
    found = [
        _facet(reader, field, path, counted.get(field, first[field]), values) for field, path in paths[:MAX_FIELDS]
    ]
    return Facets(found, len(paths) <= MAX_FIELDS and not has(reader, WHOLE, "true"))


def counts(
    reader: sqlite3.Connection, chosen: Numbers | None, paths: Sequence[str], values: int
) -> tuple[dict[str, list[FacetValue]], bool]:
    """Count how many of the `chosen` documents have each value at each path. None chooses all documents.

    Return the `values` most frequent values at each path with their counts, and whether all counts are complete (see
    `Counts.complete`). A path with too many index entries to count gets no values.
    """
    if chosen is not None and len(chosen) <= READ:
        return counted_in(documents(reader, chosen), paths, values), True
    found: dict[str, list[FacetValue]] = {}
    complete, left = not has(reader, WHOLE, "true"), COUNTED
    for path in paths:
        known = reader.execute("SELECT number FROM fields WHERE path = ?", (path,)).fetchone()
        postings = _postings(reader, known[0], left + 1) if known else 0
        if known and postings <= left:
            found[path] = list(_most_frequent(reader, known[0], values, chosen))
            complete = complete and not has(reader, known[0], "value = ?", OPAQUE)
        else:
            found[path] = []
            complete = complete and not postings
        left = max(0, left - postings)
    return found, complete


def counted_in(
    given: Iterable[tuple[int, str, Mapping[str, Any]]], paths: Sequence[str], values: int
) -> dict[str, list[FacetValue]]:
    """Return the `values` most frequent scalar values at each path in the `given` documents.

    Each document is given as number, id and metadata. A value counts once for each document, as in the metadata index.
    """
    counters: dict[str, Counter[tuple[type, Scalar]]] = {path: Counter() for path in paths}
    for _, _, metadata in given:
        for path, counter in counters.items():
            found = values_at(metadata, path)
            elements = [one for value in found for one in (value if isinstance(value, list) else (value,))]
            scalars = (one for one in elements if isinstance(one, Scalar))
            counter.update({(float if is_number(one) else type(one), one) for one in scalars})
    return {
        path: [FacetValue(value, many) for (_, value), many in _ordered(counter)[:values]]
        for path, counter in counters.items()
    }


def _ordered(counter: Counter[tuple[type, Scalar]]) -> list[tuple[tuple[type, Scalar], int]]:
    """Sort values by count, greatest first. Sort values of equal count as SQLite sorts the values in postings.

    SQLite puts numbers first, in ascending order. Then come strings in ascending order, false, true and null.
    """
    kinds = {float: 0, str: 1, bool: 2, NoneType: 3}
    return sorted(
        counter.items(), key=lambda one: (-one[1], kinds[one[0][0]], one[0][1] if one[0][1] is not None else 0)
    )


def _facet(reader: sqlite3.Connection, field: int, path: str, listed: Sequence[FacetValue], values: int) -> Facet:
    check_cancelled()
    unposted, all_read = _unposted(reader, field, path)
    least, greatest = _extremes(reader, field)
    kinds = posted_kinds(reader, field) | {KIND_OF[type(value)] for value in unposted}
    ordered = [value for value in (least, greatest, *unposted) if is_number(value)] if all_read else []
    complete = len(listed) <= values and all_read and not unposted
    return Facet(path, sorted(kinds), min(ordered, default=None), max(ordered, default=None), listed[:values], complete)


def posted_kinds(reader: sqlite3.Connection, field: int) -> set[str]:
    kinds = {_KINDS[blob] for blob in _KINDS if has(reader, field, "value = ?", blob)}
    others = (("number", _NUMBER), ("string", _TEXT))
    return kinds | {kind for kind, condition in others if has(reader, field, condition)}


def _unposted(reader: sqlite3.Connection, field: int, path: str) -> tuple[list[Any], bool]:
    """Return all values at `path` in the documents whose values there may be missing in the metadata index.

    Such a document has the posting `OPAQUE`, either for `field` or for all its fields (`WHOLE`). At most `OPEN`
    of these documents are read. Also return whether all of them were read.
    """
    select = "SELECT DISTINCT document AS number FROM postings WHERE field IN (?, ?) AND value = ? LIMIT ?"
    left_open = numbers(reader, select, field, WHOLE, OPAQUE, OPEN + 1)
    found = [value for _, _, metadata in documents(reader, left_open[:OPEN]) for value in values_at(metadata, path)]
    elements = [one for value in found for one in (value if isinstance(value, list) else ())]
    return [*found, *elements], len(left_open) <= OPEN


def _postings(reader: sqlite3.Connection, field: int, limit: int) -> int:
    """Count the postings of `field` (its entries in the metadata index), but only up to `limit`."""
    check_cancelled()
    counting = "SELECT count(*) FROM (SELECT 1 FROM postings WHERE field = ? LIMIT ?)"
    ((count,),) = reader.execute(counting, (field, limit))
    return int(count)


def _extremes(reader: sqlite3.Connection, field: int) -> tuple[int | float | None, int | float | None]:
    """Return the smallest and the greatest number in `field`. If the field has no numbers, both results are None.

    An index lookup finds each of the two numbers.
    """
    select = f"SELECT value FROM postings WHERE field = ? AND {_NUMBER} ORDER BY value"
    least = reader.execute(f"{select} LIMIT 1", (field,)).fetchone()
    greatest = reader.execute(f"{select} DESC LIMIT 1", (field,)).fetchone()
    return (least[0], greatest[0]) if least else (None, None)


def has(reader: sqlite3.Connection, field: int, condition: str, *values: Value) -> bool:
    """Return whether a posting of `field` meets the SQL `condition`, whose parameters are `values`."""
    select = f"SELECT 1 FROM postings WHERE field = ? AND {condition} LIMIT 1"
    return reader.execute(select, (field, *values)).fetchone() is not None


def _most_frequent(
    reader: sqlite3.Connection, field: int, limit: int, among: Numbers | None = None
) -> Iterator[FacetValue]:
    """Yield up to `limit` values with their counts, most frequent first.

    With `among`, only the documents in `among` are counted. Values of equal count are in SQLite's order.
    """
    within, listed = ("", ()) if among is None else (_AMONG, (orjson.dumps(among.tolist()).decode(),))
    select = f"""SELECT value, count(*) AS many FROM postings
        WHERE field = ? AND value < ? {within} GROUP BY value ORDER BY many DESC, value LIMIT ?"""
    for value, many in reader.execute(select, (field, OBJECT, *listed, limit)):
        yield FacetValue(_SCALARS[value] if isinstance(value, bytes) else value, many)


def _first(reader: sqlite3.Connection, field: int, limit: int) -> Iterator[FacetValue]:
    """Yield the first `limit` distinct values of `field` in SQLite's order. The values are not counted.

    Each value takes one index lookup.
    """
    beyond, last = "", ()
    for _ in range(limit):
        select = f"SELECT value FROM postings WHERE field = ? AND value < ? {beyond} ORDER BY value LIMIT 1"
        row = reader.execute(select, (field, OBJECT, *last)).fetchone()
        if row is None:
            return
        beyond, last = "AND value > ?", row
        yield FacetValue(_SCALARS[row[0]] if isinstance(row[0], bytes) else row[0], None)
