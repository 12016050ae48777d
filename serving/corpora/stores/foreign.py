"""Checks of a file from another machine, before the file is used.

Each value must have the right type, and must not be larger than the API accepts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, Json, ValidationError

from serving.corpora.ports import Stop, StoreError
from serving.corpora.stores.connections import stopping
from serving.corpora.stores.corrections import MAX_WORD
from serving.corpora.stores.fields import MAX_PATH, MAX_TEXT
from serving.corpora.stores.records import STORED
from serving.corpora.values import MAX_POINTS, Stemming
from serving.errors import ServiceError
from serving.operations.bounds import (
    CORPUS_NAME,
    MAX_COUNT,
    MAX_ID_BYTES,
    MAX_VECTOR,
    About,
    Bounds,
    Count,
    Fingerprint,
    Moment,
    RecallTarget,
    SearchedFields,
    StopWords,
    Synonyms,
    check_document_id,
    check_metadata,
)
from serving.operations.clock import EARLIEST, LATEST

MAX_TIMES = 8
"""Maximum ratio of the total length of a document's passages to the length of its text. The server's own chunking
reaches a ratio of five."""
MAX_NUMBER = 1.01
"""Maximum absolute value of a component of a unit vector. It is more than 1, because engines round in half
precision."""
_OTHER_BYTES = 4 * MAX_VECTOR
"""Maximum bytes of a value that has no limit of its own. It is the size of the longest vector."""
MAX_COORDINATE = 1e6
"""Maximum absolute value of a coordinate on a map."""
_Stamp = Annotated[str, Field(max_length=64)]


class _Map(BaseModel):
    """State of a corpus when its map was computed, from the column `map`.

    The attributes are the fingerprint of the encoder, the number of passages, the greatest key, and the time.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    fingerprint: Fingerprint | None
    passages: Count
    last_key: Count
    created: Moment


class _Corpus(BaseModel):
    """The row of the table `corpora` in a file of the current format or an older format (see `migrations`).

    Columns that an older format lacks have defaults.
    """

    model_config = ConfigDict(strict=True)

    name: Annotated[str, Field(pattern=CORPUS_NAME)]
    description: About | None
    recall_target: RecallTarget | None
    created: Moment
    fingerprint: Fingerprint | None
    dim: Annotated[int, Field(ge=1, le=MAX_VECTOR)] | None
    generation: _Stamp = ""
    documents: Count = 0
    passages: Count = 0
    spans: Count = 0
    fresh: Fingerprint | None = None
    stemming: Stemming | None = None
    synonyms: Json[Synonyms] | None = None
    stop_words: Json[StopWords] | None = None
    searched_fields: Json[SearchedFields] | None = None
    unicode: _Stamp | None = None
    revision: Count = 0
    map: Json[_Map] | None = None


def check_values(path: Path, bounds: Bounds, stop: Stop) -> None:
    """Raise an error if a value in a corpus is wrong, or exceeds the limit that applies to requests.

    Call `check_schema` before this function.

    Raises:
        StoreError: a value is wrong; the message says which.
        sqlite3.Error: the file can't be read, or `stop` interrupted the check.
    """
    with (
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as reader,
        stopping(reader, stop),
    ):
        for check in (_lengths, _types, _corpus, _keys, _moments, _documents, _passages, _vectors, _places):
            if wrong := next(check(reader, bounds), None):
                raise StoreError(f"{path}: {wrong}")


def _lengths(reader: sqlite3.Connection, bounds: Bounds) -> Iterator[str]:
    """Yield an error for each column that has a value above the column's length limit.

    SQLite's own length limit is set for each column, so that longer values are not read into memory.
    """
    most = {
        ("documents", "id"): (MAX_ID_BYTES, ""),
        ("documents", "text"): (bounds.text_bytes, " (--max-text-bytes)"),
        ("documents", "metadata"): (bounds.metadata_bytes, " (--max-metadata-bytes)"),
        ("fields", "path"): (4 * MAX_PATH, ""),
        ("postings", "value"): (4 * MAX_TEXT, ""),
        ("overtaken", "id"): (MAX_ID_BYTES, ""),
        ("vocabulary", "word"): (4 * MAX_WORD, ""),
    }
    before = reader.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
    for table, column in _columns(reader):
        limit, option = most.get((table, column), (_OTHER_BYTES, ""))
        reader.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit)
        try:
            ((longest,),) = reader.execute(f'SELECT max(length(CAST("{column}" AS BLOB))) FROM "{table}"')
        except sqlite3.Error as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_TOOBIG:
                raise
            longest = limit + 1
        finally:
            reader.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)
        if longest is not None and longest > limit:
            yield f"a value of {table}.{column} has more than the {limit} bytes that it may have{option}"


def _types(reader: sqlite3.Connection, _: Bounds) -> Iterator[str]:
    """Yield an error for each column with values that don't have the type of the column.

    SQLite checks types when it writes. A file that another program has written may have values of other types.
    """
    for table, column, type, required in _declared(reader):
        if type:
            known = (type.lower(), type.lower() if required else "null")
            wrong = f'SELECT 1 FROM "{table}" WHERE typeof("{column}") NOT IN (?, ?) LIMIT 1'
            if reader.execute(wrong, known).fetchone():
                yield f"a value of {table}.{column} does not have the type {type}"


def _columns(reader: sqlite3.Connection) -> list[tuple[str, str]]:
    return [(table, column) for table, column, *_ in _declared(reader)]


