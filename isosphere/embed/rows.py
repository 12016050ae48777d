"""Rows of input files: an id, a text, and the values of the columns to copy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from training.data.files import COLUMN_ADVICE, COLUMNS, CorpusError, File, OnBadRow, is_table, lines
from training.data.files import rows as table_rows

LINE = "text"
"""Name of the only column of a text file. The column contains the lines."""


class Row(NamedTuple):
    """A text to embed."""

    place: str
    """File and row number, for error messages."""
    id: str
    text: str
    kept: list[Any]
    """Values of the columns to copy."""


def rows(
    paths: Iterable[File], text_column: str | None, id_column: str | None, columns: Sequence[str], bad: OnBadRow
) -> Iterator[Row]:
    """Yield the rows of tables and the lines of text files, in order. `bad` receives the error of each bad row.

    A row without an id gets an id that consists of its file name and row number.

    Raises:
        CorpusError: a file can't be read, or lacks one of the columns.
    """
    for path in paths:
        for place, (text, own_id, *kept) in _values(path, text_column, id_column, columns, bad):
            if wrong := _wrong(text, own_id, kept):
                bad(CorpusError(f"{place}: {wrong}"))
            else:
                yield Row(place, place.replace(": row ", ":") if own_id is None else str(own_id), text, kept)


def _values(
    path: File, text_column: str | None, id_column: str | None, columns: Sequence[str], bad: OnBadRow
) -> Iterator[tuple[str, list[Any]]]:
    named = next((column for column in (text_column, id_column, *columns) if column not in (None, LINE)), None)
    if is_table(path, named):
        texts = COLUMNS if text_column is None else (text_column,)
        ids = ("id", None) if id_column is None else (id_column,)
        kept = ((column,) for column in columns)
        yield from table_rows(path, texts, ids, *kept, advice="" if named else COLUMN_ADVICE, bad=bad)
    else:
        for number, line in enumerate(lines([path], bad), start=1):
            text = line.rstrip("\r\n")
            yield f"{path}:{number}", [text, text if id_column else None, *(text for _ in columns)]


def _wrong(text: Any, own_id: Any, kept: Sequence[Any]) -> str:
    """Return a message about an invalid value of a row, or an empty text if all values are valid."""
    if not isinstance(text, str):
        return f"the text is {text!r:.40}, not a string"
    if not isinstance(own_id, str | int | None) or isinstance(own_id, bool):
        return f"the id is {own_id!r:.40}, neither a string nor an integer"
    if not all(map(_is_unicode, (text, own_id, *kept))):
        return "not UTF-8"
    return ""


def _is_unicode(value: Any) -> bool:
    """Return whether a value has no lone surrogates, which represent bytes that are not UTF-8.

    Lists and objects of JSON are searched, too.
    """
    text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else value
    if isinstance(text, str) and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True
