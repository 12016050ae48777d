"""Check that a file from another machine has the tables of a corpus and nothing else.

Views, triggers and expressions in tables run whenever a table is read or written. A malicious file could use them to
run without end.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import get_args

from serving.ports import Stemming, StoreError
from serving.stores.migrations import MIGRATIONS, create_words

_RENAMED = re.compile(r'^(CREATE TABLE )"(\w+)"')
"""The statement of a renamed table, whose name SQLite quotes. Re-embedding renames tables."""
MAX_STATEMENT = 65_536
"""Maximum bytes of a table's CREATE statement. Ours have a few hundred bytes."""
Shape = frozenset[tuple[str, str, str, str | None]]
"""SQLite's schema of tables and indexes: type, name, table and statement."""


def check_shape(path: Path) -> None:
    """Check the schema of the file, and read nothing else. A later format is accepted, because `migrate` reports it.

    Raises:
        StoreError: the schema is not that of the file's format.
    """
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as reader:
        reader.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_STATEMENT)  # set before SQLite reads the schema
        (format,), found = reader.execute("PRAGMA user_version").fetchone(), _shape(reader)
    format = max(format, 0)  # formats begin at 0
    if format <= len(MIGRATIONS) and found not in (shapes := _shapes(format)):
        first = min(found.symmetric_difference(shapes[0]), key=lambda one: one[1])
        raise StoreError(
            f"{path}: not a corpus of this server: {first[0]} {first[1]!r} is not what format {format} has"
        )


@cache
def _shapes(format: int) -> list[Shape]:
    """Return the schemas of a format, one for each kind of stemming."""
    found = []
    for stemming in get_args(Stemming):
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
            for step in MIGRATIONS[:format]:
                step(made)
            if any(name == "words" for _, name, *_ in _shape(made)):
                create_words(made, format, stemming)
            found.append(_shape(made))
    return found


def _shape(reader: sqlite3.Connection) -> Shape:
    rows = reader.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema")
    return frozenset((kind, name, table, sql and _RENAMED.sub(r"\1\2", sql)) for kind, name, table, sql in rows)
