"""Postings of metadata: an inverted index from fields and values to documents.

A posting is a row for a value at a path of a document. Each element of a list has a posting, too. Postings follow
SQLite's order (https://www.sqlite.org/datatype3.html, section 4.1): first integers and floats together, then strings,
then blobs. Strings are ordered by UTF-8, which is the order by code point, as in Python. Blobs represent values that
are neither numbers nor strings. A string that is a date also gets a posting for its point in time, in a blob that sorts
after all other blobs. A value that can't be posted is replaced by `OPAQUE`, and filters then read the document.
`matching.py` evaluates filters.
"""

from __future__ import annotations

import math
import sqlite3
import sys
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from serving.corpora.filters import instant
from serving.operations.json_body import is_unicode

T = TypeVar("T")
FALSE, TRUE, NULL, OBJECT, LIST, OPAQUE, DATES = (bytes([kind]) for kind in range(7))
"""Blobs in sort order: scalars come before `OBJECT`, and the blobs of points in time begin with `DATES`."""
Value = int | float | str | bytes
Numbers = NDArray[np.int64]
"""(n,) document numbers."""

MAX_TEXT = 256
"""Maximum characters of a string in a posting. For a longer string, the posting is `OPAQUE`."""
MAX_ELEMENTS = 256
"""Maximum number of values at a path of a document, including elements of lists. If there are more, the posting of the
path is `OPAQUE`."""
MAX_FIELDS, MAX_PATH = 256, 512
"""Maximum number of paths of a document, and maximum characters of a path. If a document exceeds one of the limits,
none of its values has a posting, so filters must read the document."""
WHOLE = 0
"""Field number in the only posting of a document that exceeds `MAX_FIELDS` or `MAX_PATH`."""
BLOCK = 4096
"""Maximum number of rows that a statement names or fetches."""

TABLES = (
    "CREATE TABLE fields (number INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE) STRICT",
    # `value` has no declared type, so SQLite does not convert the types of values.
    """CREATE TABLE postings (
        field INTEGER NOT NULL,
        value NOT NULL,
        document INTEGER NOT NULL,
        PRIMARY KEY (field, value, document)
    ) WITHOUT ROWID""",
)


def blocks(values: Sequence[T], size: int = BLOCK) -> Iterator[Sequence[T]]:
    """Split `values` into consecutive blocks of up to `size`."""
    return (values[i : i + size] for i in range(0, len(values), size))