def _declared(reader: sqlite3.Connection) -> list[tuple[str, str, str, bool]]:
    """Return table, name, declared type, and whether NULL is forbidden, for each column of all tables.

    Virtual tables are left out, because their content is in other tables.
    """
    select = """SELECT tables.name, columns.name, columns.type, columns."notnull"
        FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns
        WHERE tables.type = 'table' AND tables.sql NOT LIKE 'CREATE VIRTUAL%'"""
    return reader.execute(select).fetchall()


def _corpus(reader: sqlite3.Connection, _: Bounds) -> Iterator[str]:
    found = reader.execute("SELECT * FROM corpora LIMIT 2")
    rows = found.fetchall()
    if len(rows) != 1:
        yield "contains several corpora" if rows else "contains no corpus"
        return
    row = {name: value for (name, *_), value in zip(found.description, rows[0], strict=True)}
    try:
        _Corpus.model_validate(row)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        yield f"its {first['loc'][0]} is not valid: {first['msg']}"


def _keys(reader: sqlite3.Connection, _: Bounds) -> Iterator[str]:
    keys = {("documents", "number"), ("passages", "key"), ("tombstones", "key"), ("places", "key")}
    for table, column in _columns(reader):
        if (table, column) in keys | {("sqlite_sequence", "seq")}:
            beyond = f"typeof({column}) != 'integer' OR {column} NOT BETWEEN 0 AND {MAX_COUNT}"
            if reader.execute(f"SELECT 1 FROM {table} WHERE {beyond} LIMIT 1").fetchone():
                yield f"a value of {table}.{column} is not from 0 to {MAX_COUNT}"


def _moments(reader: sqlite3.Connection, _: Bounds) -> Iterator[str]:
    if ("documents", "expires_at") in _columns(reader):
        beyond = f"expires_at NOT BETWEEN {EARLIEST} AND {LATEST}"
        if reader.execute(f"SELECT 1 FROM documents WHERE {beyond} LIMIT 1").fetchone():
            yield "a value of documents.expires_at is not from the year 1 to the year 9999"


def _documents(reader: sqlite3.Connection, bounds: Bounds) -> Iterator[str]:
    for row, name, metadata in reader.execute("SELECT rowid, id, metadata FROM documents"):
        try:
            check_document_id(name, "id")
            check_metadata(orjson.loads(metadata), bounds.metadata_bytes, "metadata")
        except (ServiceError, orjson.JSONDecodeError) as error:
            yield f"document {row}: {error}"


def _passages(reader: sqlite3.Connection, _: Bounds) -> Iterator[str]:
    """Yield an error if a document has no passages, or its passages break one of these rules.

    Each passage is a part of the document's text, with a start and an end. If the document has only one passage, the
    passage may be the whole text instead, without start and end. All passages of a document together have at most
    `MAX_TIMES` times the length of its text. The number of the document is the key of its first passage. Lengths of
    texts are in UTF-8 bytes here, so with texts beyond ASCII, some passages that are too long are not found.
    """
    if ("passages", "document") in _columns(reader):
        wrong = reader.execute(
            """SELECT number FROM documents LEFT JOIN (
                SELECT document, min(key) AS first, count(*) AS parts, count(start) AS starts, count("end") AS ends,
                    min(start) AS least, max("end") AS most, min("end" - start) AS shortest,
                    sum("end" - start) AS characters
                FROM passages GROUP BY document
            ) ON document = number
            WHERE first IS NOT number OR starts != ends OR starts NOT IN (parts, iif(parts = 1, 0, parts))
                OR least < 0 OR shortest < 0 OR most > length(CAST(text AS BLOB))
                OR characters > ? * length(CAST(text AS BLOB)) LIMIT 1""",
            (MAX_TIMES,),
        ).fetchone()
        if wrong:
            yield f"the passages of document {wrong[0]} are not parts of its text"


def _vectors(reader: sqlite3.Connection, _: Bounds) -> Iterator[str]:
    """Yield an error for a vector that can't be a unit vector, or has another dimension than its table's first vector.

    A vector can't be a unit vector if it has a NaN, or a component whose absolute value is above `MAX_NUMBER`.
    """
    for table in sorted({table for table, column in _columns(reader) if column == "vector"}):
        width = None
        for key, vector in reader.execute(f"SELECT key, vector FROM {table}"):
            width = len(vector) if width is None else width
            if len(vector) != width or width % 4 or not (abs(np.frombuffer(vector, STORED)) <= MAX_NUMBER).all():
                yield (
                    f"{table}: the vector of passage {key} does not have length 1, or has another dimension than "
                    "the others"
                )


def _places(reader: sqlite3.Connection, _: Bounds) -> Iterator[str]:
    """Yield an error if the map has more than `MAX_POINTS` points, or a coordinate beyond `MAX_COORDINATE`."""
    if ("places", "x") in _columns(reader):
        if reader.execute("SELECT 1 FROM places LIMIT 1 OFFSET ?", (MAX_POINTS,)).fetchone():
            yield f"its map has more than {MAX_POINTS} points"
        beyond = "SELECT key FROM places WHERE max(abs(x), abs(y)) > ? LIMIT 1"
        if found := reader.execute(beyond, (MAX_COORDINATE,)).fetchone():
            yield f"the position of passage {found[0]} is beyond {MAX_COORDINATE:g}"
