"""Verification of a whole corpus file, row by row."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from serving.stores import fields, vectors
from serving.stores.failures import UNREADABLE, DamageError
from serving.stores.records import DOCUMENT, PASSAGE, PassageRow, document_in

SAID = 20
"""Maximum lines of one kind, because a failing disk can cause the same line for every row."""


def verify(reader: sqlite3.Connection) -> list[str]:
    """Return a line for each defect, except in the word index, whose check needs a connection that may write."""
    if said := _structure(reader):
        return said  # what is read from broken pages tells nothing more
    said = []
    for check in (_rows, _counts, fields.check):
        try:
            said += check(reader)
        except UNREADABLE as error:
            said.append(str(error))
    return said


def _structure(reader: sqlite3.Connection) -> list[str]:
    try:
        found = [line for (line,) in reader.execute(f"PRAGMA integrity_check({SAID})")]
        loose = reader.execute("PRAGMA foreign_key_check").fetchmany(SAID)
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [line for line in found if line != "ok"] + [
        f"{table}: row {row} belongs to a row of {parent} that is not there" for table, row, parent, _ in loose
    ]


def _rows(reader: sqlite3.Connection) -> Iterator[str]:
    (dim,) = reader.execute("SELECT dim FROM corpora").fetchone() or (None,)
    yield from _damaged(reader, f"SELECT {DOCUMENT} FROM documents", document_in)
    yield from _damaged(reader, f"SELECT {PASSAGE} FROM passages", lambda row: PassageRow._make(row).span())
    for table in ("vectors", "fresh"):
        select = f"SELECT key, vector, checksum FROM {table}"
        yield from _damaged(reader, select, lambda row: vectors.matrix([row]))
    other = reader.execute("SELECT key FROM vectors WHERE length(vector) IS NOT 4 * ? LIMIT ?", (dim, SAID)).fetchall()
    yield from (f"the vector of passage {key} does not have {dim} dimensions" for (key,) in other)


def _damaged(reader: sqlite3.Connection, select: str, read: Callable[[Any], object]) -> Iterator[str]:
    said = 0
    for row in reader.execute(select):  # one row in memory at a time: a text may have a megabyte
        try:
            read(row)
        except (DamageError, ValueError) as error:
            said += 1
            if said <= SAID:
                yield str(error)


def _counts(reader: sqlite3.Connection) -> Iterator[str]:
    for said, counted, what in reader.execute(
        """SELECT documents, (SELECT count(*) FROM documents), 'documents' FROM corpora UNION ALL
        SELECT passages, (SELECT count(*) FROM passages), 'passages' FROM corpora UNION ALL
        SELECT spans, (SELECT count(start) FROM passages), 'spans' FROM corpora UNION ALL
        SELECT passages, (SELECT count(*) FROM vectors), 'vectors' FROM corpora"""
    ):
        if said != counted:
            yield f"it says that it holds {said} {what}, and holds {counted}"