def index(writer: sqlite3.Connection, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
    """Add postings for new documents. Each of `rows` has the number and the metadata of a document."""
    writer.executemany("INSERT INTO postings (field, value, document) VALUES (?, ?, ?)", _postings(writer, rows))


def remove(writer: sqlite3.Connection, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
    """Delete the postings that `index` made from the same `rows`."""
    writer.executemany("DELETE FROM postings WHERE field = ? AND value = ? AND document = ?", _postings(writer, rows))


def clear(writer: sqlite3.Connection) -> None:
    """Delete the names of all fields. The corpus must be empty."""
    writer.execute("DELETE FROM fields")


def check(reader: sqlite3.Connection) -> list[str]:
    """Return a line for each kind of mismatch between the postings and the metadata in the table `documents`."""
    fields = {path: number for number, path in reader.execute("SELECT number, path FROM fields")}
    expected = missing = 0
    for number, _, metadata in documents(reader, numbers(reader, "SELECT number FROM documents")):
        for path, value in posted(metadata):
            row = (WHOLE if path is None else fields.get(path), value, number)
            select = "SELECT 1 FROM postings WHERE field = ? AND value = ? AND document = ?"
            expected += 1
            missing += reader.execute(select, row).fetchone() is None
    ((held,),) = reader.execute("SELECT count(*) FROM postings")
    wrong = {"missing": missing, "of no document": held - (expected - missing)}
    return [f"postings: {count} {what}" for what, count in wrong.items() if count]


def numbers(connection: sqlite3.Connection, select: str, *values: Value) -> NDArray[np.int64]:
    """Return the integers in the column `number` of the query `select`. They are sorted only if `select` sorts them.

    SQLite collects the integers in a single step without Python's interpreter lock, so other threads can run meanwhile.
    """
    ((found,),) = connection.execute(f"SELECT json_group_array(number) FROM ({select})", values)
    return np.array(orjson.loads(found), dtype=np.int64)


def documents(reader: sqlite3.Connection, chosen: Numbers) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Yield number, id and metadata of the `chosen` documents, one at a time, because each may be large."""
    select = "SELECT number, id, metadata FROM documents WHERE number IN (SELECT value FROM json_each(?))"
    for start in range(0, len(chosen), BLOCK):
        block = orjson.dumps(chosen[start : start + BLOCK].tolist()).decode()
        for number, name, metadata in reader.execute(select, (block,)):
            yield number, name, orjson.loads(metadata)


def posted(metadata: Mapping[str, Any]) -> KeysView[tuple[str | None, Value]]:
    """Return the distinct postings of a document as pairs of path and value.

    If the document exceeds `MAX_FIELDS` or `MAX_PATH`, its values have no postings. The result is then the single pair
    (None, `OPAQUE`), which makes filters read the document.
    """
    found: dict[str, list[Any]] = {}
    for path, value in _fields(metadata, ""):
        found.setdefault(path, []).append(value)
        if len(found) > MAX_FIELDS or len(path) > MAX_PATH:
            return {(None, OPAQUE): None}.keys()
    return dict.fromkeys((path, value) for path, at_path in found.items() for value in _values(at_path)).keys()


def posted_date(date: bytes) -> bytes:
    """Return the blob by which postings represent a point in time. `date` is the result of `filters.instant` for it."""
    return DATES + date


def text_after(prefix: str) -> str:
    """Return the first string after all strings that begin with `prefix`. If there is none, return ""."""
    kept = prefix.rstrip(chr(sys.maxunicode))
    after = ord(kept[-1]) + 1 if kept else 0
    return kept[:-1] + chr(0xE000 if after == 0xD800 else after) if kept else ""  # surrogates are not characters


def stored(value: Any) -> Value:
    """Return what the table `postings` stores for a JSON value: a number, a string or a blob.

    Equal JSON values give equal results.
    """
    if value is None:
        return NULL
    if isinstance(value, bool):
        return TRUE if value else FALSE
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT and is_unicode(value) else OPAQUE
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, int | float):
        return _as_float(value)
    return LIST if isinstance(value, list) else OBJECT


def _postings(
    writer: sqlite3.Connection, rows: Iterable[tuple[int, Mapping[str, Any]]]
) -> Iterator[tuple[int, Value, int]]:
    """Yield the postings of the documents in `rows`, as rows of the table `postings`. Give each new field a number.

    A few hundred documents may have millions of postings. Therefore only the postings of one document are in memory at
    a time.
    """
    fields = dict[str | None, int]()
    for document, metadata in rows:
        for path, value in posted(metadata):
            if path not in fields:
                fields[path] = WHOLE if path is None else _field(writer, path)
            yield fields[path], value, document


def _field(writer: sqlite3.Connection, path: str) -> int:
    for (number,) in writer.execute("SELECT number FROM fields WHERE path = ?", (path,)):
        return int(number)
    ((number,),) = writer.execute("INSERT INTO fields (path) VALUES (?) RETURNING number", (path,))
    return int(number)


def _fields(metadata: Mapping[str, Any], parent: str) -> Iterator[tuple[str, Any]]:
    """Yield each dotted path in `metadata`, after the prefix `parent`, with each value at this path.

    As in `filters.values_at`, paths also lead into the objects of a list, so a path can occur several times. Paths do
    not lead into a value whose own path is longer than `MAX_PATH`.
    """
    for name, value in metadata.items():
        path = parent + name
        yield path, value
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, Mapping) and len(path) <= MAX_PATH:
                yield from _fields(one, path + ".")


def _values(found: Sequence[Any]) -> Iterable[Value]:
    if sum(len(one) if isinstance(one, list) else 1 for one in found) > MAX_ELEMENTS:
        return [OPAQUE]
    lists = [LIST for one in found if isinstance(one, list)]
    values = [value for one in found for value in (one if isinstance(one, list) else (one,))]
    dates = (date for one in values if isinstance(one, str) and len(one) <= MAX_TEXT and (date := instant(one)))
    return [*lists, *map(stored, values), *map(posted_date, dates)]


def _as_float(number: int | float) -> Value:
    try:
        exact = float(number)
    except OverflowError:
        return OPAQUE
    return exact if math.isfinite(exact) and exact == number else OPAQUE
